"""Searches that fail: what a step makes of the episodes, and of what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.agent.agent import lose_searches
from holdfast.agent.searching import RolloutStats
from holdfast.base.errors import CheckpointError, ConfigError, RetrievalError, RolloutError
from holdfast.recipe import Config
from holdfast.retrieval.cache import CachedRetriever
from holdfast.train import run
from holdfast.train.evaluate import Evaluator
from holdfast.train.loading import load_questions, load_retrievers
from holdfast.train.rollouts import roll_out
from holdfast.train.run import resume, train
from holdfast.train.start import warm_start_only
from holdfast.train.tracking import MetricsFile
from holdfast.train.trainer import Trainer

from .whole_runs import a_trainer

Recipe = Callable[..., Config]


class Broken:
    """A retriever that fails for the queries it is told to."""

    in_process = True

    def __init__(self, inner: Any, fails: Callable[[str], bool]) -> None:
        self.inner, self.fails = inner, fails

    def search(self, queries: Any, k: int) -> Any:
        if any(map(self.fails, queries)):
            raise RetrievalError("down")
        return self.inner.search(queries, k)


def break_training_searches(trainer: Trainer, fails: Callable[[str], bool]) -> None:
    broken = CachedRetriever(Broken(trainer.agent.retriever, fails), 0)
    trainer.agent = replace(trainer.agent, retriever=broken)


def allow_failures(trainer: Trainer, fraction: float) -> None:
    section = trainer.config.run.model_copy(update={"max_failed_fraction": fraction})
    trainer.config = trainer.config.model_copy(update={"run": section})


@pytest.fixture
def trainer(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    from holdfast.agent import searching

    monkeypatch.setattr(searching.time, "sleep", lambda _: None)  # between retries
    return a_trainer(recipe({"run.max_failed_fraction": 0.9}))


def test_an_outage_is_not_a_wrong_answer(trainer: Trainer) -> None:
    """Episodes whose search failed are in no mean, no group and no gradient; the others are learned from."""
    break_training_searches(trainer, lambda query: True)
    result = trainer.step()
    metrics, groups = result.metrics, result.groups
    failed = [t for group in groups for t in group.trajectories if t.status.is_failure]
    assert 0 < len(failed) < 16 and metrics["rollout/failed_fraction"] == len(failed) / 16
    assert metrics["retrieval/error_fraction"] == 1.0
    batch = trainer.make_batch(groups)
    assert len(batch) == 16 - len(failed) and bool(batch.valid.all())


def test_bad_luck_is_of_training_alone(trainer: Trainer) -> None:

    trainer.agent = replace(trainer.agent, wrap=partial(lose_searches, probability=0.999))
    result = trainer.step()
    metrics = result.metrics
    searches = [turn for group in result.groups for t in group.trajectories for turn in t.turns if turn.observation]
    assert searches and not any(turn.hits for turn in searches)
    assert metrics["retrieval/empty_fraction"] == 1.0 and metrics["rollout/failed_fraction"] == 0.0

    agent = replace(trainer.agent, retriever=load_retrievers(trainer.config).eval)
    evaluated = agent.evaluated(greedy=False)
    groups, _ = roll_out(evaluated, load_questions(trainer.config).dev, size=2, seed=("eval", 0), max_failed=0.5)
    assert any(turn.hits for group in groups for episode in group.trajectories for turn in episode.turns)


def test_too_many_failures_stop_the_run(trainer: Trainer) -> None:
    allow_failures(trainer, 0.01)
    break_training_searches(trainer, lambda query: True)
    with pytest.raises(
        RolloutError,
        match=r"of 16 rollouts failed, more than run\.max_failed_fraction = 0\.01 allows. The first error: down",
    ):
        trainer.step()


def test_the_steps_before_an_outage_are_saved(
    trainer: Trainer, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run goes on as if nothing had been: the questions of the step that failed come again."""
    config = recipe({"train.steps": 3, "checkpoint.every": 0})
    whole = run.train(config, tmp_path / "whole")
    rollouts = Trainer.roll_out

    def third_fails(self: Trainer, examples: Any) -> Any:
        if self.completed_steps == 2:
            raise RolloutError("the server is gone")
        return rollouts(self, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "roll_out", third_fails)
        with pytest.raises(RolloutError, match="the server is gone"):
            run.train(config, tmp_path / "broken")
    assert [path.name for path in (tmp_path / "broken" / "checkpoints").glob("step-*")] == ["step-000002"]
    resumed = run.resume(tmp_path / "broken")
    assert resumed.after == whole.after
    rows = [
        [row["reward/mean"] for row in MetricsFile(tmp_path / name / "metrics.jsonl").read() if "reward/mean" in row]
        for name in ("whole", "broken")
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 3


def test_an_evaluation_on_dev_that_fails_costs_no_step(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, seen = Evaluator.__call__, []

    def second_fails(self: Evaluator, examples: Any, *progress: Any) -> Any:
        seen.append(examples[0].split)
        if len(seen) == 2:
            raise RolloutError("the server is gone")
        return evaluate(self, examples, *progress)

    monkeypatch.setattr(Evaluator, "__call__", second_fails)
    config = recipe({"train.steps": 2, "eval.every": 1, "eval.start": False})
    assert train(config, tmp_path / "run", listener=told).steps == 2
    assert seen == ["dev", "dev", "dev", "test"]
    rows = MetricsFile(tmp_path / "run" / "metrics.jsonl").read()
    assert [(row["step"], "eval/em" in row) for row in rows] == [(0, True), (1, False), (2, True)]
    assert "no evaluation on dev after step 1: the server is gone" in told.notes


def test_a_final_evaluation_that_fails_is_resumed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RolloutError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Evaluator, "__call__", fails)
        with pytest.raises(RolloutError, match="the server is gone"):
            train(recipe({"train.steps": 1}), tmp_path / "run")
    assert resume(tmp_path / "run").after


def test_a_step_of_failures_alone_changes_nothing(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.agent.trajectory import Group, Status, Trajectory

    def all_fail(examples: Any) -> Any:
        dead = Trajectory(example_id="q", prompt=(1,), turns=(), status=Status.RETRIEVAL_FAILED)
        return [Group(e.id, (dead,) * 4) for e in examples], RolloutStats()

    monkeypatch.setattr(trainer, "roll_out", all_fail)
    before = [p.detach().clone() for p in trainer.learner.parameters]
    metrics = trainer.step().metrics
    assert "reward/mean" not in metrics and "loss/policy" not in metrics and metrics["rollout/failed_fraction"] == 1
    assert trainer.completed_steps == 1
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.learner.parameters, strict=True))


# ---- disks that are full or closed


def test_a_full_disk_is_a_sentence(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.train.tracking.MetricsFile.step", full)
        with pytest.raises(CheckpointError, match=r"metrics\.jsonl cannot be written: the disk is full"):
            train(recipe(), tmp_path / "run")
    assert resume(tmp_path / "run").steps == 2  # once there is room


def test_a_run_folder_that_cannot_be_made_is_refused_before_anything_is_done(
    recipe: Recipe, tmp_path: Path, told: Any
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run folder .* cannot be written \(.*run\.dir"):
        train(recipe(), tmp_path / "file" / "run", listener=told)
    assert told.stages == []


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file" / "cache"))
    made = warm_start_only(recipe({"warm_start.steps": 2}), tmp_path / "run", listener=told)
    assert (made / "model.safetensors").is_file()
    assert any("could not be cached for later runs" in note and "HOLDFAST_CACHE" in note for note in told.notes)
