"""Drift by the sign of the advantage and by kind of token, against loops over plain numbers."""

import math
import random

import pytest
import torch

from holdfast.losses import drift_stats, logged_stats, merge_stats

KINDS = ("thought", "query", "answer")
EPSILONS = {"half": 0.5, "tenth": 0.1, "hundredth": 0.01}


def random_batch(seed, rows=9, width=14):
    """Tensors of `drift_stats`, float64: rows with and without tokens, every sign, all kinds."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[seed % rows] = False
    kind = torch.randint(0, 3, (rows, width), generator=g)
    new, old = (torch.randn(rows, width, generator=g, dtype=torch.float64) * 0.9 - 2 for _ in range(2))
    advantages = torch.randint(-1, 2, (rows, 1), generator=g).double() * 1.3
    return new, old, advantages, mask, kind == 1, kind == 2


def loops(new, old, advantages, mask, query, answer):
    """The same series from lists of numbers."""
    found = {}
    for sign, of in (("positive", lambda a: a > 0), ("negative", lambda a: a < 0)):
        rollouts = []
        for row in range(len(mask)):
            places = [t for t in range(mask.shape[1]) if mask[row, t]]
            a = float(advantages[row, 0])
            if places and of(a):
                kinds = [2 if answer[row, t] else 1 if query[row, t] else 0 for t in places]
                rollouts.append(([float(new[row, t]) - float(old[row, t]) for t in places], kinds))
        n = len(rollouts)
        found[f"count/{sign}"] = n
        found[f"drift/{sign}"] = sum(sum(x) / len(x) for x, _ in rollouts) / max(n, 1)
        found[f"ratio/log_product/{sign}"] = sum(sum(x) for x, _ in rollouts) / max(n, 1)
        for name, epsilon in EPSILONS.items():
            low = [math.prod(map(math.exp, x)) < epsilon for x, _ in rollouts]
            found[f"isdd/{sign}/below_{name}"] = sum(low) / max(n, 1)
        every = [change for x, _ in rollouts for change in x]
        found[f"count/{sign}_tokens"] = len(every)
        found[f"ratio/below_one/{sign}"] = sum(math.exp(change) < 1 for change in every) / max(len(every), 1)
        for k, kind in enumerate(KINDS):
            tokens = [change for x, kinds in rollouts for change, mine in zip(x, kinds, strict=True) if mine == k]
            found[f"count/{sign}_{kind}"] = len(tokens)
            found[f"drift/{sign}/{kind}"] = sum(tokens) / max(len(tokens), 1)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_against_loops(seed):
    new, old, advantages, mask, query, answer = batch = random_batch(seed)
    expected = loops(*batch)
    shown = advantages if seed % 2 else advantages.expand_as(new)
    got = drift_stats(new.requires_grad_(), old, shown, mask, query_mask=query, answer_mask=answer)
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.dim() == 0 and not value.requires_grad
        assert value.item() == pytest.approx(expected[name], abs=1e-12), name


@pytest.mark.parametrize("seed", range(5))
def test_kinds_add_up_to_the_rollouts(seed):
    new, old, advantages, mask, query, answer = random_batch(seed)
    got = drift_stats(new, old, advantages, mask, query_mask=query, answer_mask=answer)
    for sign in ("positive", "negative"):
        parts = sum(got[f"drift/{sign}/{kind}"] * got[f"count/{sign}_{kind}"] for kind in KINDS)
        whole = got[f"ratio/log_product/{sign}"] * got[f"count/{sign}"]
        assert parts.item() == pytest.approx(whole.item(), abs=1e-12)


def test_micro_batches_add_up():
    batch = random_batch(3)
    names = ("query_mask", "answer_mask")

    def of(rows):
        *tensors, query, answer = (x[rows] for x in batch)
        return drift_stats(*tensors, **dict(zip(names, (query, answer), strict=True)))

    whole, merged = of(slice(None)), merge_stats([of(slice(0, 2)), of(slice(2, 7)), of(slice(7, 9))])
    assert all(merged[name].item() == pytest.approx(whole[name].item(), abs=1e-12) for name in whole)


def test_what_counts_nothing_is_not_logged():
    new, old, _, mask, query, _ = random_batch(0)
    got = drift_stats(new, old, torch.ones(9, 1), mask, query_mask=query, answer_mask=torch.zeros_like(mask))
    logged = logged_stats(merge_stats([got]))
    assert logged.keys() == {
        "drift/positive", "drift/positive/thought", "drift/positive/query", "ratio/log_product/positive",
        "ratio/below_one/positive",
        "isdd/positive/below_half", "isdd/positive/below_tenth", "isdd/positive/below_hundredth",
    }  # fmt: skip
    assert "drift/positive/thought" not in drift_stats(new, old, torch.ones(9, 1), mask)


def test_nothing_leaks_from_under_the_mask():
    rng = random.Random(1)
    new, old, advantages, mask, query, answer = random_batch(1)
    expected = drift_stats(new, old, advantages, mask, query_mask=query, answer_mask=answer)
    for x in (new, old):
        x[~mask] = rng.choice([math.nan, math.inf, -math.inf])
    got = drift_stats(new, old, advantages, mask, query_mask=query, answer_mask=answer)
    assert all(got[name].item() == expected[name].item() for name in expected)


def test_bad_input_is_refused():
    new, old, advantages, mask, query, _ = random_batch(2)
    with pytest.raises(TypeError, match="query_mask must be bool"):
        drift_stats(new, old, advantages, mask, query_mask=query.long(), answer_mask=mask)
    with pytest.raises(ValueError, match="old_logprobs has shape"):
        drift_stats(new, old[:, :3], advantages, mask)
    with pytest.raises(ValueError, match="advantages has shape"):
        drift_stats(new, old, advantages[:, 0], mask)
