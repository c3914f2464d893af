"""Losses, masks and reductions against numbers worked out by hand."""

import math

import pytest
import torch

from holdfast.losses import (
    action_ids_from_mask,
    clipped_policy_loss,
    kl_loss,
    nll_loss,
    preserved_mask,
    reduce_loss,
    sapo_penalty,
)

LOG2 = math.log(2)


def clipped(log_ratio, a, mask=None, **options):
    """Loss and gradient for given log-ratios of one row; old is −1 everywhere."""
    x = torch.tensor([log_ratio], dtype=torch.float64)
    lp = (x - 1).requires_grad_()
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else torch.tensor([mask]).bool()
    loss = clipped_policy_loss(lp, torch.full_like(x, -1), torch.tensor([[a]], dtype=torch.float64), mask, **options)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    return loss[0].tolist(), grad[0].tolist()


def test_golden():
    # ratios 2, 1/2, 1.1, 1 with A = 3:  −3·min(2, 1.2), −3·1/2, −3·1.1, −3
    # with A = −3: 3·2, 3·max(1/2, .8), 3·1.1, 3
    x = [LOG2, -LOG2, math.log(1.1), 0.0]
    loss, grad = clipped(x, 3.0)
    assert loss == pytest.approx([-3.6, -1.5, -3.3, -3.0])
    assert grad == pytest.approx([0.0, -1.5, -3.3, -3.0])  # the clipped token has no gradient
    loss, grad = clipped(x, -3.0)
    assert loss == pytest.approx([6.0, 2.4, 3.3, 3.0])
    assert grad == pytest.approx([6.0, 0.0, 3.3, 3.0])
    assert clipped([LOG2 + 0.01, -LOG2, 0.0, 0.0], -3.0)[0] != pytest.approx([6.0, 2.4, 3.0, 3.0])


def test_clip_higher_moves_only_the_upper_bound():
    assert clipped([LOG2, -LOG2], 1.0, clip_high=0.28)[0] == pytest.approx([-1.28, -0.5])
    assert clipped([LOG2, -LOG2], -1.0, clip_high=0.28)[0] == pytest.approx([2.0, 0.8])
    assert clipped([-LOG2], -1.0, clip_low=0.3)[0] == pytest.approx([0.7])


def test_dual_clip_bounds_the_explosion_of_negative_tokens_only():
    # ratio 8: A = −1 pays 8 unclipped, 3 with dual clip 3 and no gradient; A = +1 stays at −1.2
    assert clipped([3 * LOG2], -1.0) == (pytest.approx([8.0]), pytest.approx([8.0]))
    assert clipped([3 * LOG2], -1.0, dual_clip=3.0) == (pytest.approx([3.0]), pytest.approx([0.0]))
    assert clipped([LOG2], -1.0, dual_clip=3.0)[0] == pytest.approx([2.0])
    assert clipped([3 * LOG2], 1.0, dual_clip=3.0)[0] == pytest.approx([-1.2])


def test_sequence_ratio_is_the_geometric_mean_and_each_token_keeps_its_own_gradient():
    # log-ratios ln 2 and 0: s = 2**0.5 = 1.414; A = −1: loss 1.414 on both tokens, gradient 1.414 on both
    loss, grad = clipped([LOG2, 0.0, 5.0], -1.0, mask=[1, 1, 0], ratio="sequence")
    assert loss == pytest.approx([2**0.5, 2**0.5, 0.0])
    assert grad == pytest.approx([2**0.5, 2**0.5, 0.0])
    # A = +1: the whole sequence is clipped at 1.2
    loss, grad = clipped([LOG2, 0.0], 1.0, ratio="sequence")
    assert loss == pytest.approx([-1.2, -1.2]) and grad == [0.0, 0.0]
    assert clipped([LOG2, 0.0], 1.0)[0] == pytest.approx([-1.2, -1.0])  # per token, only the first is


def test_the_log_ratio_is_clamped_at_twenty():
    loss, grad = clipped([19.0, 21.0, 400.0, -400.0], -1.0)
    assert loss == pytest.approx([math.exp(19), math.exp(20), math.exp(20), 0.8])
    assert grad == pytest.approx([math.exp(19), 0.0, 0.0, 0.0])
    loss, grad = clipped([30.0, 30.0], -1.0, ratio="sequence")
    assert loss == pytest.approx([math.exp(20)] * 2) and grad == [0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, "clip_low=-0.1"),
        ({"clip_low": 1.5}, "clip_low=1.5"),
        ({"clip_high": -0.1}, "clip_high=-0.1"),
        ({"clip_high": float("nan")}, "clip_high=nan"),
        ({"dual_clip": 1.0}, "dual_clip=1.0 must be above 1"),
        ({"ratio": "gspo"}, "ratio='gspo' does not exist; choose one of 'token', 'action', 'sequence'"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        clipped([0.0], 1.0, **options)


def test_nll_pulls_on_positive_rollouts_only():
    lp = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0]], requires_grad=True)
    a = torch.tensor([[0.5], [0.0], [-0.5]])
    loss = nll_loss(lp, a, torch.ones(3, 2, dtype=torch.bool))
    assert loss.tolist() == [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]
    loss.sum().backward()
    assert lp.grad.tolist() == [[-1.0, -1.0], [0.0, 0.0], [0.0, 0.0]]


# ---- SAPO


def sapo(drops, a=1.0, **options):
    x = torch.tensor([drops], dtype=torch.float64)
    lp = (-1 - x).requires_grad_()
    mask = torch.ones_like(x, dtype=torch.bool)
    a = torch.tensor([[a]], dtype=torch.float64)
    loss = sapo_penalty(lp, torch.full_like(x, -1), a, mask, **options)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    return loss[0].tolist(), grad[0].tolist()


def test_sapo_golden():
    # τ = .8: −ln .8 = .2231, so a drop of .2 does not count and one of .3 counts in full (a jump, not a hinge)
    assert sapo([0.3, 0.2, 0.0, -0.2])[0] == pytest.approx([0.3, 0.2, 0.0, 0.0])
    loss, grad = sapo([0.3, 0.2, 0.0, -0.2], tau=0.8)
    assert loss == pytest.approx([0.3, 0.0, 0.0, 0.0]) and grad == [-1.0, 0.0, 0.0, 0.0]
    assert sapo([0.3, 0.23, 0.0, -0.2], tau=0.8)[0] != pytest.approx([0.3, 0.0, 0.0, 0.0])


def test_above_one_tokens_that_rose_a_little_count_and_are_still_pushed_up():
    # τ = 1.2: ln 1.2 = .182
    loss, grad = sapo([0.0, -0.1, -0.2], tau=1.2)
    assert loss == pytest.approx([0.0, -0.1, 0.0]) and grad == [-1.0, -1.0, 0.0]


def test_the_paper_preserves_positive_advantages_only():
    assert sapo([0.3], a=0.0)[0] == [0.0]
    assert sapo([0.3], a=0.0, preserved=torch.tensor([[True]]))[0] == pytest.approx([0.3])
    assert sapo([0.3], a=1.0, preserved=torch.tensor([[False]]))[0] == [0.0]


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")])
def test_tau_must_be_positive_and_finite(tau):
    with pytest.raises(ValueError, match="tau="):
        sapo([0.3], tau=tau)


# ---- KL


def kl(x, estimator="k3", dtype=torch.float64):
    """Value and gradient for x = l_ref − l; the reference is at −1."""
    lp = torch.tensor([[-1 - v for v in x]], dtype=dtype).requires_grad_()
    ref = torch.full_like(lp, -1).detach()
    loss = kl_loss(lp, ref, torch.ones_like(lp, dtype=torch.bool), estimator=estimator)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    return loss[0].tolist(), grad[0].tolist()


def test_k3_golden():
    # x = .5: e^.5 − .5 − 1 = .14872, gradient 1 − e^.5 = −.64872
    # x = −.5: e^−.5 + .5 − 1 = .10653, gradient 1 − e^−.5 = .39347
    loss, grad = kl([0.5, -0.5, 0.0])
    assert loss == pytest.approx([0.14872, 0.10653, 0.0], abs=1e-5)
    assert grad == pytest.approx([-0.64872, 0.39347, 0.0], abs=1e-5)
    assert kl([0.51])[0] != pytest.approx([0.14872], abs=1e-5)


def test_k2_golden():
    loss, grad = kl([0.5, -2.0, 0.0], "k2")
    assert loss == [0.125, 2.0, 0.0] and grad == [-0.5, 2.0, 0.0]


def test_k3_is_clamped_above_twenty_and_keeps_its_pull_below():
    loss, grad = kl([19.0, 25.0, -25.0])
    assert loss == pytest.approx([math.exp(19) - 20, math.exp(20) - 21, math.exp(-25) + 24])
    assert grad == pytest.approx([1 - math.exp(19), 0.0, 1.0])
    assert all(math.isfinite(v) for v in kl([1e30, -1e30])[0])


def test_k3_keeps_small_values_in_float32():
    x = 2**-12  # x² / 2 = 2.98e-8; exp(x) − x − 1 in float32 gives 0 or 1.2e-7
    lp = torch.tensor([[-x]])
    loss = kl_loss(lp, torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert loss.item() == pytest.approx(x * x / 2, rel=0.01)


def test_the_mean_of_k3_over_the_policy_is_the_kl():
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    k3 = kl_loss(p.log()[None], q.log()[None], torch.ones(1, 3, dtype=torch.bool))[0]
    assert (p * k3).sum().item() == pytest.approx((p * (p / q).log()).sum().item())
    assert (q * k3).sum().item() != pytest.approx((p * (p / q).log()).sum().item())


def test_k1_is_refused_with_its_reason():
    with pytest.raises(ValueError, match=r"zero expected gradient.*'k3' or 'k2'.*reward"):
        kl([0.0], "k1")
    with pytest.raises(ValueError, match="estimator='k4' does not exist"):
        kl([0.0], "k4")


# ---- what is preserved


# positive and right; positive, not right (partial credit); 0, right; 0, wrong; negative but right; NaN
ADVANTAGES = torch.tensor([[1.0], [0.5], [0.0], [0.0], [-0.5], [float("nan")]])
RIGHT = torch.tensor([[True], [False], [True], [False], [True], [True]])
BOTH = torch.ones(6, 2, dtype=torch.bool)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("nonnegative", [True, True, True, True, False, False]),
        ("positive", [True, True, False, False, False, False]),
        ("correct", [True, True, True, False, False, False]),
        ("all", [True, True, True, True, True, False]),
    ],
)
def test_rules(rule, kept):
    got = preserved_mask(ADVANTAGES, BOTH, rule=rule, correct=RIGHT)
    assert got.dtype == torch.bool and got.tolist() == [[k, k] for k in kept]


def test_nothing_outside_the_loss_mask_is_preserved():
    mask = torch.tensor([[True, False]])
    assert preserved_mask(torch.ones(1, 1), mask).tolist() == [[True, False]]
    assert preserved_mask(torch.ones(2), torch.tensor([True, False])).tolist() == [True, False]


def test_bad_masks_are_refused():
    with pytest.raises(ValueError, match=r"rule='correct' needs.*pass correct"):
        preserved_mask(ADVANTAGES, BOTH, rule="correct")
    with pytest.raises(ValueError, match=r"correct has shape \[6\].*correct\[:, None\]"):
        preserved_mask(ADVANTAGES, BOTH, rule="correct", correct=RIGHT[:, 0])
    with pytest.raises(TypeError, match="correct must be bool"):
        preserved_mask(ADVANTAGES, BOTH, correct=RIGHT.float())  # refused even where the rule does not look at it
    with pytest.raises(ValueError, match="advantages has shape"):
        preserved_mask(ADVANTAGES[:, 0], BOTH)
    with pytest.raises(ValueError, match="rule='ADVANTAGES>0' does not exist"):
        preserved_mask(ADVANTAGES, BOTH, rule="ADVANTAGES>0")
    with pytest.raises(TypeError, match="loss_mask must be bool"):
        preserved_mask(ADVANTAGES, BOTH.float())


# ---- numbers of actions


def ids(rows, sequence_ids=None):
    mask = torch.tensor(rows).bool()
    return action_ids_from_mask(
        mask, sequence_ids=None if sequence_ids is None else torch.tensor(sequence_ids)
    ).tolist()


def test_runs_are_numbered_within_their_row():
    assert ids([[0, 1, 1, 0, 1, 0], [1, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]) == [
        [0, 1, 1, 0, 2, 0],
        [1, 0, 0, 2, 2, 2],
        [0, 0, 0, 0, 0, 0],
    ]


def test_adjacent_actions_merge_because_a_mask_cannot_tell_them_apart():
    assert ids([[0, 1, 1, 1, 1]]) == [[0, 1, 1, 1, 1]]


def test_packed_rows_break_and_restart_where_the_sequence_changes():
    # The run of four ones is two actions: the last of the first sequence and the first of the second.
    mask = [0, 1, 0, 1, 1, 1, 1, 0, 1]
    rows = [4, 4, 4, 4, 4, 9, 9, 9, 9]
    assert ids(mask, rows) == [0, 1, 0, 2, 2, 1, 1, 0, 2]
    assert ids([mask], [rows]) == [[0, 1, 0, 2, 2, 1, 1, 0, 2]]
    assert ids(mask) == [0, 1, 0, 2, 2, 2, 2, 0, 3]  # without ids the two would be one


def test_bad_runs_are_refused():
    with pytest.raises(TypeError, match="must be bool"):
        action_ids_from_mask(torch.tensor([[1, 0]]))
    with pytest.raises(ValueError, match="token dimension"):
        action_ids_from_mask(torch.tensor(True))
    with pytest.raises(ValueError, match="sequence_ids has shape"):
        ids([[1, 0]], [1, 0])
    with pytest.raises(TypeError, match="sequence_ids must be integers"):
        ids([1, 0], [1.0, 0.0])


# ---- reductions


X = torch.tensor([[4.0, 9.0, 9.0], [1.0, 2.0, 3.0], [9.0, 9.0, 9.0]])
MASK = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
SEQUENCE_MODES = ("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
MODES = ("token-mean", "token-sum", *SEQUENCE_MODES)


def options(mode):
    return {"mode": mode, "max_tokens": 10} if mode.endswith("norm") else {"mode": mode}


# tokens 4 | 1 2 3 | none: the empty row is no sequence
@pytest.mark.parametrize(
    ("mode", "value"),
    [
        ("token-mean", 10 / 4),
        ("token-sum", 10),
        ("seq-mean-token-sum", (4 + 6) / 2),
        ("seq-mean-token-mean", (4 + 2) / 2),
        ("seq-mean-token-sum-norm", (4 / 10 + 6 / 10) / 2),
    ],
)
def test_reductions_golden(mode, value):
    assert reduce_loss(X, MASK, **options(mode)).item() == pytest.approx(value)
    assert reduce_loss(X + 0.01, MASK, **options(mode)).item() != pytest.approx(value)


@pytest.mark.parametrize("mode", ["token-mean", *SEQUENCE_MODES])
@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_micro_batches_with_the_shared_denominator_add_up(mode, cut, as_tensor):
    mask = MASK | torch.tensor([[False], [False], [True]])  # 1, 3 and 3 tokens: no cut makes equal parts
    count = 7 if mode == "token-mean" else 3
    denominator = torch.tensor(count) if as_tensor else count
    whole = reduce_loss(X, mask, **options(mode))
    parts = [(X[:cut], mask[:cut]), (X[cut:], mask[cut:])]
    shared = sum(reduce_loss(x, m, denominator=denominator, **options(mode)) for x, m in parts)
    assert shared.item() == pytest.approx(whole.item())
    own = sum(reduce_loss(x, m, **options(mode)) for x, m in parts) / 2
    assert own.item() != pytest.approx(whole.item())


@pytest.mark.parametrize("mode", MODES)
def test_nothing_outside_the_mask_is_read(mode):
    poisoned = torch.where(MASK, X, float("nan")).requires_grad_()
    loss = reduce_loss(poisoned, MASK, **options(mode))
    assert loss.item() == pytest.approx(reduce_loss(X, MASK, **options(mode)).item())
    loss.backward()
    assert (poisoned.grad[~MASK] == 0).all() and (poisoned.grad[MASK] > 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("denominator", [None, 0, torch.tensor(0), torch.tensor(0.0)])
def test_an_empty_step_is_zero_with_a_graph(mode, denominator):
    x = X.clone().requires_grad_()
    given = {} if mode == "token-sum" else {"denominator": denominator}
    loss = reduce_loss(x, torch.zeros_like(MASK), **options(mode), **given)
    assert loss.item() == 0
    loss.backward()
    assert (x.grad == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_packed_equals_padded(mode):
    ids = torch.tensor([5, 5, 5, 2, 2, 2, 8, 8, 8])
    whole = reduce_loss(X, MASK, **options(mode)).item()
    assert reduce_loss(X.flatten(), MASK.flatten(), sequence_ids=ids, **options(mode)).item() == pytest.approx(whole)
    one_row = reduce_loss(X.reshape(1, 9), MASK.reshape(1, 9), sequence_ids=ids[None], **options(mode))
    assert one_row.item() == pytest.approx(whole)


@pytest.mark.parametrize("mode", SEQUENCE_MODES)
def test_packed_needs_sequence_ids(mode):
    with pytest.raises(ValueError, match=r"sums over each sequence.*sequence_ids"):
        reduce_loss(X[1], MASK[1], **options(mode))


def test_token_modes_need_none():
    assert reduce_loss(X[1], MASK[1]).item() == 2 and reduce_loss(X[1], MASK[1], mode="token-sum").item() == 6


def test_half_precision_is_summed_in_float32():
    x = torch.ones(1, 4096, dtype=torch.bfloat16)  # bfloat16 cannot count past 256
    total = reduce_loss(x, torch.ones_like(x, dtype=torch.bool), mode="token-sum")
    assert total.dtype == torch.float32 and total.item() == 4096
    assert reduce_loss(X.double(), MASK).dtype == torch.float64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "mean"}, "mode='mean' does not exist; choose one of 'token-mean'"),
        ({"mode": "token-sum", "denominator": 3}, "denominator would be ignored"),
        ({"denominator": -1}, "denominator=-1"),
        ({"denominator": float("nan")}, "denominator=nan"),
        ({"denominator": torch.ones(3)}, "denominator must be one number"),
        ({"max_tokens": 10}, "max_tokens=10 would be ignored by mode='token-mean'"),
        ({"mode": "seq-mean-token-sum-norm"}, "the padded width is not one; pass max_tokens"),
        ({"mode": "seq-mean-token-sum-norm", "max_tokens": 0}, "max_tokens=0 must be above 0"),
    ],
)
def test_reductions_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        reduce_loss(X, MASK, **given)


def test_shapes_and_dtypes_are_checked():
    with pytest.raises(TypeError, match="loss_mask must be bool"):
        reduce_loss(X, MASK.float())
    with pytest.raises(ValueError, match="loss_mask has shape"):
        reduce_loss(X, MASK[:2])
    with pytest.raises(ValueError, match="per_token must be floating point"):
        reduce_loss(X.long(), MASK)
