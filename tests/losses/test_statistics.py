import math

import pytest
import torch

from holdfast.losses import (
    drift_stats,
    llds_penalty,
    logged_stats,
    merge_stats,
    penalty_stats,
    preserved_mask,
    ratio_stats,
)

OLD = torch.zeros(3, 4)
MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [True, False, False, False]])
A = torch.tensor([[1.0], [0.0], [-1.0]])
# drops .2 −.1 .4 | −.3 .1 | .5
# preserved: the first five; gates: row 1 open (.5), row 2 closed (−.2), row 3 not kept
LP = -torch.tensor([[0.2, -0.1, 0.4, 7.0], [-0.3, 0.1, 7.0, 7.0], [0.5, 7.0, 7.0, 7.0]])


def test_sequence_ratio_stats():
    # log s: −.5/3, .1, −.5
    got = ratio_stats(LP, OLD, A, MASK, ratio="sequence")
    mean = (3 * math.exp(-0.5 / 3) + 2 * math.exp(0.1) + math.exp(-0.5)) / 6
    assert got["ratio/mean"].item() == pytest.approx(mean)
    assert got["ratio/log_product"].item() == pytest.approx((-0.5 + 0.2 - 0.5) / 3)  # a property of the tokens


def test_p01_is_the_low_percentile_of_the_mask_only():
    lp = -torch.arange(1000.0).view(1, -1) / 1000
    mask = torch.ones(1, 1000, dtype=torch.bool)
    mask[:, 500:] = False  # 500 tokens, ranks 0 … 499: the value at rank 4 from below
    got = ratio_stats(lp, torch.zeros(1, 1000), torch.ones(1, 1), mask)["ratio/p01"].item()
    assert got == pytest.approx(math.exp(-0.495))
    assert got != pytest.approx(math.exp(-0.496), rel=1e-6)


def test_p01_of_a_ratio_that_is_nan_is_nan():
    lp = torch.full((1, 4), math.nan)
    mask = torch.tensor([[True, True, False, False]])
    stats = ratio_stats(lp, torch.zeros(1, 4), torch.ones(1, 1), mask)
    assert stats["ratio/p01"].isnan() and stats["ratio/mean"].isnan()
    outside = torch.where(mask, 0.0, math.nan)
    assert ratio_stats(outside, torch.zeros(1, 4), torch.ones(1, 1), mask)["ratio/p01"].item() == 1


def test_merged_micro_batches_equal_one_batch_but_for_the_percentile():
    def both(rows):
        preserve = preserved_mask(A[rows], MASK[rows])
        penalty = llds_penalty(LP[rows], OLD[rows], A[rows], MASK[rows])
        return penalty_stats(penalty, LP[rows], OLD[rows], MASK[rows], preserved=preserve) | ratio_stats(
            LP[rows], OLD[rows], A[rows], MASK[rows]
        )

    whole, parts = both(slice(None)), [both(slice(0, 1)), both(slice(1, 3))]
    merged = merge_stats(parts)
    assert merged.keys() == whole.keys()
    for name in whole.keys() - {"ratio/p01"}:
        assert merged[name].item() == pytest.approx(whole[name].item()), name
    plain = (parts[0]["penalty/mean_decrease"] + parts[1]["penalty/mean_decrease"]) / 2
    assert plain.item() != pytest.approx(whole["penalty/mean_decrease"].item())
    # p01: (3 · e^−.4 + 3 · e^−.5) / 6
    assert merged["ratio/p01"].item() == pytest.approx((math.exp(-0.4) + math.exp(-0.5)) / 2)


def test_an_empty_batch_gives_zeros_and_merges_without_weight():
    empty = ratio_stats(LP, OLD, A, torch.zeros_like(MASK))
    assert all(v.item() == 0 for v in empty.values())
    full = ratio_stats(LP, OLD, A, MASK)
    merged = merge_stats([empty, full])
    assert all(merged[k].item() == pytest.approx(full[k].item()) for k in full)


# ---- drift by the sign of the advantage and by kind of token


KINDS = ("thought", "query", "answer")
EPSILONS = {"half": 0.5, "tenth": 0.1, "hundredth": 0.01}


def random_batch(seed, rows=9, width=14):
    """Tensors of `drift_stats`, float64: rows with and without tokens, every sign, all kinds; poison under the mask."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=g) < 0.7
    mask[seed % rows] = False
    kind = torch.randint(0, 3, (rows, width), generator=g)
    drawn = (torch.randn(rows, width, generator=g, dtype=torch.float64) * 0.9 - 2 for _ in range(2))
    new, old = (torch.where(mask, x, (math.nan, math.inf, -math.inf)[seed % 3]) for x in drawn)
    advantages = torch.randint(-1, 2, (rows, 1), generator=g).double() * 1.3
    return new, old, advantages, mask, kind >= 1, kind == 2  # an answer is no query


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
        for k, kind in enumerate(KINDS):
            tokens = [change for x, kinds in rollouts for change, mine in zip(x, kinds, strict=True) if mine == k]
            found[f"count/{sign}_{kind}"] = len(tokens)
            found[f"drift/{sign}/{kind}"] = sum(tokens) / max(len(tokens), 1)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_against_loops(seed):
    new, old, advantages, mask, query, answer = batch = random_batch(seed)
    expected = loops(*batch)
    shown = advantages if seed % 2 else advantages.expand_as(new)
    got = drift_stats(new.requires_grad_(), old, shown, mask, query_mask=query, answer_mask=answer)
    assert got.keys() == expected.keys()
    for name, value in got.items():
        assert value.dim() == 0 and not value.requires_grad
        assert value.item() == pytest.approx(expected[name], abs=1e-12), name


def test_what_counts_nothing_is_not_logged():
    new, old, _, mask, query, _ = random_batch(0)
    got = drift_stats(new, old, torch.ones(9, 1), mask, query_mask=query, answer_mask=torch.zeros_like(mask))
    logged = logged_stats(merge_stats([got]))
    assert logged.keys() == {
        "drift/positive", "drift/positive/thought", "drift/positive/query", "ratio/log_product/positive",
        "isdd/positive/below_half", "isdd/positive/below_tenth", "isdd/positive/below_hundredth",
    }  # fmt: skip
    assert "drift/positive/thought" not in drift_stats(new, old, torch.ones(9, 1), mask)
