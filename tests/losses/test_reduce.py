import pytest
import torch

from holdfast.losses import reduce_loss

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
def test_golden(mode, value):
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
def test_settings_that_cannot_work_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        reduce_loss(X, MASK, **given)


def test_shapes_and_dtypes_are_checked():
    with pytest.raises(TypeError, match="loss_mask must be bool"):
        reduce_loss(X, MASK.float())
    with pytest.raises(ValueError, match="loss_mask has shape"):
        reduce_loss(X, MASK[:2])
    with pytest.raises(ValueError, match="per_token must be floating point"):
        reduce_loss(X.long(), MASK)
