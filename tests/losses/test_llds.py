import itertools

import pytest
import torch

from holdfast.losses import adaptive_answer_weight, llds_penalty, preserved_mask, reduce_loss, sapo_penalty


def llds(drops, mask=None, a=1.0, **options):
    """Penalty of one row for given drops Δ = old − new; old is −1 everywhere, the mask full unless given."""
    x = torch.tensor([drops], dtype=torch.float64)
    mask = torch.ones_like(x, dtype=torch.bool) if mask is None else torch.tensor([mask]).bool()
    tensors = {k: torch.tensor([v]) for k, v in options.items() if isinstance(v, list)}
    options.update(tensors)
    a = torch.tensor([a if isinstance(a, list) else [a]], dtype=torch.float64)
    return llds_penalty(-1 - x, torch.full_like(x, -1), a, mask, **options)[0].tolist()


TWO_ACTIONS = {"drops": [-0.1, 0.3, 9.0, -0.4, 0.3], "mask": [1, 1, 0, 1, 1]}


def test_golden_gates():
    # action 1: −.1 + .3 = .2 > 0, open; action 2: −.4 + .3 = −.1, closed; response: .2 − .1 = .1, open
    assert llds(**TWO_ACTIONS) == pytest.approx([0, 0.3, 0, 0, 0])
    assert llds(**TWO_ACTIONS, gate="response") == pytest.approx([0, 0.3, 0, 0, 0.3])
    assert llds(**TWO_ACTIONS, gate="token") == pytest.approx([0, 0.3, 0, 0, 0.3])
    # perturbed: action 2 now gains .6, so the response rose by .1 and its gate closes, while action 1 still fires
    perturbed = {"drops": [-0.1, 0.3, 9.0, -0.6, 0.3], "mask": [1, 1, 0, 1, 1]}
    assert llds(**perturbed) == pytest.approx([0, 0.3, 0, 0, 0])
    assert llds(**perturbed, gate="response") == [0.0] * 5
    assert llds(**perturbed, gate="token") == pytest.approx([0, 0.3, 0, 0, 0.3])


def test_the_response_gate_sums_signed_drops():
    """The authors' first code summed max(0, Δ): a gate that never closes."""
    assert llds([0.3, -0.4], gate="response") == [0.0, 0.0]


def test_gates_are_strict():
    assert llds([0.25, -0.25]) == [0.0, 0.0]
    assert llds([0.25, -0.25], gate="response") == [0.0, 0.0]
    assert llds([0.25, -0.2499]) == pytest.approx([0.25, 0.0])


def test_adjacent_actions_need_explicit_ids():
    drops = [-0.5, 0.4]  # one action that rose, or two of which the second fell
    assert llds(drops) == [0.0, 0.0]
    assert llds(drops, action_ids=[1, 2]) == pytest.approx([0.0, 0.4])


def test_a_hole_in_an_action_does_not_divide_it():
    drops, mask = [-0.5, 0.0, 0.4], [1, 0, 1]  # explicit ids hold the action together; the mask's runs cannot
    assert llds(drops, mask, action_ids=[1, 1, 1]) == [0.0, 0.0, 0.0]
    assert llds(drops, mask) == pytest.approx([0.0, 0.0, 0.4])


def test_packed_actions_with_equal_numbers_stay_apart():
    # Two sequences, each with its action 1, touching: −.5 in the first, +.4 in the second.
    packed = {"drops": [-0.5, 0.4], "a": [1.0, 1.0], "action_ids": [1, 1]}
    assert llds(**packed, sequence_ids=[0, 1]) == pytest.approx([0.0, 0.4])
    assert llds(**packed, sequence_ids=[0, 0]) == [0.0, 0.0]
    assert llds(**packed, sequence_ids=[0, 1], gate="response") == pytest.approx([0.0, 0.4])


def test_answer_tokens_vote_in_the_gate_whatever_they_weigh():
    # The action fell only because of its answer token (+.5): the gate opens for the other token.
    answer = {"drops": [0.1, -0.3, 0.5], "answer_mask": [False, False, True]}
    assert llds(**answer) == pytest.approx([0.1, 0, 0.5])
    assert llds(**answer, answer_weight=0.25) == pytest.approx([0.1, 0, 0.125])
    assert llds(**answer, answer_weight=0.0) == pytest.approx([0.1, 0, 0])
    assert llds([0.1, -0.3], answer_mask=[False, False]) == [0.0, 0.0]  # without the answer it stays closed


def test_answer_weight_may_be_a_tensor():
    answer = {"drops": [0.1, -0.3, 0.5], "answer_mask": [False, False, True]}
    weight = torch.tensor(0.25, requires_grad=True)
    assert llds(**answer, answer_weight=weight) == pytest.approx([0.1, 0, 0.125])


def test_a_schedule_is_not_trained():
    weight = torch.tensor(0.25, requires_grad=True)
    lp, mask = torch.tensor([[-1.5]], requires_grad=True), torch.ones(1, 1, dtype=torch.bool)
    old, a = torch.tensor([[-1.0]]), torch.ones(1, 1)
    llds_penalty(lp, old, a, mask, answer_mask=mask, answer_weight=weight).sum().backward()
    assert weight.grad is None and lp.grad.tolist() == [[-0.25]]


def test_threshold_is_in_nats_per_token_for_gates_and_tokens():
    drops, mask = [0.3, 0.04, 0, 0.2, 0.0], [1, 1, 0, 1, 1]
    # mean drops .17 and .1: at .1 the first gate is open and its .04 does not count; .1 is not above .1
    assert llds(drops, mask, threshold=0.0) == pytest.approx([0.3, 0.04, 0, 0.2, 0])
    assert llds(drops, mask, threshold=0.09) == pytest.approx([0.3, 0, 0, 0.2, 0])
    assert llds(drops, mask, threshold=0.125) == pytest.approx([0.3, 0, 0, 0, 0])
    assert llds(drops, mask, threshold=0.175) == [0.0] * 5
    # response: mean .54 / 4 = .135
    assert llds(drops, mask, threshold=0.13, gate="response") == pytest.approx([0.3, 0, 0, 0.2, 0])
    assert llds(drops, mask, threshold=0.14, gate="response") == [0.0] * 5
    assert llds(drops, mask, threshold=0.2, gate="token") == pytest.approx([0.3, 0, 0, 0, 0])


def test_a_threshold_above_the_noise_silences_it():
    noise = 1e-3 * torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    old, a, mask = torch.full((8, 50), -1.0), torch.ones(8, 1), torch.ones(8, 50, dtype=torch.bool)
    assert llds_penalty(old - noise, old, a, mask, gate="token").count_nonzero() > 100
    assert llds_penalty(old - noise, old, a, mask, threshold=0.005).count_nonzero() == 0


def test_preserve_overrides_the_rule_and_only_preserved_tokens_vote():
    assert llds([0.2], a=0.0) == pytest.approx([0.2])  # the paper's rule is A ≥ 0
    assert llds([0.2], a=0.0, preserved=[False]) == [0.0]
    assert llds([0.2], a=-1.0, preserved=[True]) == pytest.approx([0.2])
    assert llds([0.2, -0.5]) == [0.0, 0.0]
    assert llds([0.2, -0.5], preserved=[True, False]) == pytest.approx([0.2, 0.0])


def test_paper_and_code_normalisers_differ_by_the_preserved_share():
    # rows of 2 and 3 tokens, the second has A < 0: 2 of 5 tokens are preserved
    old = torch.zeros(2, 3)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    a = torch.tensor([[1.0], [-1.0]])
    penalty = llds_penalty(torch.full((2, 3), -0.5), old, a, mask)
    code, paper = reduce_loss(penalty, mask), reduce_loss(penalty, preserved_mask(a, mask))
    assert paper.item() == pytest.approx(0.5) and (code / paper).item() == pytest.approx(2 / 5)


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


def test_one_step_descends():
    """Minimising the penalty raises the likelihood of a displaced token of a softmax policy."""
    logits = torch.tensor([0.0, 1.0, -1.0], requires_grad=True)
    mask, a = torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 1)
    old = torch.tensor([[-1.0]])
    before = logits.log_softmax(0)[0].reshape(1, 1)
    llds_penalty(before, old, a, mask).sum().backward()
    after = (logits - 0.1 * logits.grad).log_softmax(0)[0]
    assert after > before.item()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gate": "sentence"}, ValueError, "gate='sentence' does not exist"),
        ({"threshold": -0.1}, ValueError, "threshold=-0.1 must not be negative"),
        ({"threshold": float("nan")}, ValueError, "threshold=nan"),
        ({"answer_weight": 0.5}, ValueError, "without answer_mask it would change nothing"),
        ({"answer_weight": torch.tensor(1.0)}, ValueError, "without answer_mask"),
        ({"answer_weight": 1.5, "answer_mask": [True, True]}, ValueError, "between 0"),
        ({"answer_weight": torch.ones(2), "answer_mask": [True, True]}, ValueError, "0-d tensor"),
        ({"answer_mask": [True]}, ValueError, "answer_mask must be bool of shape"),
        ({"answer_mask": [1, 0]}, ValueError, "answer_mask must be bool"),
        ({"action_ids": [1]}, ValueError, "action_ids has shape"),
        ({"action_ids": [1.0, 1.0]}, TypeError, "action_ids must be integers"),
        ({"preserved": [1, 0]}, TypeError, "preserved must be bool"),
        ({"preserved": [True, False, True]}, ValueError, "preserved has shape"),
        ({"sequence_ids": [0, 0]}, ValueError, "advantages has one value per row"),
    ],
)
@pytest.mark.parametrize("gate", ["action", "token"])
def test_settings_that_cannot_work_are_refused(options, error, message, gate):
    with pytest.raises(error, match=message):
        llds([0.1, 0.2], **{"gate": gate, **options})


def test_adaptive_answer_weight_schedules():
    searches = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    assert [adaptive_answer_weight(v) for v in searches] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    assert [adaptive_answer_weight(v, schedule="code") for v in searches] == [0.0, 0.0, 0.0, 0.5, 1.0, 1.0]
    # MASK_WEIGHT .05 beside λ = .2: base = .25;   V = 5: .25 · 4 = 1
    assert [adaptive_answer_weight(v, schedule="code", base=0.25) for v in (2.0, 5.0, 9.0)] == [0.25, 1.0, 1.0]
    assert adaptive_answer_weight(1.0, target=4.0) == 0.25
    for schedule, v in itertools.product(("paper", "code"), searches):
        assert adaptive_answer_weight(torch.tensor(v), schedule=schedule).item() == pytest.approx(
            adaptive_answer_weight(v, schedule=schedule)
        )


@pytest.mark.parametrize(
    "options", [{"schedule": "linear"}, {"target": 0.0}, {"schedule": "code", "target": 1.0}, {"base": 1.1}]
)
def test_adaptive_answer_weight_refuses(options):
    with pytest.raises(ValueError, match=next(iter(options.keys() - {"schedule"} or {"schedule"}))):
        adaptive_answer_weight(1.0, **options)
