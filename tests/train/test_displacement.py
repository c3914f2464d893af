"""What an update did, rollout by rollout and token by token: against a forward pass of each episode alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Status, Trajectory, Turn
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, Loss
from holdfast.train.displacement import measure_displacement, measure_per_sample
from holdfast.train.objective import Objective
from holdfast.train.rollouts import training_batch

from .one_update import Double, a_batch, learner_of
from .whole_runs import a_trainer

Measure = Callable[..., Any]


def an_episode(question: int, k: int, tokenizer: Any, *, failed: bool = False) -> Trajectory:
    ids = tokenizer("<search> lake </search>", add_special_tokens=False)["input_ids"]
    said = tokenizer(f"<answer> town {k} é </answer>", add_special_tokens=False)["input_ids"]
    turns = [Turn(tokens=tuple(ids), logprobs=(0.0,) * len(ids), observation=(5, 6, 7), action=Search("lake"),
                  text=tokenizer.decode(ids))]  # fmt: skip
    if k % 2:
        turns = []
    turns.append(
        Turn(tokens=tuple(said), logprobs=(0.0,) * len(said), action=Answer("town"), text=tokenizer.decode(said))
    )
    right = float((question + k) % 3 == 0)
    return Trajectory(
        example_id=str(question),
        prompt=(3, 4, 5),
        turns=tuple(turns),
        status=Status.RETRIEVAL_FAILED if failed else Status.OK,
        reward=None if failed else right,
        reward_parts={} if failed else {"em": right},
    )


@pytest.fixture
def step(make_model: Callable[..., Any], tokenizer: Any) -> Measure:
    """step(logged_questions=2, rows=4): (metrics, displacement, the groups, what each token's log-prob did)."""

    def go(*, logged_questions: int, rows: int = 100, failed: tuple[tuple[int, int], ...] = ()) -> Any:
        groups = [
            Group(str(q), tuple(an_episode(q, k, tokenizer, failed=(q, k) in failed) for k in range(3)))
            for q in range(4)
        ]
        before, after = (
            LanguageModel(model=make_model(seed=s), tokenizer=tokenizer, autocast_dtype=None) for s in (0, 1)
        )
        batch = training_batch(groups, Objective(Loss()), pad_token_id=0, device=torch.device("cpu"))
        _, batch, _ = learner_of(before).old_pass(batch, [[list(range(len(batch)))]])
        generator = torch.Generator().manual_seed(0)
        learner = learner_of(after, micro_batch_tokens=64)
        metrics, displacement = measure_displacement(
            learner, batch, groups, rows=rows, logged_questions=logged_questions, generator=generator
        )

        def alone(trajectory: Trajectory) -> list[float]:
            one = TokenBatch.from_trajectories([Group("x", (trajectory,))], pad_token_id=0)
            new, old = (m.logprobs(one.token_ids, one.loss_mask)[0] for m in (after, before))
            with torch.no_grad():
                return (new - old)[one.loss_mask].tolist()

        return metrics, displacement, groups, alone, generator

    return go


def test_the_lists_are_what_the_metrics_are_means_of(step: Measure) -> None:
    metrics, displacement, groups, alone, _ = step(logged_questions=1)
    means = {True: [], False: []}  # type: dict[bool, list[float]]
    for group in groups:
        for trajectory in group.trajectories:
            changes = alone(trajectory)
            means[trajectory.correct].append(sum(changes) / len(changes))
    assert sorted(displacement.correct) == pytest.approx(sorted(means[True]), abs=1e-4)
    assert sorted(displacement.incorrect) == pytest.approx(sorted(means[False]), abs=1e-4)
    assert metrics["displacement/correct"] == pytest.approx(sum(means[True]) / len(means[True]), abs=1e-4)


def test_a_failed_episode_is_not_shown_and_moves_no_other(step: Measure) -> None:
    """Failed episodes have no row in the batch: the rows of those after them shift."""
    _, displacement, groups, alone, _ = step(logged_questions=4, failed=((0, 1), (1, 0), (2, 2)))
    assert list(displacement.by_turn) == [0, 2, 3]
    for question, turns in displacement.by_turn.items():
        trajectory = groups[question].trajectories[0]
        assert [c for turn in turns for c in turn.changes] == pytest.approx(alone(trajectory), abs=1e-4)
        for own, turn in zip(turns, trajectory.turns, strict=True):
            assert sum(own.chars) == len(turn.text) and len(own.chars) == len(own.changes) == len(turn.tokens or ())


def test_shown_episodes_change_no_metric(step: Measure) -> None:
    """They are measured beside the rollouts that were drawn, and the draws stay what they were."""
    plain, without, _, _, one = step(logged_questions=0, rows=4)
    metrics, displacement, _, _, other = step(logged_questions=4, rows=4)
    assert without.by_turn == {} and len(displacement.by_turn) == 4
    assert metrics == pytest.approx(plain, abs=1e-5) and metrics["displacement/rollouts"] == 4
    assert displacement.correct == pytest.approx(without.correct, abs=1e-5)
    assert displacement.incorrect == pytest.approx(without.incorrect, abs=1e-5)
    assert torch.equal(one.get_state(), other.get_state())


# ---- displacement per sample while a run trains


Recipe = Callable[..., Config]
ROWS = {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6]}  # by question; rewards differ in 0 to 2


def contrast() -> Any:
    batch = a_batch()
    rewards = batch.correct.float()
    return replace(batch, rewards=rewards, rollout_logprobs=batch.rollout_logprobs.double())


def test_against_an_update_of_a_copy(make_model: Callable[..., Any]) -> None:
    model, batch = make_model(seed=0).double(), contrast()
    expected: dict[str, list[float]] = {"correct": [], "incorrect": []}
    displaced = []
    for rows in list(ROWS.values())[:3]:
        policy = Double(model=copy.deepcopy(model), tokenizer=None)
        learner = learner_of(policy, lr=1e-2, optimizer_steps_per_rollout=1)
        part = batch.select(rows).trim()
        before = policy.logprobs(part.token_ids, part.loss_mask)[0].detach()
        learner.step(learner.old_pass(part, [[[0, 1]]]).minibatches, mean_searches=0.0)
        change = (policy.logprobs(part.token_ids, part.loss_mask)[0].detach() - before).tolist()
        totals = []
        for row, right in enumerate(part.correct.tolist()):
            values = [x for x, sampled in zip(change[row], part.loss_mask[row].tolist(), strict=True) if sampled]
            expected["correct" if right else "incorrect"].append(fmean(values))
            totals += [sum(values)] * right
        displaced.append(fmean(totals) < 0)
    learner = learner_of(Double(model=model, tokenizer=None), lr=1e-2, optimizer_steps_per_rollout=1)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    found = measure_per_sample(learner, batch, questions=9, mean_searches=0.0, seed=1)
    assert found == pytest.approx(
        {
            "displacement/per_sample/questions": 3,
            "displacement/per_sample/fraction": fmean(displaced),
            **{f"displacement/per_sample/{kind}": fmean(values) for kind, values in expected.items()},
        },
        abs=1e-6,
    )
    assert abs(found["displacement/per_sample/correct"]) > 1e-4
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not learner.optimizer.state
    assert (
        measure_per_sample(learner, batch, questions=1, mean_searches=0.0, seed=1)["displacement/per_sample/questions"]
        == 1
    )


def test_without_contrast_there_is_nothing(make_model: Callable[..., Any]) -> None:
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None))
    assert measure_per_sample(learner, a_batch(), questions=4, mean_searches=0.0, seed=0) == {}


def test_the_run_is_the_same_with_it(recipe: Recipe) -> None:
    with_it, without = (a_trainer(recipe({"train.per_sample_every": every})) for every in (2, 0))
    for trainer in (with_it, without):  # a warm start this short gives no correct rollout: the better half counts
        batch_of = trainer.make_batch

        def marked(groups: Any, batch_of: Any = batch_of) -> Any:
            batch = batch_of(groups)
            return replace(batch, correct=batch.advantages[:, 0] > 0)

        trainer.make_batch = marked  # type: ignore[method-assign]
    for step in range(2):
        rows = [
            {k: v for k, v in t.step().metrics.items() if not k.startswith(("time/", "tokens_per_s", "retrieval/lat"))}
            for t in (with_it, without)
        ]
        added = rows[0].keys() - rows[1].keys()
        assert bool(added) is (step == 0) and all(name.startswith("displacement/per_sample/") for name in added)
        assert {k: v for k, v in rows[0].items() if k not in added} == rows[1]
