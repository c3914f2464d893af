"""Searches that fail: what a step makes of the episodes, and of what is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from holdfast.agent.agent import lose_searches
from holdfast.agent.searching import RolloutStats
from holdfast.base import retries
from holdfast.base.errors import CheckpointError, RetrievalError, RetrieverUnreachable, RolloutError
from holdfast.cli.main import app
from holdfast.recipe import Config, dump
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.types import Document
from holdfast.tasks import opening as loading
from holdfast.tasks.opening import load_questions, load_retrievers
from holdfast.train import run
from holdfast.train.evaluate import Evaluator
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

    def __init__(self, inner: Any, fails: Callable[[str], bool], error: type[RetrievalError] = RetrievalError) -> None:
        self.inner, self.fails, self.error = inner, fails, error

    def search(self, queries: Any, k: int) -> Any:
        if any(map(self.fails, queries)):
            raise self.error("down")
        return self.inner.search(queries, k)


def break_training_searches(trainer: Trainer, fails: Callable[[str], bool]) -> None:
    broken = CachedRetriever(Broken(trainer.agent.retriever, fails), 0)
    trainer.agent = replace(trainer.agent, retriever=broken)


@pytest.fixture
def trainer(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, told_what_to_say: Any) -> Trainer:
    from holdfast.agent import searching

    monkeypatch.setattr(searching.time, "sleep", lambda _: None)  # between retries
    return a_trainer(recipe({"run.max_failed_fraction": 0.9}))


def test_an_outage_is_not_a_wrong_answer(trainer: Trainer) -> None:
    """Episodes whose search failed are in no mean, no group and no gradient; the others are learned from."""
    break_training_searches(trainer, lambda query: True)
    result = trainer.step()
    metrics, groups = result.metrics, result.groups
    failed = [t for group in groups for t in group.trajectories if t.status.is_failure]
    assert len(failed) == 8 and metrics["rollout/failed_fraction"] == 0.5
    assert metrics["retrieval/error_fraction"] == 1.0
    batch = trainer.make_batch(groups)
    assert len(batch) == 8 and bool(batch.valid.all())
    section = trainer.config.run.model_copy(update={"max_failed_fraction": 0.01})
    trainer.config = trainer.config.model_copy(update={"run": section})
    with pytest.raises(RolloutError, match=r"16 rollouts failed.*run\.max_failed_fraction = 0\.01.*first error: down"):
        trainer.step()


def test_a_dead_retriever_is_waited_for_once_a_run(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once a batch. After that a search that fails is given up at once, until there is an answer."""
    from holdfast.agent import searching

    waited = [0.0]
    monkeypatch.setattr(searching.time, "sleep", waited.append)
    monkeypatch.setattr(retries, "monotonic", lambda: sum(waited))
    alive = trainer.agent.retriever
    trainer.agent = replace(
        trainer.agent, retriever=CachedRetriever(Broken(alive, lambda _: True, RetrieverUnreachable), 0)
    )
    evaluator = Evaluator(trainer.agent, 1, seed=0, max_failed=1.0)
    assert trainer.step().metrics["rollout/failed_fraction"] > 0
    assert 180 < sum(waited) < 190
    waited[:] = [sum(waited)]
    assert trainer.step().metrics["rollout/failed_fraction"] > 0
    assert evaluator(load_questions(trainer.config).dev[:8]).scores["failed_fraction"] > 0
    assert len(waited) == 1
    trainer.agent = replace(trainer.agent, retriever=alive)
    assert trainer.step().metrics["rollout/failed_fraction"] == 0
    trainer.agent = replace(
        trainer.agent, retriever=CachedRetriever(Broken(alive, lambda _: True, RetrieverUnreachable), 0)
    )
    trainer.step()
    assert 180 < sum(waited[1:]) < 190


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


def test_the_steps_before_an_outage_are_saved(
    trainer: Trainer, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the run goes on as if nothing had been: the questions of the step that failed come again."""
    config = recipe({"train.steps": 2, "checkpoint.every": 0})
    whole = run.train(config, tmp_path / "whole")
    rollouts = Trainer.roll_out

    def second_fails(self: Trainer, examples: Any) -> Any:
        if self.completed_steps == 1:
            raise RolloutError("the server is gone")
        return rollouts(self, examples)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "roll_out", second_fails)
        with pytest.raises(RolloutError, match="the server is gone"):
            run.train(config, tmp_path / "broken")
    assert [path.name for path in (tmp_path / "broken" / "checkpoints").glob("step-*")] == ["step-000001"]
    resumed = run.resume(tmp_path / "broken")
    assert resumed.after == whole.after
    rows = [
        [row["reward/mean"] for row in MetricsFile(tmp_path / name / "metrics.jsonl").read() if "reward/mean" in row]
        for name in ("whole", "broken")
    ]
    assert rows[0] == rows[1] and len(rows[0]) == 2


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


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "file" / "cache"))
    made = warm_start_only(recipe({"warm_start.steps": 2}), tmp_path / "run", listener=told)
    assert (made / "model.safetensors").is_file()
    assert any("could not be cached for later runs" in note and "HOLDFAST_CACHE" in note for note in told.notes)


# ---- a server that stops answering as it should


@pytest.mark.usefixtures("told_what_to_say")
def test_a_run_that_meets_a_broken_server_saves_and_says_so(
    own: Callable[..., Config], base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retrieve_server: Any
) -> None:
    """What else a server may send is in tests/retrieval/test_client.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_TOKEN", "hush-hush")
    monkeypatch.setenv("MY_KEY", "hush-hush-2")
    monkeypatch.setattr(retries, "_MAX_PAUSE", 0.001)
    monkeypatch.setattr(loading, "PATIENCE", 0.0)
    server = retrieve_server(BM25Retriever.build([Document("3", "place 3\nIt is a lake.")]))
    changes = {"retrieval.corpus": None, "retrieval.url": f"{server.url}?key=$MY_KEY"}
    changes |= {"retrieval.cache_size": 0, "run.name": "r", "run.max_failed_fraction": 0.01, "eval.start": False}
    (tmp_path / "r.toml").write_text(dump(own(base, changes | {"checkpoint.every": 0})))
    one_step = Trainer.step

    def step(self: Trainer) -> Any:
        server.replies[:] = [(200, b"<html>hello</html>")] * 999 if self.completed_steps else []
        return one_step(self)

    monkeypatch.setattr(Trainer, "step", step)
    done = CliRunner().invoke(app, ["train", "r.toml"])
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit), done.output
    assert "Step 1 is saved. To continue from there:\n  holdfast resume runs/r" in done.output
    assert (tmp_path / "runs" / "r" / "checkpoints" / "step-000001").is_dir()
    assert "hush-hush" not in done.output and server.requests[-1]["path"] == "/retrieve?key=hush-hush-2"
    kept = {path.name: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    assert b"?key=$MY_KEY" in kept["config.toml"] and not any(b"hush" in data for data in kept.values())
    for command in (
        ["ask", "runs/r", "What is place 3?"],
        ["eval", "run", "runs/r", "--data", "test"],
        ["resume", "runs/r"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert "hush-hush" not in done.output
