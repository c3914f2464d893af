"""A run whose reward a judge gives: its metrics, what it keeps, and how it ends without the judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent import judge as judging
from holdfast.agent.judge import FILE
from holdfast.base.errors import RolloutError
from holdfast.base.run_folder import list_checkpoints
from holdfast.recipe import Config
from holdfast.train.run import resume, train

from ..judges import JudgeServer, a_judge

Recipe = Callable[..., Config]


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, told_what_to_say: Any) -> Iterator[JudgeServer]:
    monkeypatch.setattr(judging, "PATIENCE", 0.0)
    with a_judge() as server:
        yield server


def judged(recipe: Recipe, server: JudgeServer, **more: Any) -> Config:
    changes = {"reward.em": 0.0, "reward.f1": 0.0, "reward.format": 0.0, "checkpoint.every": 1, "eval.start": False}
    changes |= {"run.max_failed_fraction": 0.001}
    of_judge = {"weight": 1.0, "url": server.url, "model": "m"} | more
    return recipe(changes | {f"reward.judge.{name}": value for name, value in of_judge.items()})


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_rewarded_by_the_judge(recipe: Recipe, judge: JudgeServer, tmp_path: Path) -> None:
    """It accepts every second answer, whatever exact match says; equal answers are asked for once."""
    judge.saying = lambda prompt: f"grade: {len(prompt) % 2}"
    train(judged(recipe, judge), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    kept = [json.loads(line) for line in (tmp_path / "run" / FILE).read_text().splitlines()]
    assert len({row["key"] for row in kept}) == len(kept) == len(judge.bodies)
    assert sum(row.get("judge/calls", 0) for row in rows) == len(kept)
    sampled = [json.loads(line) for line in (tmp_path / "run" / "trajectories.jsonl").read_text().splitlines()]
    assert sampled and all(row["reward"] == row["reward_parts"]["judge"] for row in sampled)
    grades = {(row["question"], row["answer"]): row["grade"] for row in kept}
    for row in sampled:
        assert row["reward"] == (0.0 if row["answer"] is None else grades[row["question"], row["answer"]])
    for row in rows:
        if "judge/agreement" in row:
            more, less = row["judge/accepts_more_fraction"], row["judge/accepts_less_fraction"]
            assert row["judge/agreement"] + more + less == pytest.approx(1.0)


@pytest.mark.parametrize("failure", [(503, "down"), (200, "I do not grade.")])
def test_a_judge_that_is_down_or_talks_nonsense_ends_the_run_with_a_checkpoint(
    failure: tuple[int, str], recipe: Recipe, judge: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, run = judged(recipe, judge), tmp_path / "run"
    real, steps = judging.JudgeClient.grade, list[int]()

    async def no_pause(seconds: float) -> None:
        """Between attempts."""

    def failing_later(self: Any, asked: Any) -> Any:
        judge.always = failure if steps else None
        steps.append(len(asked))
        self._known.clear()  # each answer is asked for again
        return real(self, asked)

    monkeypatch.setattr(judging.asyncio, "sleep", no_pause)
    monkeypatch.setattr(judging.JudgeClient, "grade", failing_later)
    with pytest.raises(RolloutError, match=r"rollouts failed.*the judge does not grade"):
        train(config, run)
    assert [path.name for path in list_checkpoints(run)] == ["step-000001"]
    monkeypatch.setattr(judging.JudgeClient, "grade", real)
    judge.always = None
    assert resume(run).steps == config.train.steps


def test_a_bound_ends_the_run_with_the_setting(recipe: Recipe, judge: JudgeServer, tmp_path: Path) -> None:
    with pytest.raises(RolloutError, match=r"reward\.judge\.max_calls = 1\b"):
        train(judged(recipe, judge, max_calls=1), tmp_path / "run")
