"""Runs within a time, at toy size on a CPU: what is finished is kept, what is not is stopped."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.run_folder import METRICS
from holdfast_research.experiments import find
from holdfast_research.on_gpu import end_where_cut
from holdfast_research.pages.kept_runs import packed
from holdfast_research.plan import Plan
from holdfast_research.series import read_run, summarise

Run = Callable[..., "subprocess.CompletedProcess[str]"]
TOY = ("first-action", "--short", "--seeds", 1, "--device", "cpu", "--jobs", 2, "--arms", "LLDS")


@pytest.mark.long
def test_runs_are_finished_and_kept(run: Run, tmp_path: Path) -> None:
    done = run("on_gpu", *TOY, "--out", tmp_path / "runs", "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 2 and all("test EM" in line for line in lines[:-1])
    assert len(packed("first-action", tmp_path / "kept")) == len(lines) - 1


def test_a_run_that_was_cut_is_kept_without_an_evaluation_if_it_is_long_enough(tmp_path: Path) -> None:
    experiment = find("first-action")
    plan = Plan(experiment=experiment, arms=experiment.arms[:2], seeds=(11,), settings={}, short=True)
    long, short = plan.jobs(tmp_path)
    for job, steps in ((long, 3), (short, 2)):
        job.folder.mkdir(parents=True)
        rows = [{"step": step, "reward/mean": 0.5, "time/step_s": 2.0} for step in range(1, steps + 1)]
        (job.folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    end_where_cut(plan, tmp_path, 3)
    assert long.done and not short.done
    summary = summarise(read_run(long.folder, long.arm, long.seed))
    assert summary.seconds == 6 and summary.last == 0.5 and math.isnan(summary.em_after)


def test_when_the_time_is_up_nothing_is_left_at_work(run: Run, tmp_path: Path) -> None:
    done = run("on_gpu", *TOY, "--out", tmp_path / "runs", "--minutes", 0, "--keep", tmp_path / "kept")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.rpartition(": ")[2] for line in done.stdout.splitlines()[:-1]} == {"not finished"}
    assert "0 runs are kept" in done.stdout
