"""What an update does to its own rollouts, on a policy of two weights; and that it leaves no trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError, RolloutError
from holdfast.evaluate.probes import Rollouts, Subject, arms_of, per_sample, ratio_tail
from holdfast.evaluate.probes.subject import borrowed_weights
from holdfast.evaluate.probes.updates import ArmChange, ArmRatios, QuestionChange, Response, RolloutRatios
from holdfast.methods.penalties import LLDS, SAPO, NoPenalty

Make = Callable[..., Any]


def sigmoid_log(x: float) -> float:
    return -math.log1p(math.exp(-x))


@pytest.fixture
def asked(episode: Make, rolled: Make) -> Rollouts:
    """Two questions to learn from, and three that teach nothing: all right, all wrong, rewards but nothing right."""
    return rolled(
        [episode(True, [0]), episode(False, [1])],
        [episode(True, [0, 1]), episode(False, [0, 0, 0])],
        [episode(True, [0]), episode(True, [1])],
        [episode(False, [0]), episode(False, [1])],
        [episode(False, [0], reward=0.5), episode(False, [1])],
    )


# ---- per-sample


def test_displacement_in_numbers(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin()
    found = per_sample(subject, asked, seed=0, listener=heard)
    (arm,) = found.arms
    assert (found.asked, found.optimizer_steps, arm.penalty) == (5, 1, "none")
    assert [q.id for q in arm.questions] == [asked.examples[0].id, asked.examples[1].id]
    # The first step of AdamW moves each weight by lr = 0.1 against the sign of its gradient, so the logits become
    # ±0.1 and log p goes from log 1/2 to log sigmoid(±0.2).
    #   Question 1: heads is right, tails wrong: heads up.
    up, down = sigmoid_log(0.2) + math.log(2), sigmoid_log(-0.2) + math.log(2)
    assert up == pytest.approx(0.095008, abs=1e-6)
    right, wrong = arm.questions[0].responses
    assert right == Response(correct=True, tokens=1, change=pytest.approx(up, abs=1e-6))
    assert wrong == Response(correct=False, tokens=1, change=pytest.approx(down, abs=1e-6))
    #   Question 2: right is heads and tails, whose gradients cancel; wrong is three heads: heads down. The right
    #   rollout, which shares its first token with the wrong one, becomes less likely.
    right, wrong = arm.questions[1].responses
    assert right == Response(correct=True, tokens=2, change=pytest.approx(up + down, abs=1e-6))
    assert wrong == Response(correct=False, tokens=3, change=pytest.approx(3 * down, abs=1e-6))
    assert up + down < 0
    assert arm.displaced == 1


def test_a_question_is_not_touched_by_another(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin()
    whole = per_sample(subject, asked, seed=0, listener=heard)
    alone = per_sample(
        subject, Rollouts(examples=asked.examples[1:2], groups=asked.groups[1:2]), seed=0, listener=heard
    )
    assert alone.arms[0].questions[0] == whole.arms[0].questions[1]


def test_means_over_rollouts() -> None:
    responses = [
        Response(correct=True, tokens=2, change=-1.0),
        Response(correct=True, tokens=4, change=0.5),
        Response(correct=False, tokens=1, change=-3.0),
    ]
    question = QuestionChange(id="q", question="?", responses=tuple(responses))
    assert question.displacement == -0.25  # (-1 + 0.5) / 2
    better = QuestionChange(id="r", question="?", responses=(Response(correct=True, tokens=1, change=0.0),))
    arm = ArmChange(penalty="none", questions=(question, better))
    assert arm.displaced == 1  # a change of 0 displaces nothing
    assert arm.mean_change(correct=True) == pytest.approx(-0.5 / 3)
    assert arm.mean_change(correct=True, per_token=True) == pytest.approx((-0.5 + 0.125 + 0.0) / 3)
    assert arm.mean_change(correct=False) == -3.0
    assert math.isnan(ArmChange(penalty="none", questions=(better,)).mean_change(correct=False))


def test_arms_see_the_same_rollouts_and_fresh_weights(
    coin: Callable[..., Subject], asked: Rollouts, heard: Any
) -> None:
    subject = coin(changes={"train.optimizer_steps_per_rollout": 2})
    found = per_sample(subject, asked, seed=0, compare=["none", "llds", "none"], listener=heard)
    assert [arm.penalty for arm in found.arms] == ["none", "llds"]
    alone = per_sample(subject, asked, seed=0, compare=["llds"], listener=heard)
    assert found.arms[1] == alone.arms[0]
    assert found.arms[0] != found.arms[1]
    assert found.arms[1].questions[1].displacement > found.arms[0].questions[1].displacement


def test_more_optimizer_steps_than_rollouts_are_told_of(
    coin: Callable[..., Subject], asked: Rollouts, heard: Any
) -> None:
    found = per_sample(coin(changes={"train.optimizer_steps_per_rollout": 7}), asked, seed=0, listener=heard)
    assert found.optimizer_steps == 2
    (note,) = heard.notes
    assert "optimizer_steps_per_rollout = 7, but the group of a question has 2 rollouts" in note
    assert heard.totals["updates"] == heard.done == 2


@pytest.mark.parametrize("probe", [per_sample, ratio_tail])
def test_the_weights_are_what_they_were(coin: Callable[..., Subject], asked: Rollouts, heard: Any, probe: Any) -> None:
    subject = coin(0.3, {"train.optimizer_steps_per_rollout": 2})
    model = subject.language_model.model
    before = model.logits.detach().clone()
    probe(subject, asked, seed=0, compare=["none", "sapo"], listener=heard)
    assert torch.equal(model.logits, before)
    assert model.logits.grad is None
    assert not model.training


def test_borrowed_weights_come_back_after_an_error() -> None:
    model = torch.nn.Linear(2, 2)
    model.bias.requires_grad = False
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(KeyError), borrowed_weights(model):
        with torch.no_grad():
            model.weight.fill_(torch.nan)
        raise KeyError
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("probe", [per_sample, ratio_tail])
def test_nothing_to_learn_is_refused(
    coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any, probe: Any
) -> None:
    nothing = rolled([episode(False, [0]), episode(False, [1])], [episode(True, [0]), episode(False, [1], failed=True)])
    with pytest.raises(RolloutError, match="1 of 4 rollouts on 2 questions are correct"):
        probe(coin(), nothing, seed=0, listener=heard)


def test_a_gradient_that_is_not_finite_is_told_of(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin()
    weight = subject.language_model.model.logits
    weight.register_hook(lambda gradient: gradient * torch.nan)
    found = per_sample(subject, asked, seed=0, listener=heard)
    assert heard.notes and all("gradient was not finite" in note for note in heard.notes)
    # Nothing moved, and that is exactly 0: old and new are computed on the same shapes.
    assert {r.change for q in found.arms[0].questions for r in q.responses} == {0.0}


# ---- arms


def test_arms_keep_the_recipes_own_penalty(coin: Callable[..., Subject]) -> None:
    changes = {"loss.penalty.name": "llds", "loss.penalty.coef": 0.7, "train.optimizer_steps_per_rollout": 4}
    config = coin(changes=changes).config
    arms = arms_of(config, ["llds", "sapo", "none"])
    assert [arm.loss.penalty for arm in arms.values()] == [LLDS(coef=0.7), SAPO(), NoPenalty()]
    assert list(arms) == ["llds", "sapo", "none"]
    assert arms_of(config, []) == {"llds": config}


def test_arms_that_cannot_be(coin: Callable[..., Subject]) -> None:
    with pytest.raises(ConfigError, match="--compare lld: there is no such penalty; choose from none, llds, sapo, nll"):
        arms_of(coin().config, ["lld"])
    with pytest.raises(ConfigError, match="this penalty is always zero"):
        arms_of(coin().config, ["none", "llds"])


# ---- ratio tail


def test_drift_in_numbers() -> None:
    rows = [(1.0, (0.5, -1.0)), (1.0, (0.5, -3.0)), (-1.0, (-2.0, -8.0)), (0.0, (0.0, math.log(0.5)))]
    arm = ArmRatios(
        penalty="none",
        rollouts=tuple(RolloutRatios(id="q", correct=a > 0, advantage=a, tokens=3, log_products=p) for a, p in rows),
    )
    assert arm.optimizer_steps == 2
    # After step 2: exp(-1) = 0.37, exp(-3) = 0.050, exp(-8) = 0.0003, and 0.5, which is not below 0.5.
    assert [arm.share_below(e, "all", 2) for e in (0.5, 0.51, 0.1, 0.01, 1e-4)] == [0.75, 1.0, 0.5, 0.25, 0.0]
    assert [arm.share_below(e, "positive", 2) for e in (0.5, 0.1)] == [1.0, 0.5]
    assert [arm.share_below(e, "all", 1) for e in (0.5, 0.1)] == [0.25, 0.0]
    assert arm.share_below(0.1, "negative", 1) == 0.0
    assert arm.share_below(0.2, "negative", 1) == 1.0
    assert math.isnan(ArmRatios(penalty="none", rollouts=arm.rollouts[:1]).share_below(0.5, "negative", 1))


def test_drift_of_a_coin(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    rollouts = rolled([episode(True, [0]), episode(False, [1, 1]), episode(True, [0], failed=True)])
    found = ratio_tail(coin(), rollouts, seed=0, listener=heard)
    right, wrong = found.arms[0].rollouts
    assert (right.correct, right.tokens, wrong.tokens) == (True, 1, 2)
    assert right.advantage > 0 > wrong.advantage
    # As in the first question above; the wrong one has two tails.
    assert right.log_products == (pytest.approx(0.095008, abs=1e-6),)
    assert wrong.log_products == (pytest.approx(2 * -0.104992, abs=1e-6),)
    assert heard.totals["optimizer steps"] == heard.done == 1


def test_drift_after_each_optimizer_step(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    found = ratio_tail(coin(changes={"train.optimizer_steps_per_rollout": 4}), asked, seed=0, listener=heard)
    products = [r.log_products for r in found.arms[0].rollouts]
    assert {len(p) for p in products} == {4}
    assert len({p[0] for p in products} | {p[-1] for p in products}) > 2
    assert heard.done == 4
    other = ratio_tail(coin(changes={"train.optimizer_steps_per_rollout": 4}), asked, seed=1, listener=heard)
    assert [r.log_products for r in other.arms[0].rollouts] != products  # dealt to the steps otherwise
