"""The two files of sampled rollouts stay below their largest size, and a resumed run continues them alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.train import trajectory_files
from holdfast.train.listener import Displacement, StepResult
from holdfast.train.trajectory_files import TrajectoryFiles, forget_trajectories_after

LARGEST = 4000
STEPS = 1000


def write(run_dir: Path, first: int, last: int) -> None:
    run_dir.mkdir(exist_ok=True)
    listener = TrajectoryFiles(run_dir, 4)
    for step in range(first, last + 1):
        changes = Displacement(correct=(0.001 * step,), incorrect=(-0.5, 0.25), by_turn={})
        listener.step(StepResult(step=step, metrics={}, displacement=changes))


def steps_of(run_dir: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run_dir / "displacement.jsonl").read_text().splitlines()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectory_files, "LARGEST", LARGEST)


def test_a_file_is_bounded_and_keeps_evenly_spaced_steps(tmp_path: Path) -> None:
    write(tmp_path, 1, 50)
    assert steps_of(tmp_path) == list(range(1, 51))  # nothing is lost before it is full
    write(tmp_path, 51, STEPS)
    steps = steps_of(tmp_path)
    stride = steps[0]
    assert steps == list(range(stride, STEPS + 1, stride)) and stride == 16
    assert LARGEST / 3 < (tmp_path / "displacement.jsonl").stat().st_size <= LARGEST


@pytest.mark.parametrize("stopped", [40, 130, 500, 999])
def test_a_resumed_run_continues_it_alike(tmp_path: Path, stopped: int) -> None:
    write(tmp_path / "whole", 1, STEPS)
    write(tmp_path / "run", 1, stopped + 7)
    forget_trajectories_after(tmp_path / "run", stopped)
    write(tmp_path / "run", stopped + 1, STEPS)
    whole, run = (tmp_path / name / "displacement.jsonl" for name in ("whole", "run"))
    assert run.read_bytes() == whole.read_bytes()


def test_a_small_file_keeps_every_step(tmp_path: Path) -> None:
    """Steps that happen to be even are not taken for a thinned file."""
    for step in (2, 4):
        write(tmp_path / "run", step, step)
    write(tmp_path / "run", 5, 6)
    assert steps_of(tmp_path / "run") == [2, 4, 5, 6]
