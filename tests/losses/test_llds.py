import pytest
import torch

from holdfast.losses import adaptive_answer_weight, llds_penalty, preserved_mask, sapo_penalty


@pytest.mark.parametrize("gate", ["action", "response"])
def test_gates_are_strict(gate):
    """A unit whose decreases and increases are equal in sum stays closed."""
    old, a, mask = torch.zeros(1, 2), torch.ones(1, 1), torch.ones(1, 2, dtype=torch.bool)
    for rise, penalty in ((0.25, 0.0), (0.2499, 0.25)):
        assert llds_penalty(torch.tensor([[-0.25, rise]]), old, a, mask, gate=gate).tolist() == [[penalty, 0.0]]


def test_a_schedule_is_not_trained():
    weight = torch.tensor(0.25, requires_grad=True)
    lp, mask = torch.tensor([[-1.5]], requires_grad=True), torch.ones(1, 1, dtype=torch.bool)
    old, a = torch.tensor([[-1.0]]), torch.ones(1, 1)
    llds_penalty(lp, old, a, mask, answer_mask=mask, answer_weight=weight).sum().backward()
    assert weight.grad is None and lp.grad.tolist() == [[-0.25]]


def test_the_pull_is_of_constant_size():
    for drop in (1e-6, 0.5, 30.0):
        lp = torch.tensor([[-1 - drop, -1.0]], dtype=torch.float64, requires_grad=True)
        old, mask = torch.full_like(lp, -1).detach(), torch.ones(1, 2, dtype=torch.bool)
        llds_penalty(lp, old, torch.ones(1, 1), mask).sum().backward()
        assert lp.grad.tolist() == [[-1.0, 0.0]]


def test_sapo_at_one_is_lld_and_below_one_a_threshold():
    g = torch.Generator().manual_seed(0)
    lp, old = -torch.rand(6, 40, generator=g), -torch.rand(6, 40, generator=g)
    a, mask = torch.randn(6, 1, generator=g).round(), torch.rand(6, 40, generator=g) < 0.7
    preserve = preserved_mask(a, mask)
    lld = llds_penalty(lp, old, a, mask, gate="token")
    assert lld.count_nonzero() > 50
    assert torch.equal(sapo_penalty(lp, old, a, mask, preserved=preserve), lld)
    assert not torch.equal(sapo_penalty(lp, old, a, mask), lld)  # the paper's SAPO leaves A = 0 alone
    assert torch.equal(
        sapo_penalty(lp, old, a, mask, tau=0.8, preserved=preserve),
        llds_penalty(lp, old, a, mask, gate="token", threshold=0.22314355131420976),  # −ln .8
    )


def test_adaptive_answer_weight_schedules():
    searches = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    assert [adaptive_answer_weight(v) for v in searches] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert [adaptive_answer_weight(v, schedule="code") for v in searches] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]
    # MASK_WEIGHT .05 beside λ = .2: base = .25;   V = 5: .25 · 4 = 1
    assert [adaptive_answer_weight(v, schedule="code", base=0.25) for v in (2.0, 5.0, 9.0)] == [0.25, 1.0, 1.0]
    assert adaptive_answer_weight(1.0, target=4.0) == 0.25
