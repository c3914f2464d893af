"""The rules as a callback of a real trainer: what it finds, when it stops, and that a file says the same."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import trl
from transformers import TrainerControl, TrainerState

from holdfast.adapters.trl_monitor import Monitoring
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_log
from holdfast_research.recordings.library import Recording, read_manifest, unpack

RECORDINGS = sorted((r for r in read_manifest() if "-trl-" in r.name), key=lambda r: r.name)[:6:3]


class Arguments:
    """What of TrainingArguments the callback reads."""

    def __init__(self, output_dir: Path) -> None:
        self.output_dir, self.device = str(output_dir), "cpu"


def feed(callback: Monitoring, rows: list[dict[str, Any]], folder: Path) -> TrainerControl:
    """The rows of a log, as a trainer would send them; stops when it would."""
    args, state, control = Arguments(folder), TrainerState(is_world_process_zero=True), TrainerControl()
    callback.on_train_begin(args, state, control)
    for row in rows:
        state.global_step = row["step"]
        callback.on_log(args, state, control, logs={k: v for k, v in row.items() if k != "step"})
        if control.should_training_stop:
            break
    callback.on_train_end(args, state, control)
    return control


def test_a_real_trainer_is_watched_and_stopped(make_trainer: Any, tmp_path: Path, caplog: Any) -> None:
    callback = Monitoring(on="GRD002", action="stop")
    trainer = make_trainer(trl.GRPOTrainer, output_dir=str(tmp_path))
    trainer.add_callback(callback)
    log = trainer.log

    def poisoned(logs: dict[str, Any], *more: Any) -> None:
        log(logs | ({"grad_norm": math.nan} if trainer.state.global_step == 2 else {}), *more)

    trainer.log = poisoned
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert (tmp_path / "checkpoint-2").is_dir()
    assert "holdfast: GRD002 at step 2: grad/norm is not a finite number" in caplog.text
    assert "GRD002" in [f["code"] for f in json.loads((tmp_path / "findings.json").read_text())["findings"]]


@pytest.mark.parametrize("recording", RECORDINGS, ids=[recording.name for recording in RECORDINGS])
def test_it_finds_what_the_file_shows(recording: Recording, tmp_path: Path) -> None:
    path = unpack(recording, tmp_path)
    rows = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    callback = Monitoring()
    feed(callback, rows, tmp_path)
    offline = [(finding.code, finding.certain) for finding in diagnose(read_log(path)).findings]
    live = [(finding.code, finding.certain) for finding in callback.findings]
    assert sorted(live) == sorted(offline)  # a file lists causes first


def test_a_resumed_trainer_is_told_what_is_new(tmp_path: Path) -> None:
    callback = Monitoring()
    args, control = Arguments(tmp_path), TrainerControl()
    known = [{"step": 1, "grad_norm": 0.5}, {"step": 2, "grad_norm": math.nan}]
    state = TrainerState(log_history=known, is_world_process_zero=True)
    callback.on_train_begin(args, state, control)
    assert [finding.code for finding in callback.findings] == ["GRD002"]
    state.global_step = 3
    callback.on_log(args, state, control, logs={"grad_norm": math.nan})
    assert len(callback.findings) == 1


def test_a_finding_is_an_alert_of_the_trackers_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    alerts: list[dict[str, Any]] = []
    run = SimpleNamespace(alert=lambda **alert: alerts.append(alert))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    rows = [{"step": 1, "grad_norm": 0.5}, {"step": 2, "grad_norm": math.nan}]
    feed(Monitoring(on="LLD"), rows, tmp_path)
    assert alerts == []
    feed(Monitoring(on="GRD,RWD"), rows, tmp_path)
    (alert,) = alerts
    assert alert["title"] == "holdfast: GRD002 at step 2" and alert["level"] == "WARN"


def test_warn_does_not_stop(tmp_path: Path) -> None:
    control = feed(Monitoring(on="GRD"), [{"step": 1, "grad_norm": math.nan}], tmp_path)
    assert not control.should_training_stop and not control.should_save
    control = feed(Monitoring(on="LLD", action="stop"), [{"step": 1, "grad_norm": math.nan}], tmp_path)
    assert not control.should_training_stop
    control = feed(Monitoring(on="GRD", action="stop"), [{"step": 1, "grad_norm": math.nan}], tmp_path)
    assert control.should_training_stop and control.should_save
