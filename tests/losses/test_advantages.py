from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from torch import Tensor

from holdfast.losses import group_advantages, reinforce_advantages, token_rewards, whiten
from holdfast.losses.advantages import MAX_REWARD


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 2e15, -3e38])
def test_a_reward_that_is_no_number_is_refused_unless_its_row_is_not_valid(reward):
    for advantages in (
        lambda r, v: group_advantages(r, torch.tensor([0, 0, 1, 1]), valid=v),
        lambda r, v: reinforce_advantages(r, valid=v),
    ):
        rewards = torch.tensor([1.0, 0.0, reward, 1.0])
        with pytest.raises(
            ValueError, match=r"rewards\[2\] = .*, which gives no advantage: it must be between -1e\+15 and"
        ):
            advantages(rewards, None)
        a = advantages(rewards, torch.tensor([True, True, False, True]))
        assert a.isfinite().all() and a[2] == 0


@pytest.mark.parametrize("size", [2, 500])
def test_the_largest_rewards_give_the_advantages_of_ones(size):
    ones = torch.tensor([1.0] + [-1.0] * (size - 1))
    ids = torch.zeros(size, dtype=torch.long)
    large, small = group_advantages(ones * MAX_REWARD, ids), group_advantages(ones, ids)
    torch.testing.assert_close(large, small, rtol=0.01, atol=0)  # float32 rounds the mean


@pytest.mark.parametrize("reward", [0.1, -0.7])
@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_give_exactly_zero(reward, size, scale):
    advantages = group_advantages(torch.full((size,), reward), torch.zeros(size, dtype=torch.long), scale=scale)
    assert advantages.tolist() == [[0.0]] * size


def test_eps_is_added_to_the_standard_deviation_and_half_precision_is_computed_in_float32():
    rewards = torch.tensor([1.0, 0.0], dtype=torch.bfloat16, requires_grad=True)
    advantages = group_advantages(rewards, torch.zeros(2, dtype=torch.long), eps=1.0)
    assert advantages.dtype == torch.float32 and not advantages.requires_grad
    assert advantages[:, 0].tolist() == pytest.approx([0.5 / (0.5**0.5 + 1), -0.5 / (0.5**0.5 + 1)])


def test_reinforce():
    rewards = torch.tensor([1.0, 0.0, float("nan")])
    valid = torch.tensor([True, True, False])
    assert reinforce_advantages(rewards, valid=valid).tolist() == [[1.0], [0.0], [0.0]]


def naive_group_advantages(rewards, groups, valid, scale, lengths, eps=1e-6):
    out = []
    for r, g, v in zip(rewards, groups, valid, strict=True):
        others = [k for k, (h, ok) in enumerate(zip(groups, valid, strict=True)) if h == g and ok]
        theirs = [rewards[k] for k in others]
        if not v:
            out.append(0.0)
        elif groups.count(g) == 1:
            out.append(r)
        elif max(theirs) == min(theirs):
            out.append(0.0)
        else:
            mean = baseline = sum(theirs) / len(theirs)
            if tokens := sum(lengths[k] for k in others):  # OPO's
                baseline = sum(lengths[k] * rewards[k] for k in others) / tokens
            std = math.sqrt(sum((x - mean) ** 2 for x in theirs) / (len(theirs) - 1))
            out.append((r - baseline) / (std + eps) if scale else r - baseline)
    return out


def test_group_advantages_equal_the_loop():
    for seed in range(150):
        rng = random.Random(seed)
        n = rng.randint(1, 12)
        rewards = [rng.choice((0.0, 0.1, 1.0, rng.random())) for _ in range(n)]
        groups = [rng.choice((3, -5, 900, 17)) for _ in range(n)]
        valid = [rng.random() < 0.8 for _ in range(n)]
        lengths = rng.choice((None, [rng.choice((0, 0, rng.randint(1, 40))) for _ in range(n)]))
        poisoned = [r if v else math.nan for r, v in zip(rewards, valid, strict=True)]
        for scale in (True, False):
            got = group_advantages(
                torch.tensor(poisoned, dtype=torch.float64),
                torch.tensor(groups),
                scale=scale,
                lengths=None if lengths is None else torch.tensor(lengths),
                valid=torch.tensor(valid),
            )
            want = naive_group_advantages(rewards, groups, valid, scale, lengths or [1] * n)
            torch.testing.assert_close(got[:, 0], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-6)


# ---- rewards of tokens


def ragged(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rewards [4, 1], old and reference log-probs [4, 9], and a mask whose last row is empty; poison outside it."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(4, 9, generator=g) < 0.5
    mask[0], mask[3] = True, False
    old, ref = (torch.where(mask, -torch.rand(4, 9, generator=g).double(), torch.nan) for _ in range(2))
    return torch.randn(4, 1, generator=g).double(), old, ref, mask


def naive_token_rewards(rewards: Tensor, old: Tensor, ref: Tensor, mask: Tensor, coef: float) -> list[list[float]]:
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


@pytest.mark.parametrize("seed", range(6))
def test_rewards_of_tokens_equal_the_loop(seed: int) -> None:
    rewards, old, ref, mask = ragged(seed)
    rewards[3] = torch.nan  # of a rollout without a sampled token
    for coef in (0.0, 0.001, 0.7):
        got = token_rewards(rewards, old, mask, ref_logprobs=ref, kl_coef=coef)
        expected = torch.tensor(naive_token_rewards(rewards, old, ref, mask, coef), dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
        assert (got[~mask] == 0).all()


@pytest.mark.parametrize("seed", range(6))
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
