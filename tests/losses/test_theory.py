"""docs/theory.md, step by step: each numerical check that no other file has, and that every test it names exists."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from holdfast.losses import (
    clipped_policy_loss,
    group_advantages,
    gwhes,
    llds_penalty,
    nthr_weights,
    reduce_loss,
    token_influence,
)


def logprobs_of(hidden: Tensor, unembedding: Tensor, tokens: Tensor) -> Tensor:
    return (hidden @ unembedding.T).log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@pytest.mark.parametrize(("size", "correct"), [(5, 1), (5, 2), (4, 2), (10, 9)])
def test_rewards_of_zero_and_one_have_two_advantages(size: int, correct: int) -> None:
    """p⁺ and −p⁻, times √((G − 1)/G) because the code's deviation divides by G − 1; they sum to 0."""
    rewards = torch.tensor([1.0] * correct + [0.0] * (size - correct), dtype=torch.float64)
    p, scale = correct / size, math.sqrt((size - 1) / size)
    found = group_advantages(rewards, torch.zeros(size, dtype=torch.long), eps=0.0)[:, 0].double()
    expected = [math.sqrt((1 - p) / p)] * correct + [-math.sqrt(p / (1 - p))] * (size - correct)
    torch.testing.assert_close(found, scale * torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)
    assert float(found.sum()) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("clip", [0.2, 3e-4, 1e-9])
def test_on_the_first_step_the_gradient_is_minus_the_advantage(clip: float) -> None:
    g = torch.Generator().manual_seed(0)
    old = -torch.rand(3, 7, generator=g, dtype=torch.float64)
    mask = torch.rand(3, 7, generator=g) < 0.6
    logprobs, advantages = old.clone().requires_grad_(), torch.tensor([[1.5], [-0.5], [0.0]], dtype=torch.float64)
    reduce_loss(clipped_policy_loss(logprobs, old, advantages, mask, clip_low=clip, clip_high=clip), mask).backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.where(mask, -advantages / mask.sum(), 0.0))


def test_the_gradient_by_the_output_layer_is_error_times_state() -> None:
    g = torch.Generator().manual_seed(1)
    hidden, weights = (torch.randn(n, 4, generator=g, dtype=torch.float64) for n in (1, 6))
    weights.requires_grad_()
    (gradient,) = torch.autograd.grad(logprobs_of(hidden, weights, torch.tensor([2]))[0], weights)
    error = torch.eye(6, dtype=torch.float64)[2] - (hidden @ weights.T).softmax(-1)[0].detach()
    torch.testing.assert_close(gradient, error[:, None] * hidden)


def pair(cosine: float, same_token: bool) -> Tensor:
    """GWHES of a correct rollout of one token, beside an incorrect one whose state is at this cosine of its state."""
    hidden = torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)
    unembedding = torch.zeros(3, 2, dtype=torch.float64)  # π = 1/3 each
    tokens, rows = torch.tensor([0, 0 if same_token else 1]), torch.tensor([0, 1])
    return gwhes(hidden, unembedding, tokens, rows == 0, rows)[0]


def test_an_incorrect_token_pulls_the_same_token_down_and_others_up() -> None:
    """By α⟨h, h⟩ with α over V*: (1 − π)² for the same token, −2π(1 − π) for another one; π = 1/3."""
    for same_token, alpha in ((True, (2 / 3) ** 2), (False, -2 * (1 / 3) * (2 / 3))):
        alone = float(pair(0.0, same_token=same_token))  # states at a right angle: the correct token's own push
        moved = [float(pair(cosine, same_token=same_token)) - alone for cosine in (0.25, 0.5, 1.0)]
        assert moved == pytest.approx([alpha * cosine for cosine in (0.25, 0.5, 1.0)])


def spiral(steps: int, penalty: float = 0.0) -> list[float]:
    """ln π of a token that a correct rollout has once and an incorrect one twice, at one state: plain GRPO, K = 1.

    With `penalty`, LLD beside it with an old policy that stays, as between the optimizer steps of one rollout batch.
    """
    hidden = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    weights = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    mask = torch.tensor([[True, False], [True, True]])
    advantages = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    start, found = None, []
    for _ in range(steps):
        weights = weights.detach().requires_grad_()
        each = logprobs_of(hidden, weights, torch.tensor([0])).expand(2, 2)
        start = each.detach() if start is None else start
        found.append(float(each[0, 0].detach()))
        loss = reduce_loss(clipped_policy_loss(each, each.detach(), advantages, mask), mask)
        if penalty:
            loss = loss + penalty * reduce_loss(llds_penalty(each, start, advantages, mask, gate="token"), mask)
        (gradient,) = torch.autograd.grad(loss, weights)
        weights = weights - 0.5 * gradient
    return found


def test_displacement_deepens_as_the_token_becomes_unlikely() -> None:
    """Each fall is deeper than the one before, and is −s·𝒢/Z with 𝒢 = ‖e − π‖²·‖h‖² = 2(1 − π)²."""
    levels = spiral(8)
    falls = [b - a for a, b in itertools.pairwise(levels)]
    assert all(later < earlier < 0 for earlier, later in itertools.pairwise(falls))
    predicted = [-0.5 * 2 * (1 - math.exp(level)) ** 2 / 3 for level in levels[:-1]]
    assert falls == pytest.approx(predicted, rel=0.1)
    assert falls[-1] < 1.5 * falls[0]


def test_the_penalty_outweighs_the_push_that_the_token_gets() -> None:
    """The push on the token is −1/Z, that of LLD λ/Z: above λ = 1 the token stays, below it falls more slowly."""
    plain, weak, strong = spiral(20), spiral(20, penalty=0.5), spiral(20, penalty=1.5)
    assert plain[-1] < weak[-1] < weak[0] - 0.05
    assert strong[-1] == pytest.approx(strong[0], abs=0.05)


def test_nthr_gives_back_what_its_tokens_took() -> None:
    """d Σ_correct log π / d step, with NTHR's weights minus without: p⁻ (1 − η) Σ s_n / Z over the tokens it scales."""
    g = torch.Generator().manual_seed(4)
    lengths = torch.tensor([4, 3, 5, 6, 4])
    rows = torch.repeat_interleave(torch.arange(5), lengths)
    n, correct = len(rows), rows < 1
    hidden = torch.randn(n, 4, generator=g, dtype=torch.float64)
    unembedding = 0.3 * torch.randn(4, 4, generator=g, dtype=torch.float64)
    tokens = torch.cat([torch.arange(4), torch.randint(0, 4, (n - 4,), generator=g)])
    hidden[rows == 1] = (
        hidden[:3].clone() + 0.1 * hidden[rows == 1]
    )  # an incorrect rollout that begins as the correct one
    tokens[rows == 1] = tokens[:3].clone()
    s = token_influence(hidden, unembedding, tokens, correct)
    weights = nthr_weights(s, correct, rows)
    scaled = weights < 1
    p = 0.2
    advantages = torch.where(correct, math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p))).double()

    def derivative(factor: Tensor) -> float:
        w = unembedding.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(-(advantages * factor * logprobs_of(hidden, w, tokens)).sum() / n, w)
        ahead, back = (logprobs_of(hidden, unembedding + c * gradient, tokens)[correct].sum() for c in (-1e-5, 1e-5))
        return float(ahead - back) / 2e-5

    assert 0 < int(scaled.sum()) < int((~correct).sum())
    gained = derivative(weights) - derivative(torch.ones_like(weights))
    eta = 2 * abs(0.5 - p)
    assert gained == pytest.approx(math.sqrt(p / (1 - p)) * (1 - eta) * float(s[scaled].sum()) / n, rel=1e-4)
    assert gained > 0
