"""What every loss and penalty promises beside its formula, tested on all of them at once. Values and gradients are
compared with loops in test_losses_differential.py."""

from __future__ import annotations

import pytest
import torch

from holdfast.losses import (
    cispo_loss,
    clipped_policy_loss,
    kl_loss,
    llds_penalty,
    merge_stats,
    nll_loss,
    penalty_stats,
    preserved_mask,
    ratio_stats,
    reduce_loss,
    sapo_penalty,
    score_centering_loss,
)

# name -> f(logprobs, old, advantages, mask) of one shape, so that each promise is one test
LOSSES = {
    "clipped token": lambda lp, old, a, m: clipped_policy_loss(lp, old, a, m),
    "clipped sequence": lambda lp, old, a, m: clipped_policy_loss(lp, old, a, m, ratio="sequence"),
    "clipped action": lambda lp, old, a, m: clipped_policy_loss(lp, old, a, m, ratio="action"),
    "cispo": lambda lp, old, a, m: cispo_loss(lp, old, a, m, clip_high=0.1),
    "dual clip": lambda lp, old, a, m: clipped_policy_loss(lp, old, a, m, dual_clip=3.0),
    "k3": lambda lp, old, a, m: kl_loss(lp, old, m),
    "k2": lambda lp, old, a, m: kl_loss(lp, old, m, estimator="k2"),
    "nll": lambda lp, old, a, m: nll_loss(lp, a, m),
    "score centering": lambda lp, old, a, m: score_centering_loss(lp, old, a, m),
    "llds action": lambda lp, old, a, m: llds_penalty(lp, old, a, m),
    "llds response": lambda lp, old, a, m: llds_penalty(lp, old, a, m, gate="response"),
    "lld": lambda lp, old, a, m: llds_penalty(lp, old, a, m, gate="token"),
    "llds answers": lambda lp, old, a, m: llds_penalty(lp, old, a, m, answer_mask=m, answer_weight=0.5),
    "llds threshold": lambda lp, old, a, m: llds_penalty(lp, old, a, m, threshold=0.01),
    "sapo": lambda lp, old, a, m: sapo_penalty(lp, old, a, m),
    "sapo 0.8": lambda lp, old, a, m: sapo_penalty(lp, old, a, m, tau=0.8),
}
PENALTIES = ["llds action", "llds response", "lld", "llds answers", "llds threshold", "sapo", "sapo 0.8"]
SUM_OVER_SEQUENCES = [
    "clipped action",
    "clipped sequence",
    "llds action",
    "llds response",
    "llds answers",
    "llds threshold",
]
every_loss = pytest.mark.parametrize("name", LOSSES)


def batch(dtype=torch.float64, device="cpu", seed=0):
    """[3, 9]: rows with two actions, one action, and no action; every loss is non-zero somewhere."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.tensor(
        [[0, 1, 1, 0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 1, 1, 0, 0, 0], [0] * 9],
    ).bool()
    old = -torch.rand(3, 9, generator=g, dtype=torch.float64) - 0.5
    lp = old - 0.3 * torch.randn(3, 9, generator=g, dtype=torch.float64) - 0.1
    a = torch.tensor([[1.5], [0.5], [-1.0]], dtype=torch.float64)
    return lp.to(device, dtype), old.to(device, dtype), a.to(device, dtype), mask.to(device)


def value_and_grad(name, lp, old, a, mask):
    lp = lp.clone().requires_grad_()
    loss = LOSSES[name](lp, old, a, mask)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    return loss.detach(), grad


@every_loss
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_poison_under_the_mask_changes_nothing(name, poison):
    lp, old, a, mask = batch()
    clean = value_and_grad(name, lp, old, a, mask)
    bad = [torch.where(mask, x, poison) for x in (lp, old, a.expand_as(lp))]
    for x, y in zip(clean, value_and_grad(name, *bad, mask), strict=True):
        assert torch.equal(x, y)
    per_row = a.masked_fill(~mask.any(-1, keepdim=True), poison)  # a row without tokens may have any advantage
    for x, y in zip(clean, value_and_grad(name, lp, old, per_row, mask), strict=True):
        assert torch.equal(x, y)


@every_loss
def test_leading_dimensions_are_free(name):
    lp, old, a, mask = batch()
    flat = LOSSES[name](lp, old, a, mask)
    stacked = [torch.stack([x, x]) for x in (lp, old, a, mask)]
    assert torch.equal(LOSSES[name](*stacked), torch.stack([flat, flat]))


@pytest.mark.parametrize("name", SUM_OVER_SEQUENCES)
def test_tokens_that_are_no_rows_are_refused(name):
    lp, old, a, mask = batch()
    tokens = [x.flatten() for x in (lp, old, a.expand_as(lp), mask)]
    with pytest.raises(ValueError, match=r"sums over each sequence.*\[1, T\]"):
        LOSSES[name](*tokens)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("k3", "k2")])
@pytest.mark.parametrize("shape", [(3,), (1, 9), (3, 9, 1)])
def test_other_advantage_shapes_are_refused(name, shape):
    lp, old, _, mask = batch()
    with pytest.raises(ValueError, match="advantages has shape"):
        LOSSES[name](lp, old, torch.ones(shape, dtype=lp.dtype), mask)


@every_loss
def test_other_shapes_and_dtypes_are_refused(name):
    lp, old, a, mask = batch()
    with pytest.raises(TypeError, match=r"loss_mask must be bool.*loss_mask\.bool\(\)"):
        LOSSES[name](lp, old, a, mask.float())
    with pytest.raises(ValueError, match="loss_mask has shape"):
        LOSSES[name](lp, old, a, mask[:, :5])
    with pytest.raises(TypeError, match="floating point"):
        LOSSES[name](lp.long(), old, a, mask)
    with pytest.raises(ValueError, match="token dimension"):
        LOSSES[name](lp[0, 0], old, a, mask[0, 0])
    if name != "nll":
        with pytest.raises(ValueError, match=r"(logprobs|old_log_mass) has shape"):
            LOSSES[name](lp, old[:, :5], a, mask)


@every_loss
def test_float64_stays_and_half_is_computed_in_float32(name):
    assert LOSSES[name](*batch()).dtype == torch.float64
    assert LOSSES[name](*batch(torch.float32)).dtype == torch.float32
    for half in (torch.bfloat16, torch.float16):
        lp, old, a, mask = batch(half)
        loss, grad = value_and_grad(name, lp, old, a, mask)
        assert loss.dtype == torch.float32 and grad.dtype == half
        assert torch.equal(loss, LOSSES[name](lp.float(), old.float(), a.float(), mask))
    lp, old, a, mask = batch(torch.float32)
    assert LOSSES[name](lp, old.double(), a.double(), mask).dtype == torch.float32


@every_loss
def test_old_and_advantages_are_detached(name):
    lp, old, a, mask = batch()
    inputs = [x.clone().requires_grad_() for x in (lp, old, a)]
    LOSSES[name](*inputs, mask).sum().backward()
    assert inputs[0].grad is not None
    assert inputs[1].grad is None and inputs[2].grad is None


@every_loss
def test_no_value_is_read_back_from_the_device(name):
    """A meta tensor holds no data: `.item()`, `bool()` and boolean indexing raise on it."""
    lp, old, a, mask = batch(device="meta")
    assert LOSSES[name](lp, old, a, mask).shape == (3, 9)


def test_statistics_and_reductions_read_nothing_back_either():
    lp, old, a, mask = batch(device="meta")
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        assert reduce_loss(lp, mask, mode=mode).dim() == 0
        assert reduce_loss(lp, mask, mode=mode, denominator=mask.sum()).dim() == 0
    stats = penalty_stats(lp, lp, old, mask, preserved=preserved_mask(a, mask)) | ratio_stats(lp, old, a, mask)
    assert all(x.dim() == 0 for x in merge_stats([stats, stats]).values())
    with pytest.raises(RuntimeError):
        mask.sum().item()  # what the tests above rely on


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_unmoved_policy_pays_exactly_nothing(name, dtype):
    _, old, _, mask = batch(dtype)
    a = torch.tensor([[1.0], [0.5], [1.0]], dtype=dtype)
    loss, grad = value_and_grad(name, old, old, a, mask)
    assert (loss == 0).all() and (grad == 0).all()


@pytest.mark.parametrize("name", PENALTIES)
def test_a_penalty_raises_displaced_tokens_and_only_them(name):
    lp, old, a, mask = batch()
    _, grad = value_and_grad(name, lp, old, a, mask)
    fell = mask & (lp < old)
    assert (grad <= 0).all()  # minimising never makes a token less likely
    assert (grad[fell] < 0).any()
    assert (grad[~fell] == 0).all()


# ---- beside the loops: small numbers, rules, and reductions in parts


def test_k3_keeps_small_values_in_float32():
    x = 2**-12  # x² / 2 = 2.98e-8; exp(x) − x − 1 in float32 gives 0 or 1.2e-7
    lp = torch.tensor([[-x]])
    loss = kl_loss(lp, torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert loss.item() == pytest.approx(x * x / 2, rel=0.01)


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


# ---- reductions


X = torch.tensor([[4.0, 9.0, 9.0], [1.0, 2.0, 3.0], [9.0, 9.0, 9.0]])
FEW = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
SEQUENCE_MODES = ("seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
MODES = ("token-mean", "token-sum", *SEQUENCE_MODES)


def options(mode):
    return {"mode": mode, "max_tokens": 10} if mode.endswith("norm") else {"mode": mode}


@pytest.mark.parametrize("mode", ["token-mean", *SEQUENCE_MODES])
@pytest.mark.parametrize("cut", [1, 2])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_micro_batches_with_the_shared_denominator_add_up(mode, cut, as_tensor):
    mask = FEW | torch.tensor([[False], [False], [True]])  # 1, 3 and 3 tokens: no cut makes equal parts
    count = 7 if mode == "token-mean" else 3
    denominator = torch.tensor(count) if as_tensor else count
    whole = reduce_loss(X, mask, **options(mode))
    parts = [(X[:cut], mask[:cut]), (X[cut:], mask[cut:])]
    shared = sum(reduce_loss(x, m, denominator=denominator, **options(mode)) for x, m in parts)
    assert shared.item() == pytest.approx(whole.item())
    own = sum(reduce_loss(x, m, **options(mode)) for x, m in parts) / 2
    assert own.item() != pytest.approx(whole.item())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("denominator", [None, 0, torch.tensor(0), torch.tensor(0.0)])
def test_an_empty_step_is_zero_with_a_graph(mode, denominator):
    x = X.clone().requires_grad_()
    given = {} if mode == "token-sum" else {"denominator": denominator}
    loss = reduce_loss(x, torch.zeros_like(FEW), **options(mode), **given)
    assert loss.item() == 0
    loss.backward()
    assert (x.grad == 0).all()


def test_half_precision_is_summed_in_float32():
    x = torch.ones(1, 4096, dtype=torch.bfloat16)  # bfloat16 cannot count past 256
    total = reduce_loss(x, torch.ones_like(x, dtype=torch.bool), mode="token-sum")
    assert total.dtype == torch.float32 and total.item() == 4096
    assert reduce_loss(X.double(), FEW).dtype == torch.float64
    assert reduce_loss(X[1], FEW[1]).item() == 2, "a mean over tokens needs no sequences"
