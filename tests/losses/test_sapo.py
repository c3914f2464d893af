import pytest
import torch

from holdfast.losses import sapo_penalty


def sapo(drops, a=1.0, **options):
    x = torch.tensor([drops], dtype=torch.float64)
    lp = (-1 - x).requires_grad_()
    mask = torch.ones_like(x, dtype=torch.bool)
    a = torch.tensor([[a]], dtype=torch.float64)
    loss = sapo_penalty(lp, torch.full_like(x, -1), a, mask, **options)
    (grad,) = torch.autograd.grad(loss.sum(), lp)
    return loss[0].tolist(), grad[0].tolist()


def test_golden():
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
