"""Runs within a time, at toy size on a CPU: what is finished is kept, what is not is stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_research.pages.kept_runs import packed

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TOY = ("first-action", "--short", "--seeds", 1, "--device", "cpu", "--jobs", 2, "--arms", "LLDS")


@pytest.mark.long
def test_runs_are_finished_and_kept(run: Run, tmp_path: Path) -> None:
    done = run("on_gpu", *TOY, "--out", tmp_path / "runs", "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 2 and all("test EM" in line for line in lines[:-1])
    assert len(packed("first-action", tmp_path / "kept")) == len(lines) - 1


def test_when_the_time_is_up_nothing_is_left_at_work(run: Run, tmp_path: Path) -> None:
    done = run("on_gpu", *TOY, "--out", tmp_path / "runs", "--minutes", 0, "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.rpartition(": ")[2] for line in done.stdout.splitlines()[:-1]} == {"not finished"}
    assert "0 runs are kept" in done.stdout
