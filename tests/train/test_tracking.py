from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import DataError, MissingExtra
from holdfast.recipe import load
from holdfast.train.listener import Listener, StepResult
from holdfast.train.tracking import MetricsFile, WandB, open_trackers


@pytest.fixture
def file(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "run" / "metrics.jsonl")


def lines(file: MetricsFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.path.read_text().splitlines()]


def log(tracker: Listener, step: int, metrics: dict[str, float]) -> None:
    tracker.step(StepResult(step=step, metrics=metrics))


def opened(run_dir: Path, *overrides: str) -> Listener:
    config = load(overrides=overrides)
    return open_trackers(config.track, run_dir, name=config.run.name, settings=config.model_dump())


def test_a_step_is_on_disk_as_soon_as_it_is_logged(file: MetricsFile) -> None:
    log(file, 1, {"reward/mean": 0.25, "train/count": 3})
    assert lines(file) == [{"step": 1, "time": lines(file)[0]["time"], "reward/mean": 0.25, "train/count": 3}]
    assert lines(file)[0]["time"] > 1.7e9


def test_floats_come_back_bit_for_bit(file: MetricsFile) -> None:
    value = 0.1 + 0.2  # 0.30000000000000004: a rounded number could not tell two runs apart
    log(file, 1, {"x": value})
    assert file.read()[0]["x"] == value


def test_what_is_not_finite_is_left_out_and_named(file: MetricsFile) -> None:
    log(file, 1, {"grad/norm": math.nan, "ratio/max": math.inf, "reward/mean": 1.0})
    (row,) = lines(file)
    assert row["dropped"] == ["grad/norm", "ratio/max"]
    assert "grad/norm" not in row
    assert row["reward/mean"] == 1.0
    log(file, 2, {"reward/mean": 1.0})
    assert "dropped" not in lines(file)[1]


def test_numbers_of_numpy_are_written(file: MetricsFile) -> None:
    import numpy as np

    log(file, 1, {"x": np.float32(0.5)})
    assert lines(file)[0]["x"] == 0.5


def test_truncate_drops_later_steps_and_logging_goes_on(file: MetricsFile) -> None:
    for step in range(1, 6):
        log(file, step, {"x": step})
    file.truncate(3)
    log(file, 4, {"x": 40})
    assert [(row["step"], row["x"]) for row in lines(file)] == [(1, 1), (2, 2), (3, 3), (4, 40)]


def test_truncate_keeps_rows_byte_for_byte(file: MetricsFile) -> None:
    for step in (1, 2):
        log(file, step, {"x": 1e-17 * step, "y": math.nan})
    before = file.path.read_bytes()
    file.truncate(1)
    assert file.path.read_bytes() == before.splitlines(keepends=True)[0]


@pytest.mark.parametrize("cut", ['{"step": 2, "re', '{"step"', "{", "12"])
def test_a_cut_last_line_is_ignored_and_then_dropped(file: MetricsFile, cut: str) -> None:
    log(file, 1, {"x": 1})
    file.close()
    with file.path.open("a") as raw:
        raw.write(cut)
    assert [row["step"] for row in file.read()] == [1]
    log(file, 2, {"x": 2})
    assert [row["step"] for row in lines(file)] == [1, 2]


def test_a_whole_last_line_without_its_newline_is_kept(file: MetricsFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text('{"step": 1, "time": 0, "x": 1}')
    log(file, 2, {"x": 2})
    assert [row["step"] for row in lines(file)] == [1, 2]


def test_a_broken_line_in_the_middle_is_an_error_with_its_number(file: MetricsFile) -> None:
    file.path.parent.mkdir()
    file.path.write_text('{"step": 1}\nnonsense\n{"step": 3}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: .*not a row"):
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


def test_no_file_reads_as_nothing(file: MetricsFile) -> None:
    assert file.read() == []
    assert file.last_step() == -1
    file.truncate(3)
    assert not file.path.exists()


def test_the_file_alone_is_written_by_default(tmp_path: Path) -> None:
    tracker = opened(tmp_path)
    log(tracker, 1, {"x": 1.0})
    tracker.close()
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize(
    ("overrides", "module", "package"),
    [
        (["--track.wandb", "project"], "wandb", "wandb"),
        (["--track.tensorboard"], "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_a_missing_package_is_said_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    with pytest.raises(MissingExtra, match=rf"{package} is not installed.*holdfast-rl\[track\]"):
        opened(tmp_path, *overrides)


def test_tensorboard_holds_the_numbers_of_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    first = opened(tmp_path, "--track.tensorboard")
    for step in (1, 2, 3):
        log(first, step, {"reward/mean": step / 4})
    first.close()
    MetricsFile(tmp_path / "metrics.jsonl").truncate(1)  # what resuming after step 1 does
    second = opened(tmp_path, "--track.tensorboard")
    log(second, 2, {"reward/mean": 0.75})
    second.close()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("reward/mean")
    assert [(e.step, e.value) for e in events] == [(1, 0.25), (2, 0.75)]


class FakeWandB(SimpleNamespace):
    """Records what the tracker asks of wandb."""

    def __init__(self) -> None:
        super().__init__(started=[], rows=[], axes=[], finished=0)

    def init(self, **arguments: Any) -> FakeWandB:
        self.started.append(arguments)
        return self

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.finished += 1


def test_wandb_continues_the_same_run_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for step in (5, 3):  # the second process resumed from an earlier checkpoint
        tracker = opened(tmp_path, "--track.wandb", "searchers", "--run.name", "night")
        log(tracker, step, {"reward/mean": 0.5})
        tracker.close()
    assert fake.rows == [{"step": 5, "reward/mean": 0.5}, {"step": 3, "reward/mean": 0.5}]
    assert fake.axes == [("*", "step")] * 2
    assert fake.finished == 2
    first, second = fake.started
    assert first["project"] == "searchers"
    assert first["name"] == "night"
    assert first["id"] == second["id"]
    assert first["config"]["run"]["name"] == "night"
    WandB("searchers", tmp_path / "other", settings={}, name="other")
    assert fake.started[2]["id"] != first["id"]
