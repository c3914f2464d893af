"""Jobs as processes, for which a script stands in; and runs that another experiment has made."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from holdfast import __version__
from holdfast.base.errors import ConfigError
from holdfast.recipe import dump, load
from holdfast.recipe.loading import find_recipe
from holdfast_research import jobs as jobs_module
from holdfast_research.jobs import (
    EvaluationJob,
    Failure,
    Job,
    Progress,
    TrainingJob,
    refuse_other_runs,
    reuse_runs,
    run_jobs,
)
from holdfast_research.methods import Settings, words

RECIPE = find_recipe("collapse")
NO_START: Settings = {"warm_start.steps": 0, "world.scripts.plain_steps": 0, "train.steps": 3}
WITH_START: Settings = {"train.steps": 3, "warm_start.seed": 3}
"""The start of the recipe as it is comes with holdfast."""

# Writes what a run writes; what it does besides stands in its arm's name.
SCRIPT = """
import json, pathlib, sys, time
folder, arm, warm = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
diary = folder.parent.parent / "diary"
with diary.open("a") as file: file.write(f"{'start' if warm else 'run'} {arm} begins\\n")
folder.mkdir(parents=True, exist_ok=True)
if "broken" in arm:
    print("step 1/3"); print("error: the disk is full"); sys.exit(2)
if "bug" in arm: raise RuntimeError("no such thing")
if "long" in arm: time.sleep(600)
if "slow" in arm: time.sleep(0.2)
if warm:
    (folder / "model").mkdir()
else:
    with (folder / "metrics.jsonl").open("w") as file:
        for step in (1, 2, 3): file.write(json.dumps({"step": step, "reward/mean": 0.5, "time/step_s": 2.0}) + "\\n")
    (folder / "results.json").write_text("{}")
with diary.open("a") as file: file.write(f"{'start' if warm else 'run'} {arm} ends\\n")
"""


@pytest.fixture(autouse=True)
def fake_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def command(self: TrainingJob) -> list[str]:
        return [sys.executable, str(script), str(self.folder), self.arm, str(self.warm_start)]

    monkeypatch.setattr(TrainingJob, "command", command)
    monkeypatch.setattr(jobs_module, "_POLL", 0.02)


def job(tmp_path: Path, arm: str, seed: int = 1, settings: Settings = NO_START, **more: Any) -> TrainingJob:
    folder = tmp_path / "runs" / f"{arm}-s{seed}"
    return TrainingJob(folder=folder, arm=arm, seed=seed, recipe=RECIPE, settings=settings, **more)


def diary(tmp_path: Path) -> list[str]:
    return (tmp_path / "diary").read_text().splitlines()


def run(tmp_path: Path, jobs: Sequence[Job], at_once: int = 1) -> tuple[list[Failure], Progress]:
    seen: list[Progress] = []
    failures = run_jobs(jobs, at_once, tmp_path / "logs", seen.append)
    return failures, seen[-1]


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "a"), job(tmp_path, "b")]
    assert run(tmp_path, jobs[:1])[0] == []
    failures, progress = run(tmp_path, jobs)
    assert failures == []
    assert diary(tmp_path).count("run a begins") == 1
    assert progress.finished == ["a, seed 1", "b, seed 1"]
    assert (progress.steps_done, progress.steps, progress.waiting, progress.left_s) == (6, 6, 0, 0)


def test_one_failure_does_not_lose_the_others(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "broken"), job(tmp_path, "bug"), job(tmp_path, "fine")]
    failures, _ = run(tmp_path, jobs)
    assert [failure.job.name for failure in failures] == ["broken, seed 1", "bug, seed 1"]
    assert failures[0].reason == "the disk is full"
    assert failures[1].reason == "it ended with code 1; its last line: RuntimeError: no such thing"
    assert failures[0].log.read_text().startswith("step 1/3")
    assert jobs[2].done


@pytest.mark.parametrize("at_once", [1, 2])
def test_as_many_at_once_as_asked_for(tmp_path: Path, at_once: int) -> None:
    run(tmp_path, [job(tmp_path, f"slow-{arm}") for arm in "abc"], at_once)
    changes = [1 if line.endswith("begins") else -1 for line in diary(tmp_path)]
    assert max(accumulate(changes)) == at_once


def test_a_warm_start_is_made_once_and_first(tmp_path: Path) -> None:
    other = {**WITH_START, "world.scripts.misread": 0.5}
    jobs = [job(tmp_path, "a", 1, WITH_START), job(tmp_path, "a", 2, WITH_START), job(tmp_path, "c", 1, other)]
    jobs.append(job(tmp_path, "none"))
    assert run(tmp_path, jobs, at_once=3)[0] == []
    said = diary(tmp_path)
    assert sorted(line for line in said if "start" in line and "begins" in line) == ["start a begins", "start c begins"]
    assert said.index("start a ends") < said.index("run a begins")
    assert said.index("start c ends") < said.index("run c begins")


def test_a_warm_start_stands_just_before_the_runs_that_need_it(tmp_path: Path) -> None:
    """The start that comes with holdfast, of "c", is not made."""
    jobs = [
        job(tmp_path, "a", 1, WITH_START),
        job(tmp_path, "b", 1, WITH_START),
        job(tmp_path, "c", 1, {"train.steps": 3}),
    ]
    jobs.append(job(tmp_path, "d", 2, {**WITH_START, "warm_start.seed": 2}))
    run(tmp_path, jobs, at_once=1)
    begun = [" ".join(line.split()[:2]) for line in diary(tmp_path) if "begins" in line]
    assert begun == ["start a", "run a", "run b", "run c", "start d", "run d"]


def test_what_needs_a_failed_job_is_not_tried(tmp_path: Path) -> None:
    """Runs whose warm start failed; a row that starts from another's model, and the evaluations of both."""
    runs = [job(tmp_path / "first", "broken", seed, WITH_START) for seed in (1, 2)]
    failures, _ = run(tmp_path / "first", runs)
    assert [(f.job.name, f.reason) for f in failures] == [
        ("warm start for broken, seed 1", "the disk is full"),
        ("broken, seed 1", "its warm start failed"),
        ("broken, seed 2", "its warm start failed"),
    ]
    assert "run broken begins" not in diary(tmp_path / "first")
    broken = job(tmp_path, "broken", baseline=("sft",))
    after = job(tmp_path, "after", needs=(broken,), baseline=("rag-sft",))
    jobs = [job(tmp_path, "fine"), broken, after]
    evaluations = [
        EvaluationJob(
            folder=tmp_path / "evals" / one.arm, needs=(one,), row=one.arm, seed=1, method="rag", data="world"
        )
        for one in jobs[1:]
    ]
    failures, _ = run(tmp_path, [*jobs, *evaluations], at_once=2)
    assert [(f.job.name, f.reason) for f in failures] == [
        ("broken, seed 1", "the disk is full"),
        ("after, seed 1", "broken, seed 1 failed"),
        ("evaluation of broken, seed 1", "broken, seed 1 failed"),
        ("evaluation of after, seed 1", "after, seed 1 failed"),
    ]
    assert jobs[0].done and "run after begins" not in diary(tmp_path)


def test_no_process_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    pids = []
    started: list[subprocess.Popen[bytes]] = []

    class Watched(subprocess.Popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)

    def stop(progress: Progress) -> None:
        if (tmp_path / "diary").exists():
            pids.extend(progress.running)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(tmp_path, "long")], 1, tmp_path / "logs", stop)
    assert pids == ["long, seed 1"]
    assert time.monotonic() - began < 300  # the script sleeps 600
    assert [process.returncode is not None for process in started] == [True]


def test_a_folder_of_other_settings_is_refused(tmp_path: Path) -> None:
    mine = job(tmp_path, "a")
    mine.folder.mkdir(parents=True)
    (mine.folder / "config.toml").write_text(dump(mine.config))
    refuse_other_runs([mine])
    with pytest.raises(ConfigError, match=r"was run with train\.lr = 0\.0006, but this plan has 0\.01"):
        refuse_other_runs([job(tmp_path, "a", settings={**NO_START, "train.lr": 0.01})])
    # Where it lies and on how many threads it ran is nobody's business.
    moved = dump(load(RECIPE, [*words(NO_START), "--run.dir", "/else", "--run.threads", "7", "--run.seed", "1"]))
    (mine.folder / "config.toml").write_text(moved)
    refuse_other_runs([mine])


def test_time_left_is_of_the_steps_that_are_left(tmp_path: Path) -> None:
    jobs = [job(tmp_path, arm) for arm in ("a", "b", "c")]
    run(tmp_path, jobs[:1])

    def watch(progress: Progress) -> None:
        at_once = max(min(2, len(progress.running) + progress.waiting), 1)
        assert progress.left_s == (9 - progress.steps_done) * 2.0 / at_once  # steps of 2 s

    run_jobs(jobs, 2, tmp_path / "logs", watch)


def test_the_real_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mine = job(tmp_path, "a")
    assert mine.command()[1:5] == ["-m", "holdfast", "train", str(RECIPE)]
    assert mine.command()[-6:] == ["--run.dir", str(tmp_path / "runs"), "--run.name", "a-s1", "--run.seed", "1"]
    mine.folder.mkdir(parents=True)
    (mine.folder / "config.toml").write_text("")
    assert mine.command()[3:] == ["resume", str(mine.folder)]
    (mine.folder / "metrics.jsonl").write_text(json.dumps({"step": 2}) + '\n{"step": 3, "rew')
    assert jobs_module._rows(mine.folder) == [{"step": 2}]


# ---- runs that another experiment has made are copied, if every setting is the same


FLAKY = find_recipe("flaky")


def job_of(
    folder: Path, arm: str, settings: Settings | None = None, *, seed: int = 11, kind: str = "runs"
) -> TrainingJob:
    place = folder / kind / f"{arm}-s{seed}"
    return TrainingJob(folder=place, arm=arm, seed=seed, recipe=FLAKY, settings=settings or {})


def finish(done: TrainingJob, version: str = __version__) -> Path:
    done.folder.mkdir(parents=True)
    (done.folder / "config.toml").write_text(dump(done.config))
    (done.folder / "results.json").write_text(json.dumps({"em": 1, "made_by": {"holdfast": version}}))
    (done.folder / "checkpoints").mkdir()
    (done.folder / "checkpoints" / "model").write_text("weights")
    return done.folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "coefficient"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path / "death-spiral"


@pytest.mark.parametrize("kind", ["runs", "sweep"])
def test_the_same_run_under_another_name(here: Path, beside: Path, kind: str) -> None:
    made = finish(job_of(beside, "llds", {"loss.penalty.name": "llds", "loss.penalty.coef": 0.2}, kind=kind))
    wanted = job_of(here, "weak", {"loss.penalty.coef": 0.20, "loss.penalty.name": "llds"})
    assert reuse_runs([wanted, job_of(here, "other")], here) == [made]
    assert wanted.done and (wanted.folder / "checkpoints" / "model").read_text() == "weights"
    assert made.is_dir() and not job_of(here, "other").folder.exists()
    assert [path.name for path in (here / "runs").iterdir()] == ["weak-s11"]


def test_what_differs_is_not_taken(here: Path, beside: Path) -> None:
    finish(job_of(beside, "one", {"train.lr": 1e-4}))
    finish(job_of(beside, "two", seed=12))
    finish(job_of(beside, "old"), version="0.0.1")
    (finish(job_of(beside, "three")) / "results.json").unlink()
    (finish(job_of(beside, "broken")) / "results.json").write_text("{")
    (finish(job_of(beside, "foreign")) / "results.json").write_text("[]")
    half = finish(job_of(beside, "half"))
    half.rename(half.with_name(f".{half.name}.part"))  # another experiment is copying it
    finish(job_of(here, "four"))  # its own runs are no other experiment's
    assert reuse_runs([job_of(here, "mine")], here) == []
    assert not job_of(here, "mine").folder.exists()


def test_a_run_of_another_version_is_passed_over_and_one_that_has_begun_goes_on(here: Path, beside: Path) -> None:
    old = finish(job_of(beside, "grpo"))
    (old / "config.toml").write_text("[train]\nsetting_of_old = 1\n")
    newer = finish(job_of(beside, "grpo-again"))
    assert reuse_runs([job_of(here, "grpo")], here) == [newer]
    begun = job_of(here, "begun")
    begun.folder.mkdir(parents=True)
    assert reuse_runs([begun], here) == [] and not list(begun.folder.iterdir())
