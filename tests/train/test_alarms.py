"""The rules over a run of the local engine: alarms, findings.json, the guard."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Config, load
from holdfast.diagnostics.diagnose import diagnose
from holdfast.diagnostics.present import FINDINGS_FILE, as_json
from holdfast.diagnostics.readers import read_log
from holdfast.errors import ConfigError, GuardStop
from holdfast.train.alarms import Alarms
from holdfast.train.checkpoint import list_checkpoints
from holdfast.train.folder import RunFolder
from holdfast.train.run import resume, train
from holdfast.train.trainer import Trainer

Recipe = Callable[..., Config]
SHORT = {"train.steps": 4, "eval.every": 0, "checkpoint.every": 0, "track.trajectories": 0}


def poison(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """A gradient norm that is no number, from a step on."""
    step = Trainer.step

    def poisoned(self: Trainer) -> Any:
        _, groups, examples = step(self)  # whose numbers, of a model that never learned anything, are wild
        return {"reward/mean": 0.5, "grad/norm": math.nan if self.completed >= at else 0.5}, groups, examples

    monkeypatch.setattr(Trainer, "step", poisoned)


def written(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / FINDINGS_FILE).read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_findings_are_told_once_and_written(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=2)
    summary = train(recipe(SHORT), tmp_path / "run", observer=told)
    assert summary.steps == 4
    assert [(alarm.code, alarm.step) for alarm in told.alarms if alarm.code == "GRD002"] == [("GRD002", 2)]
    log = read_log(tmp_path / "run")
    assert written(tmp_path / "run") == as_json(log, diagnose(log))


def test_the_guard_saves_and_stops(recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(monkeypatch, at=2)
    run_dir = tmp_path / "run"
    config = recipe(SHORT | {"guard.on": "LLD,GRD002", "guard.action": "stop"})
    with pytest.raises(GuardStop) as stop:
        train(config, run_dir, observer=told)
    sentence = str(stop.value)
    assert "after step 2: GRD002" in sentence and f"--resume {run_dir}" in sentence
    (checkpoint,) = list_checkpoints(run_dir)
    assert str(checkpoint) in sentence and (checkpoint / "model").is_dir()
    assert [finding["code"] for finding in written(run_dir)["findings"]] == ["GRD002"]
    assert not (run_dir / "results.json").exists()

    # Known by now: going on is a decision.
    told.alarms.clear()
    assert resume(run_dir, observer=told).steps == 4
    assert [alarm.code for alarm in told.alarms] == []
    assert [(f["code"], f["step"]) for f in written(run_dir)["findings"]] == [("GRD002", 2)]


def test_the_guard_minds_its_own_codes(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=2)
    config = recipe(SHORT | {"guard.on": "LLD003", "guard.action": "stop"})
    assert train(config, tmp_path / "run", observer=told).steps == 4
    assert told.alarms == []
    assert [finding["code"] for finding in written(tmp_path / "run")["findings"]] == ["GRD002"]


def test_the_last_step_ends_the_run_anyway(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, at=4)
    config = recipe(SHORT | {"guard.action": "stop"})
    assert train(config, tmp_path / "run", observer=told).steps == 4
    assert [alarm.code for alarm in told.alarms] == ["GRD002"]


def test_a_resumed_run_forgets_what_it_will_log_again(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.begin(recipe(SHORT))
    for step in (1, 2, 3):
        folder.metrics.log(step, {"grad/norm": 0.5 if step < 3 else math.nan})
    folder.metrics.close()
    Alarms(folder.config(), folder, told)
    assert [finding["code"] for finding in written(folder.path)["findings"]] == ["GRD002"]
    folder.forget_after(2)
    alarms = Alarms(folder.config(), folder, told)
    assert written(folder.path)["findings"] == [] and told.alarms == []
    alarms.observe(3, {"grad/norm": math.inf})
    assert [alarm.code for alarm in told.alarms] == ["GRD002"]


@pytest.mark.parametrize("on", ["LLX001", "LLD003, ENT9"])
def test_a_code_that_does_not_exist_is_refused(recipe: Recipe, on: str) -> None:
    with pytest.raises(ConfigError, match=r"guard\.on: no finding's code begins with .* The codes are GRD002, "):
        recipe({"guard.on": on})


def test_a_list_of_codes_will_do(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text('[guard]\non = ["LLD003", "ENT"]\naction = "stop"\n')
    assert load(path).guard.on == "LLD003,ENT"
    path.write_text("[guard]\non = [3]\n")
    with pytest.raises(ConfigError, match=r"guard\.on"):
        load(path)
