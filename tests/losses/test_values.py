"""Rewards of tokens, and whitening, against double loops in float64; what a batch of one token, or of none, gives."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from holdfast.losses import gae_advantages, token_rewards, whiten


def ragged(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards [4, 1], old and reference log-probs [4, 9], and a mask whose last row is empty; poison outside it."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(4, 9, generator=g) < 0.5
    mask[0], mask[3] = True, False
    old, ref = (torch.where(mask, -torch.rand(4, 9, generator=g).double(), torch.nan) for _ in range(2))
    return torch.randn(4, 1, generator=g).double(), old, ref, mask


def naive(rewards: Tensor, old: Tensor, ref: Tensor, mask: Tensor, coef: float) -> list[list[float]]:
    rows = []
    for row in range(len(mask)):
        tokens = [k for k in range(mask.shape[1]) if mask[row, k]]
        values = [0.0] * mask.shape[1]
        for k in tokens:
            values[k] = -coef * (float(old[row, k]) - float(ref[row, k])) if coef else 0.0
        if tokens:
            values[tokens[-1]] += float(rewards[row, 0])
        rows.append(values)
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_rewards_of_tokens_equal_the_loop(seed: int) -> None:
    rewards, old, ref, mask = ragged(seed)
    rewards[3] = torch.nan  # of a rollout without a sampled token
    for coef in (0.0, 0.001, 0.7):
        got = token_rewards(rewards, old, mask, ref_logprobs=ref, kl_coef=coef)
        expected = torch.tensor(naive(rewards, old, ref, mask, coef), dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        assert (got[~mask] == 0).all()


@pytest.mark.parametrize("seed", range(20))
def test_whitened_advantages_equal_the_loop(seed: int) -> None:
    _, values, _, mask = ragged(seed)
    got = whiten(values, mask)
    inside = values[mask].tolist()
    mean, variance = statistics.fmean(inside), statistics.variance(inside)
    expected = [(x - mean) / math.sqrt(variance + 1e-8) for x in inside]
    assert got[mask].tolist() == pytest.approx(expected, abs=1e-12)
    assert (got[~mask] == 0).all()
    assert float(got[mask].mean()) == pytest.approx(0.0, abs=1e-12)


def test_advantages_without_a_contrast_whiten_to_nothing() -> None:
    mask = torch.tensor([[True, True, True, False]])
    assert whiten(torch.full((1, 4), 0.5), mask).tolist() == [[0.0] * 4]
    assert whiten(torch.full((1, 4), 0.5), mask & torch.tensor([[True, False, False, False]])).tolist() == [[0.0] * 4]
    assert whiten(torch.full((1, 4), torch.nan), torch.zeros(1, 4, dtype=torch.bool)).tolist() == [[0.0] * 4]


def test_the_kl_of_a_rollout_is_in_its_return() -> None:
    """γ = λ = 1 and no value: a token's advantage is the reward minus the KL that is still to come."""
    mask = torch.tensor([[True, False, True]])
    old, ref = torch.tensor([[-1.0, 9.0, -2.0]]), torch.tensor([[-3.0, 9.0, -1.0]])
    rewards = token_rewards(torch.tensor([[1.0]]), old, mask, ref_logprobs=ref, kl_coef=0.1)
    advantages, _ = gae_advantages(rewards, torch.zeros(1, 3), mask)
    assert advantages[0].tolist() == pytest.approx([1 - 0.2 + 0.1, 0.0, 1 + 0.1])


def test_half_precision_is_computed_in_float32() -> None:
    half, mask = torch.full((1, 3), -0.5, dtype=torch.bfloat16), torch.ones(1, 3, dtype=torch.bool)
    assert token_rewards(torch.ones(1, 1), half, mask).dtype == torch.float32
    assert whiten(half, mask).dtype == torch.float32
    assert token_rewards(torch.ones(1, 1), half.double(), mask).dtype == torch.float64


def test_arguments_that_cannot_work_are_refused() -> None:
    old, mask = torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)
    one = torch.ones(1, 1)
    with pytest.raises(ValueError, match="needs ref_logprobs"):
        token_rewards(one, old, mask, kl_coef=0.1)
    for coef in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be a number from 0 on"):
            token_rewards(one, old, mask, ref_logprobs=old, kl_coef=coef)
    with pytest.raises(ValueError, match="one value per row"):
        token_rewards(torch.ones(1), old, mask)
    with pytest.raises(ValueError, match="must be above 0"):
        whiten(old, mask, eps=0.0)
    with pytest.raises(TypeError, match="must be bool"):
        whiten(old, mask.float())
