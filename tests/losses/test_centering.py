"""Score centering against sums over the vocabulary, in float64: what it removes, and what it has in common with the
sampling mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.losses import (
    clipped_policy_loss,
    drift_and_covariance,
    llds_penalty,
    score_centering_loss,
)

VOCABULARY, ONE = 7, torch.ones(1, 1, dtype=torch.bool)
seeds = pytest.mark.parametrize("seed", range(4))


def draw(seed: int) -> tuple[Tensor, Tensor, list[int], float]:
    """Logits now and then, what the sampler could draw, and an advantage."""
    generator = torch.Generator().manual_seed(seed)
    now, old = (torch.randn(VOCABULARY, dtype=torch.float64, generator=generator) for _ in range(2))
    drawable = torch.randperm(VOCABULARY, generator=generator)[: 2 + seed % 4].tolist()
    return now.requires_grad_(), old, drawable, float(torch.randn(1, generator=generator))


def log_mass(logits: Tensor, drawable: list[int]) -> Tensor:
    return (logits[drawable].logsumexp(-1) - logits.logsumexp(-1)).reshape(1, 1)


def gradient(value: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(value.sum(), logits, retain_graph=True)[0]


def score(logits: Tensor, token: int) -> Tensor:
    return gradient(logits.log_softmax(-1)[token], logits)


@seeds
def test_it_is_the_expected_weighted_score_of_the_truncated_sampler(seed: int) -> None:
    now, old, drawable, advantage = draw(seed)
    loss = score_centering_loss(log_mass(now, drawable), log_mass(old, drawable), torch.tensor([[advantage]]), ONE)
    p, p_old = now.detach().softmax(-1), old.softmax(-1)
    expected = sum(advantage * p_old[v] / p_old[drawable].sum() * (p[v] / p_old[v]) * score(now, v) for v in drawable)
    torch.testing.assert_close(gradient(loss, now), expected, atol=1e-12, rtol=0)


@seeds
def test_the_expected_score_is_the_gradient_of_minus_the_divergence_from_the_sampler(seed: int) -> None:
    """For any q; for a truncated one the divergence is −log P(S)."""
    now, other, drawable, _ = draw(seed)
    q = other.softmax(-1)
    divergence = (q * (q.log() - now.log_softmax(-1))).sum()
    torch.testing.assert_close(sum(q[v] * score(now, v) for v in range(VOCABULARY)), -gradient(divergence, now))
    p, mass = now.detach().softmax(-1), log_mass(now, drawable)
    truncated = torch.zeros_like(p)
    truncated[drawable] = p[drawable] / mass.detach().exp()[0]
    torch.testing.assert_close(sum(truncated[v] * score(now, v) for v in drawable), gradient(mass, now))
    torch.testing.assert_close(truncated.xlogy(truncated / p).sum(), -mass.detach()[0, 0])


def drift(logits: Tensor, drawable: list[int], mean_advantage: float, size: float) -> Tensor:
    """The logits after a step along the first term."""
    return logits.detach() + size * mean_advantage * gradient(log_mass(logits, drawable), logits)


@seeds
def test_advantages_that_sum_to_zero_still_leak_at_a_prefix(seed: int) -> None:
    here, there, drawable, _ = draw(seed)
    for logits, mean_advantage in ((here, -0.5), (there.requires_grad_(), 0.5)):  # equally frequent prefixes
        after = log_mass(drift(logits, drawable, mean_advantage, 1e-3), drawable)
        moved = float(after - log_mass(logits, drawable).detach())
        assert moved * mean_advantage > 0
        expected = 1e-3 * mean_advantage * float(gradient(log_mass(logits, drawable), logits).square().sum())
        assert moved == pytest.approx(expected, rel=1e-2)


@seeds
def test_what_is_sampled_loses_the_likelihood_that_leaks(seed: int) -> None:
    now, _, drawable, _ = draw(seed)
    q = now.detach()[drawable].softmax(-1)
    change = (drift(now, drawable, -0.5, 1e-4).log_softmax(-1) - now.detach().log_softmax(-1))[drawable]
    lost = -0.5 * 1e-4 * float(gradient(log_mass(now, drawable), now).square().sum())
    assert float(q @ change) == pytest.approx(lost, rel=1e-3) and lost < 0


@seeds
def test_ratios_sink_at_least_as_fast_as_the_mass_of_the_sampler(seed: int) -> None:
    after, before, drawable, _ = (each.detach() if isinstance(each, Tensor) else each for each in draw(seed))
    q, q_after = before[drawable].softmax(-1), after[drawable].softmax(-1)
    log_ratio = float(q @ (after.log_softmax(-1) - before.log_softmax(-1))[drawable])
    lost, within = float(log_mass(after, drawable) - log_mass(before, drawable)), float(q.xlogy(q / q_after).sum())
    assert log_ratio == pytest.approx(lost - within) and within > 0


@seeds
def test_a_penalty_on_all_sampled_tokens_pulls_the_mass_back(seed: int) -> None:
    before, _, drawable, _ = draw(seed)
    now = before.detach().clone()
    now[[v for v in range(VOCABULARY) if v not in drawable]] += 0.5  # the tail gained, S lost alike
    now.requires_grad_()
    q, pull = now.detach()[drawable].softmax(-1), torch.zeros_like(now)
    for share, v in zip(q, drawable, strict=True):
        new, old = (each.log_softmax(-1)[v].reshape(1, 1) for each in (now, before.detach()))
        pull -= share * gradient(llds_penalty(new, old, torch.zeros(1, 1), ONE, gate="token"), now)
    torch.testing.assert_close(pull, gradient(log_mass(now, drawable), now))


@seeds
def test_at_the_first_step_the_sampling_mask_has_the_same_gradient(seed: int) -> None:
    now, _, drawable, advantage = draw(seed)
    a, token = torch.tensor([[advantage]]), drawable[0]
    whole = now.log_softmax(-1)[token].reshape(1, 1)
    mass = log_mass(now, drawable)
    centred = clipped_policy_loss(whole, whole.detach(), a, ONE) + score_centering_loss(mass, mass.detach(), a, ONE)
    masked = clipped_policy_loss(whole - mass, (whole - mass).detach(), a, ONE)
    torch.testing.assert_close(gradient(centred, now), gradient(masked, now), atol=1e-12, rtol=0)


@seeds
def test_drift_and_covariance_are_norms_by_the_logits(seed: int) -> None:
    logits, _, drawable, _ = draw(seed)
    values = torch.randn(VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    mass = log_mass(logits, drawable)
    p = logits.detach().softmax(-1)
    q = torch.zeros_like(p)
    for v in drawable:
        q[v] = p[v] / p[drawable].sum()
    mean = float(sum(q[v] * values[v] for v in drawable))
    bound, whole = 0.0, torch.zeros_like(p)
    for v in drawable:
        logprob, advantage = logits.log_softmax(-1)[v].reshape(1, 1), values[v].reshape(1, 1)
        drift, covariance = drift_and_covariance(logprob, mass, advantage, torch.tensor([[mean]]), ONE)
        drawn = torch.nn.functional.one_hot(torch.tensor(v), VOCABULARY).double()
        assert drift.item() == pytest.approx(abs(mean) * float((q - p).abs().sum()), abs=1e-6)
        assert covariance.item() == pytest.approx(
            abs(float(values[v]) - mean) * float((drawn - q).abs().sum()), abs=1e-6
        )
        whole += q[v] * values[v] * (drawn - p)
        bound += float(q[v] * covariance)
    rest = whole - mean * (q - p)  # the expected update less its drift is the covariance, and no longer than its bound
    expected = sum(q[v] * (values[v] - mean) * torch.eye(VOCABULARY, dtype=torch.float64)[v] for v in drawable)
    torch.testing.assert_close(rest, expected, atol=1e-12, rtol=0)
    assert float(rest.abs().sum()) <= bound + 1e-12


def test_without_truncation_there_is_no_drift_and_outside_the_mask_nothing() -> None:
    logprobs, poison = torch.tensor([[-0.5, float("nan")]]), torch.tensor([[0.0, float("inf")]])
    drift, covariance = drift_and_covariance(
        logprobs, poison, torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.tensor([[True, False]])
    )
    assert drift.tolist() == [[0.0, 0.0]]
    assert covariance[0].tolist() == pytest.approx([2 * (1 - torch.tensor(-0.5).exp().item()), 0.0])
