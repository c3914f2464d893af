"""What an update on a question does to its rollouts, on a policy of two weights; and that it leaves no trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from safetensors.torch import load_file

from holdfast.agent.metrics.rollouts import tail_metrics
from holdfast.agent.trajectory import Trajectory
from holdfast.base.run_folder import step_folder
from holdfast.methods.penalties import LLDS, SAPO, NoPenalty
from holdfast.model.language_model import load_model
from holdfast.recipe import load
from holdfast.tasks.opening import load_questions
from holdfast.train.listener import Listener
from holdfast.train.prepare import prepare
from holdfast.train.run import train
from holdfast.train.trainer import make_trainer
from holdfast_research.probes import (
    PerSample,
    Rollouts,
    Subject,
    arms_of,
    draw,
    open_run,
    per_sample,
    roll_out_questions,
    tail_leak,
)
from holdfast_research.probes.per_sample import ArmChange, QuestionChange, Response, update_once
from holdfast_research.probes.subject import batch_of

Make = Callable[..., Any]


def sigmoid_log(x: float) -> float:
    return -math.log1p(math.exp(-x))


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
    assert ("updates", 2) in heard.stages and heard.done[-1] == 2


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
    trainer = make_trainer(prepare(config), policy)
    trainer.restore(step)
    plan = trainer.learner.plan(batch, torch.Generator().manual_seed(4))
    minibatches, batch, _ = trainer.learner.old_pass(batch, plan)
    trainer.learner.step(minibatches, mean_searches=1.0)
    expected = trainer.learner.token_change(batch, plan).sum(-1)
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


# ---- the policy of a run


def test_a_checkpoint_is_compared_with_its_anchor(recipe_file: Path, tmp_path: Path) -> None:
    config = load(recipe_file, ["--train.anchor_every", "2", "--train.steps", "3"])
    train(config, tmp_path / "run")
    subject = open_run(tmp_path / "run", "last", (), Listener(), with_reference=False)
    first = load_file(step_folder(tmp_path / "run", 2) / "anchor.safetensors")
    last = load_file(step_folder(tmp_path / "run", 3) / "anchor.safetensors")
    assert any(not torch.equal(first[name], last[name]) for name in first), "renewed at the third batch"
    learner = subject.learner()
    assert learner.anchor is not None and len(learner.anchor.weights) == len(last)
    assert all(torch.equal(weight, last[str(i)]) for i, weight in enumerate(learner.anchor.weights))
    arms = arms_of(config, ["none", "llds", "sapo"])
    assert [arm.train.anchor_every for arm in arms.values()] == [0, 2, 2]
    assert subject.learner(arms["none"]).anchor is None


def test_the_reference_is_the_policy_the_run_started_from(trained: Path) -> None:
    subject = open_run(trained, "1", [], Listener(), with_reference=True)
    assert subject.reference is not None
    token_ids = torch.tensor([[5, 6, 7, 8]])
    mask = torch.tensor([[False, True, True, True]])
    with torch.no_grad():
        now = subject.language_model.logprobs(token_ids, mask).logprobs
    with torch.no_grad(), subject.reference.in_place():
        start = subject.language_model.logprobs(token_ids, mask)[0]
    assert not torch.allclose(now, start)
    assert open_run(trained, "1", ["--loss.kl_coef", "0"], Listener(), with_reference=True).reference is None
    assert open_run(trained, "1", [], Listener(), with_reference=False).reference is None


def test_rollouts_do_not_depend_on_how_many_others_there_are(finished_run: Path, heard: Any) -> None:
    subject = open_run(finished_run, "2", [], Listener(), with_reference=False)
    few, many = (roll_out_questions(subject, n, 0, heard) for n in (3, 15))
    assert [[t.token_ids for t in g.trajectories] for g in few.groups] == [
        [t.token_ids for t in g.trajectories] for g in many.groups[:3]
    ]
    assert ("rollouts", 15) in heard.stages and heard.done[-1] == 15
    assert {e.id for e in many.examples} <= {e.id for e in load_questions(subject.config).train}
    assert [e.id for e in roll_out_questions(subject, 3, 4, heard).examples] != [e.id for e in few.examples]


# ---- the leak


PLAIN = {"loss.advantage": "dr_grpo"}


def kept(trajectory: Trajectory, *masses: tuple[float, ...]) -> Trajectory:
    turns = [replace(turn, mask_mass=own) for turn, own in zip(trajectory.turns, masses, strict=True)]
    return replace(trajectory, turns=tuple(turns))


def test_turn_by_turn(coin: Callable[..., Subject], episode: Make, rolled: Make, tmp_path: Path) -> None:
    right = kept(episode(True, [0, 1], [0]), (0.9, 0.8), (1.0,))
    wrong = kept(episode(False, [1], [1, 0], [1]), (0.9,), (0.5, 0.7), (0.6,))
    failed = episode(False, [0], [1], failed=True)
    found = tail_leak(coin(changes=PLAIN), rolled([right, wrong, failed]))  # advantages of a half, and minus a half
    first, second, third = found.turns
    assert (first.rollouts, first.correct, first.tokens) == (2, 1, 3)
    assert (first.advantage, first.mask_mass) == (pytest.approx((1 - 0.5) / 3), pytest.approx(2.6 / 3))
    assert first.tail_advantage == pytest.approx((0.5 * 0.3 - 0.5 * 0.1) / 0.4)
    assert (second.rollouts, second.tokens, second.advantage) == (2, 3, pytest.approx((0.5 - 1) / 3))
    assert second.tail_advantage == pytest.approx(-0.5)  # the right one was sure of its token
    assert (third.rollouts, third.correct, third.tail_advantage) == (1, 0, pytest.approx(-0.5))
    assert found.whole.tokens == 7 and found.whole.advantage == pytest.approx((1.5 - 2) / 7)
    assert found.whole.tail_advantage == pytest.approx((0.5 * 0.3 - 0.5 * (0.1 + 0.8 + 0.4)) / 1.6)
    draw(found, "leak", tmp_path / "leak.svg")
    assert "advantage of the tail" in (tmp_path / "leak.svg").read_text()
    advantages = batch_of(coin(changes=PLAIN), rolled([right, wrong, failed]).groups).advantages
    metrics = tail_metrics(advantages, rolled([right, wrong, failed]).groups)
    assert metrics == {"advantage/tail_mean": found.whole.tail_advantage}, "as the trainer logs it"


def test_a_loss_that_keeps_the_mask_is_named(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    subject = coin(changes={"sampling.mask_logprobs": True, "sampling.top_p": 0.9, "sampling.top_k": 8})
    found = tail_leak(subject, rolled([kept(episode(True, [0]), (0.9,)), kept(episode(False, [1]), (0.9,))]))
    assert found.mask_in_loss and "nothing leaks" in found.lines()[0]
