from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose import follow
from holdfast.recipe import load
from holdfast.train.guard import REPORT_SHARE, LiveReport
from holdfast.train.listener import Displacement, Listener, StepResult
from holdfast.train.tracking import MetricsFile, TrajectoryFiles, WandB, forget_trajectories_after, open_trackers


@pytest.fixture
def file(tmp_path: Path) -> Iterator[MetricsFile]:
    file = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    yield file
    file.close()


def lines(file: MetricsFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.path.read_text().splitlines()]


def log(tracker: Listener, step: int, metrics: dict[str, float]) -> None:
    tracker.step(StepResult(step=step, metrics=metrics))


def opened(run_dir: Path, *overrides: str) -> Listener:
    config = load(overrides=overrides)
    return open_trackers(config.track, run_dir, name=config.run.name, settings=config.model_dump())


def test_a_step_is_on_disk_as_soon_as_it_is_logged(file: MetricsFile) -> None:
    log(file, 1, {"reward/mean": 0.1 + 0.2, "train/count": 3})  # 0.30000000000000004: every bit tells two runs apart
    assert lines(file) == [{"step": 1, "time": lines(file)[0]["time"], "reward/mean": 0.1 + 0.2, "train/count": 3}]
    assert lines(file)[0]["time"] > 1.7e9


def test_what_is_not_finite_is_left_out_and_named(file: MetricsFile) -> None:
    log(file, 1, {"grad/norm": math.nan, "ratio/max": math.inf, "reward/mean": 1.0})
    (row,) = lines(file)
    assert row["dropped"] == ["grad/norm", "ratio/max"]
    assert "grad/norm" not in row
    assert row["reward/mean"] == 1.0
    log(file, 2, {"reward/mean": 1.0})
    assert "dropped" not in lines(file)[1]


@pytest.mark.parametrize("cut", ['{"step": 2, "re', "12"])
def test_a_cut_last_line_is_ignored_and_then_dropped(file: MetricsFile, cut: str) -> None:
    log(file, 1, {"x": 1})
    file.close()
    with file.path.open("a") as raw:
        raw.write(cut)
    assert [row["step"] for row in file.read()] == [1]
    log(file, 2, {"x": 2})
    assert [row["step"] for row in lines(file)] == [1, 2]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(file: MetricsFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2 is not a row"):
        file.read()


@pytest.mark.parametrize(("step", "left"), [(2, [1, 2]), (1, [1]), (-1, [])])
def test_truncate_does_not_read_what_it_deletes(file: MetricsFile, step: int, left: list[int]) -> None:
    for number in (1, 2, 3):
        log(file, number, {})
    file.close()
    with file.path.open("ab") as raw:
        raw.write(b'{"step": 4, "rew\n\xff\x00\n[\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:4"):
        file.read()
    file.truncate(step)
    assert [row["step"] for row in file.read()] == left


@pytest.mark.parametrize(("kept", "steps"), [(1, [1, 2]), (-1, [2])])
def test_tensorboard_holds_the_numbers_of_a_resumed_run(tmp_path: Path, kept: int, steps: list[int]) -> None:
    pytest.importorskip("tensorboard")
    first = opened(tmp_path, "--track.tensorboard")
    for step in (1, 2, 3):
        log(first, step, {"reward/mean": step / 4})
    first.close()
    MetricsFile(tmp_path / "metrics.jsonl").truncate(kept)  # what resuming after this step does; -1: from the start
    second = opened(tmp_path, "--track.tensorboard")
    log(second, 2, {"reward/mean": 0.75})
    second.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("reward/mean")
    assert [(e.step, e.value) for e in events] == [(step, {1: 0.25, 2: 0.75}[step]) for step in steps]


def test_wandb_continues_the_same_run_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    for step in (5, 3):  # the second process resumed from an earlier checkpoint
        tracker = opened(tmp_path, "--track.wandb", "searchers", "--run.name", "night")
        log(tracker, step, {"reward/mean": 0.5})
        tracker.close()
    run = wandb.init.return_value
    assert [one.args[0] for one in run.log.call_args_list] == [{"step": step, "reward/mean": 0.5} for step in (5, 3)]
    assert run.define_metric.call_args == call("*", step_metric="step") and run.finish.call_count == 2
    WandB("searchers", tmp_path / "other", settings={}, name="other")
    first, second, other = (one.kwargs for one in wandb.init.call_args_list)
    assert (first["project"], first["name"], first["config"]["run"]["name"]) == ("searchers", "night", "night")
    assert first["id"] == second["id"] != other["id"]


def test_a_resumed_run_writes_sampled_rollouts_again(tmp_path: Path) -> None:
    def write(first: int, last: int) -> None:
        listener = TrajectoryFiles(tmp_path, 4)
        for step in range(first, last + 1):
            changes = Displacement(correct=(0.001 * step,), incorrect=(-0.5, math.nan))
            listener.step(StepResult(step=step, metrics={}, displacement=changes))

    write(1, 5)
    forget_trajectories_after(tmp_path, 2)
    write(3, 3)
    rows = [json.loads(line) for line in (tmp_path / "displacement.jsonl").read_text().splitlines()]
    assert rows == [{"step": k, "correct": [0.001 * k], "incorrect": [-0.5, None]} for k in (1, 2, 3)]


# ---- the report of a run under way


A_STEP = StepResult(step=1, metrics={})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    rows = [{"step": step, "time": 0.0, "reward/mean": step / 10} for step in range(8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("cost", [0.02, 3.0])
def test_it_takes_a_hundredth_of_the_time(run_dir: Path, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    clock, spent = Clock(), []

    def slow(*_: Any, live: bool) -> None:
        clock.now += cost
        spent.append(cost)

    monkeypatch.setattr(follow, "write_report", slow)
    report = LiveReport(run_dir, pytest.fail, clock)
    shares = []
    for _ in range(20_000):
        clock.now += 0.2
        report.step(A_STEP)
        if spent and not shares:  # the first one cannot be known before
            shares.append(0.0)
            spent.clear()
            clock_started = clock.now
    assert len(spent) > 5
    assert 0.5 * REPORT_SHARE < sum(spent) / (clock.now - clock_started) <= REPORT_SHARE


def test_it_is_live_until_the_run_ends(run_dir: Path) -> None:
    report = LiveReport(run_dir, pytest.fail)
    report.write(live=True)
    assert '"live":5' in (run_dir / "report.html").read_text()
    report.close()
    assert '"live":null' in (run_dir / "report.html").read_text()


def test_what_goes_wrong_is_said_once(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, live: bool) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(follow, "write_report", broken)
    said: list[str] = []
    report = LiveReport(run_dir, said.append)
    report.write(live=True)
    report.write(live=True)
    assert said == ["report.html was not written: by zero"]
