"""The rules over a run of the local engine: alarms, findings.json, the guard."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, GuardStop
from holdfast.base.run_folder import FINDINGS, METRICS, list_checkpoints
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import as_json
from holdfast.diagnose.readers import read_log
from holdfast.recipe import Config, load
from holdfast.train.guard import Guard
from holdfast.train.listener import StepResult
from holdfast.train.run import resume, train
from holdfast.train.tracking import MetricsFile
from holdfast.train.trainer import Trainer

Recipe = Callable[..., Config]
SHORT = {"train.steps": 3, "eval.every": 0, "checkpoint.every": 0, "track.trajectories": 0}


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A gradient norm that is no number, from a step on."""
    step = Trainer.step

    def poisoned(self: Trainer) -> Any:
        result = step(self)  # whose numbers, of a model that never learned anything, are wild
        return replace(result, metrics={"reward/mean": 0.5, "grad/norm": math.nan if result.step >= at else 0.5})

    monkeypatch.setattr(Trainer, "step", poisoned)


def written(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / FINDINGS).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_findings_are_told_once_and_written(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=2)
    summary = train(recipe(SHORT), tmp_path / "run", listener=told)
    assert summary.steps == 3
    assert [(alarm.code, alarm.step) for alarm in told.alarms if alarm.code == "GRD002"] == [("GRD002", 2)]
    log = read_log(tmp_path / "run")
    assert written(tmp_path / "run") == as_json(log, diagnose(log))


def test_the_guard_saves_and_stops(recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, at=2)
    run_dir = tmp_path / "run"
    config = recipe(SHORT | {"guard.codes": "LLD,GRD002", "guard.action": "stop"})
    with pytest.raises(GuardStop) as stop:
        train(config, run_dir, listener=told)
    sentence = str(stop.value)
    assert "after step 2: GRD002" in sentence and f"holdfast resume {run_dir}" in sentence
    (checkpoint,) = list_checkpoints(run_dir)
    assert str(checkpoint) in sentence and (checkpoint / "model").is_dir()
    assert [finding["code"] for finding in written(run_dir)["findings"]] == ["GRD002"]
    assert not (run_dir / "results.json").exists()

    # Known by now: going on is a decision.
    told.alarms.clear()
    assert resume(run_dir, listener=told).steps == 3
    assert [alarm.code for alarm in told.alarms] == []
    assert [(f["code"], f["step"]) for f in written(run_dir)["findings"]] == [("GRD002", 2)]


def test_a_resumed_run_forgets_what_it_will_log_again(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    file = MetricsFile(tmp_path / METRICS)
    for step in (1, 2, 3):
        file.step(StepResult(step=step, metrics={"grad/norm": 0.5 if step < 3 else math.nan}))

    def guard() -> Guard:
        return Guard(recipe().guard, tmp_path, recipe={}, on_finding=told.finding)

    guard()
    assert [finding["code"] for finding in written(tmp_path)["findings"]] == ["GRD002"]
    file.truncate(2)
    resumed = guard()
    assert written(tmp_path)["findings"] == [] and told.alarms == []
    resumed.step(StepResult(step=3, metrics={"grad/norm": math.inf}))
    assert [alarm.code for alarm in told.alarms] == ["GRD002"]


def test_a_list_of_codes_will_do(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[guard]\ncodes = ["LLD003", "ENT"]\naction = "stop"\n')
    assert load(path).guard.codes == "LLD003,ENT"
    path.write_text("[guard]\ncodes = [3]\n")
    with pytest.raises(ConfigError, match=r"guard\.codes"):
        load(path)
