import math

import pytest
import torch

from holdfast.losses import kl_loss


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
