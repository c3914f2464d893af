import math

import pytest
import torch

from holdfast.losses import clipped_policy_loss, nll_loss

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
