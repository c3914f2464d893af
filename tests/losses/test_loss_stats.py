import math

import pytest
import torch

from holdfast.losses import llds_penalty, merge_stats, penalty_stats, preserved_mask, ratio_stats

OLD = torch.zeros(3, 4)
MASK = torch.tensor([[True, True, True, False], [True, True, False, False], [True, False, False, False]])
A = torch.tensor([[1.0], [0.0], [-1.0]])
# drops .2 −.1 .4 | −.3 .1 | .5
# preserved: the first five; gates: row 1 open (.5), row 2 closed (−.2), row 3 not kept
LP = -torch.tensor([[0.2, -0.1, 0.4, 7.0], [-0.3, 0.1, 7.0, 7.0], [0.5, 7.0, 7.0, 7.0]])


def stats(rows=slice(None)):
    lp, old, a, mask = LP[rows], OLD[rows], A[rows], MASK[rows]
    preserve = preserved_mask(a, mask)
    penalty = llds_penalty(lp, old, a, mask)
    return {k: v.item() for k, v in penalty_stats(penalty, lp, old, mask, preserved=preserve).items()}


def test_penalty_stats_golden():
    assert stats() == pytest.approx({
        "penalty/preserved_fraction": 5 / 6,
        "penalty/active_fraction": 2 / 5,  # tokens .2 and .4
        "penalty/mean_decrease": (0.2 + 0.4 + 0.1) / 5,  # the drop behind the closed gate is a drop all the same
        "count/tokens": 6,
        "count/preserved": 5,
    })  # fmt: skip


def test_active_fraction_counts_preserved_tokens_only():
    preserve = preserved_mask(A, MASK, rule="positive")  # the first three
    got = penalty_stats(torch.ones(3, 4), LP, OLD, MASK, preserved=preserve)  # a pull everywhere, even outside the mask
    assert got["penalty/active_fraction"].item() == 1 and got["count/preserved"].item() == 3


def test_ratio_stats_golden():
    got = {k: v.item() for k, v in ratio_stats(LP, OLD, A, MASK).items()}
    ratios = [math.exp(x) for x in (-0.2, 0.1, -0.4, 0.3, -0.1, -0.5)]
    assert got == pytest.approx({
        "ratio/mean": sum(ratios) / 6,
        "ratio/max": math.exp(0.3),
        "ratio/p01": math.exp(-0.5),
        "ratio/log_product": (-0.5 + 0.2 - 0.5) / 3,
        "clip/fraction": 1 / 6,  # A = 1 is clipped above 1.2 only; A = 0 never; A = −1 at e^−.5 < .8
        "count/tokens": 6,
        "count/sequences": 3,
    })  # fmt: skip
    assert ratio_stats(LP, OLD, A, MASK, clip_low=0.5)["clip/fraction"].item() == 0
    assert ratio_stats(LP, OLD, -A, MASK, clip_low=0.3)["clip/fraction"].item() == pytest.approx(1 / 6)


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


def test_statistics_carry_no_graph():
    lp = LP.clone().requires_grad_()
    penalty = llds_penalty(lp, OLD, A, MASK)
    got = penalty_stats(penalty, lp, OLD, MASK, preserved=preserved_mask(A, MASK)) | ratio_stats(lp, OLD, A, MASK)
    assert not any(v.requires_grad for v in got.values())


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="ratio_stats sums over each sequence"):
        ratio_stats(LP[0], OLD[0], A[0], MASK[0])
    with pytest.raises(TypeError, match="preserved must be bool"):
        penalty_stats(LP, LP, OLD, MASK, preserved=A)
    with pytest.raises(ValueError, match="penalty has shape"):
        penalty_stats(LP[:, :2], LP, OLD, MASK, preserved=A >= 0)
    with pytest.raises(ValueError, match="at least one dict"):
        merge_stats([])
    with pytest.raises(ValueError, match="same keys"):
        merge_stats([{"count/tokens": torch.tensor(1)}, {}])
    with pytest.raises(ValueError, match="'reward/mean'"):
        merge_stats([{"reward/mean": torch.tensor(1.0)}])
