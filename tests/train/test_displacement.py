"""What an update did, rollout by rollout and token by token: against a forward pass of each episode alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss
from holdfast.train.displacement import measure_displacement
from holdfast.train.objective import Objective
from holdfast.train.rollouts import training_batch

from ..rollouts import rollout, turn
from .one_update import learner_of

Measure = Callable[..., Any]


def an_episode(question: int, k: int, tokenizer: Any, *, failed: bool = False) -> Trajectory:
    ids = tokenizer("<search> lake </search>", add_special_tokens=False)["input_ids"]
    said = tokenizer(f"<answer> town {k} é </answer>", add_special_tokens=False)["input_ids"]
    turns = [turn(Answer("town"), said, text=tokenizer.decode(said))]
    if not k % 2:
        turns.insert(0, turn(Search("lake"), ids, observation=(5, 6, 7), text=tokenizer.decode(ids)))
    right = (question + k) % 3 == 0
    return rollout(*turns, right=right, failed=failed, example_id=str(question), prompt=(3, 4, 5))


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
        for own, said in zip(turns, trajectory.turns, strict=True):
            assert sum(own.chars) == len(said.text) and len(own.chars) == len(own.changes) == len(said.tokens or ())


def test_shown_episodes_change_no_metric(step: Measure) -> None:
    """They are measured beside the rollouts that were drawn, and the draws stay what they were."""
    plain, without, _, _, one = step(logged_questions=0, rows=4)
    metrics, displacement, _, _, other = step(logged_questions=4, rows=4)
    assert without.by_turn == {} and len(displacement.by_turn) == 4
    assert metrics == pytest.approx(plain, abs=1e-5) and metrics["displacement/rollouts"] == 4
    assert displacement.correct == pytest.approx(without.correct, abs=1e-5)
    assert displacement.incorrect == pytest.approx(without.incorrect, abs=1e-5)
    assert torch.equal(one.get_state(), other.get_state())
