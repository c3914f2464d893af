"""What an update on a question does to its rollouts, on a policy of two weights; and that it leaves no trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from holdfast.base.errors import ConfigError, RolloutError
from holdfast.evaluate.probes import (
    PerSample,
    Rollouts,
    Subject,
    arms_of,
    draw,
    open_run,
    per_sample,
    roll_out_questions,
)
from holdfast.evaluate.probes.per_sample import ArmChange, QuestionChange, Response, update_once
from holdfast.evaluate.probes.subject import batch_of
from holdfast.methods.penalties import LLDS, SAPO, NoPenalty
from holdfast.model.language_model import load_model
from holdfast.train.listener import Listener
from holdfast.train.trainer import make_trainer

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


def test_the_weights_are_what_they_were(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin(0.3, {"train.optimizer_steps_per_rollout": 2})
    model = subject.language_model.model
    before = model.logits.detach().clone()
    per_sample(subject, asked, seed=0, compare=["none", "sapo"], listener=heard)
    assert torch.equal(model.logits, before)
    assert model.logits.grad is None
    assert not model.training


def test_nothing_to_learn_is_refused(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    nothing = rolled([episode(False, [0]), episode(False, [1])], [episode(True, [0]), episode(False, [1], failed=True)])
    with pytest.raises(RolloutError, match="1 of 4 rollouts on 2 questions are correct"):
        per_sample(coin(), nothing, seed=0, listener=heard)


def test_a_gradient_that_is_not_finite_is_told_of(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin()
    weight = subject.language_model.model.logits
    weight.register_hook(lambda gradient: gradient * torch.nan)
    found = per_sample(subject, asked, seed=0, listener=heard)
    assert heard.notes and all("gradient was not finite" in note for note in heard.notes)
    # Nothing moved, and that is exactly 0: old and new are computed on the same shapes.
    assert {r.change for q in found.arms[0].questions for r in q.responses} == {0.0}


def test_moments_are_the_runs_own(trained: Path) -> None:
    step = trained / "checkpoints" / "step-000001"
    settings = ["--loss.kl_coef", "0"]
    subject = open_run(trained, "1", settings, Listener(), with_reference=True, optimizer_state=True)
    config = subject.config
    batch = batch_of(subject, roll_out_questions(subject, 6, 0, Listener()).groups)
    change = update_once(batch, subject, config, mean_searches=1.0, seed=4, note=pytest.fail)

    policy = load_model(config.model, step / "model", torch.device("cpu"))
    trainer = make_trainer(config, policy, subject.questions, subject.agent.retriever)
    trainer.restore(step)
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(4))
    minibatches, batch, _ = trainer.learner.old_pass(batch, plan)
    trainer.learner.step(minibatches, mean_searches=1.0)
    expected = trainer.learner.likelihood_change(batch, plan) * batch.loss_mask.sum(-1)
    assert torch.equal(change, expected)

    fresh = open_run(trained, "1", settings, Listener(), with_reference=True)
    other = update_once(batch, fresh, config, mean_searches=1.0, seed=4, note=pytest.fail)
    assert not torch.allclose(other, expected, atol=1e-3)


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


# ---- what a person reads


def question(number: int, right: float, *wrong: float) -> QuestionChange:
    responses = [Response(correct=True, tokens=10, change=right)]
    responses += [Response(correct=False, tokens=20, change=change) for change in wrong]
    return QuestionChange(id=f"q{number}", question="?", responses=tuple(responses))


PER_SAMPLE = PerSample(
    asked=8,
    optimizer_steps=5,
    arms=(
        ArmChange(penalty="none", questions=(question(1, -0.5, -2.0), question(2, 1.5, -4.0))),
        ArmChange(penalty="llds", questions=(question(1, 0.25), question(2, 1.75))),
    ),
)


def test_the_table_and_the_figure(tmp_path: Path) -> None:
    expected = [
        "2 of 8 questions have a correct rollout and one with another reward. Each got its own update "
        "of 5 optimizer steps.",
        "Change of log-likelihood, mean over rollouts: nats per rollout (per token)",
        "penalty  questions displaced    correct rollouts    incorrect rollouts",
        "none           1 of 2 (50 %)  +0.500 (+0.0500)  -3.000 (-0.1500)",
        "llds            0 of 2 (0 %)  +1.000 (+0.1000)                 –",
    ]
    lines = PER_SAMPLE.lines()
    assert [" ".join(line.split()) for line in lines] == [" ".join(line.split()) for line in expected]
    assert max(len(line) for line in lines if "  " in line) <= 80
    draw(PER_SAMPLE, "a title", tmp_path / "one.svg")
    said = {" ".join(text.split()) for text in ElementTree.parse(tmp_path / "one.svg").getroot().itertext()}
    assert {"a title", "none: 1 of 2 questions displaced (50 %)", "llds: 0 of 2 questions displaced (0 %)"} <= said
    draw(PER_SAMPLE, "a title", tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    json.dumps(PER_SAMPLE.to_json(), allow_nan=False)


def test_json_numbers() -> None:
    (plain, llds) = PER_SAMPLE.to_json()["arms"]  # type: ignore[misc]
    assert (plain["displaced"], plain["displaced_share"], plain["questions_used"]) == (1, 0.5, 2)
    assert (plain["correct_change"], plain["correct_change_per_token"]) == (0.5, pytest.approx(0.05))
    assert (plain["incorrect_change"], plain["incorrect_change_per_token"]) == (-3.0, pytest.approx(-0.15))
    assert llds["incorrect_change"] is None
