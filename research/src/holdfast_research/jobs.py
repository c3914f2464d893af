"""Jobs: processes that each leave a folder behind. Some run at a time; what is finished is not run again; one that
fails takes down only what needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from types import TracebackType
from typing import Any, Self

from holdfast import __version__
from holdfast.base.errors import ConfigError
from holdfast.base.run_folder import CONFIG, METRICS, RESULTS, is_finished, is_run
from holdfast.evaluate.folder import RESULTS as EVALUATED
from holdfast.recipe import Config, absolute, load, setting_values
from holdfast.train.start_cache import shipped_start
from holdfast_research.methods import Settings, words

_POLL = 0.5
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Job(ABC):
    """One process. Two jobs are the same when their folders are."""

    folder: Path
    needs: tuple[Job, ...] = ()
    """Jobs that must be done first."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the screen and failures call it."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """Whether its results are in its folder."""

    @property
    def steps(self) -> int:
        """Training steps that it logs."""
        return 0

    @abstractmethod
    def command(self) -> list[str]:
        """The process to start; it continues one that was stopped."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingJob(Job):
    """A run with its results; or a warm start or a baseline, which saves a model alone."""

    arm: str
    """The arm of an experiment, or the row of a table."""
    seed: int
    recipe: Path
    settings: Settings
    label: str = ""
    """The coefficient a sweep gave it."""
    warm_start: bool = False
    baseline: tuple[str, ...] = ()
    """Words of `holdfast baseline`: its name, and options."""
    shared: bool = False
    """A warm start that other jobs begin from, made once for all of them and named after the first."""

    @property
    def config(self) -> Config:
        """The recipe of the run. Raises `ConfigError`."""
        return load(self.recipe, self.words)

    @property
    def words(self) -> list[str]:
        """The settings as options of a command."""
        place = {"run.dir": str(self.folder.parent), "run.name": self.folder.name, "run.seed": self.seed}
        return words({"run.threads": 1, **self.settings, **place})

    @property
    def name(self) -> str:
        """Arm, coefficient and seed."""
        name = f"{self.arm} {self.label}".rstrip() + f", seed {self.seed}"
        return f"warm start for {name}" if self.shared else name

    @property
    def saves_model(self) -> bool:
        """Whether it leaves a model alone, and no results."""
        return self.warm_start or bool(self.baseline)

    @property
    def done(self) -> bool:
        """Whether the run has its results, or its model."""
        return is_finished(self.folder, stage=self.saves_model)

    @property
    def steps(self) -> int:
        """Training steps that it logs."""
        return 0 if self.saves_model else self.config.train.steps

    def command(self) -> list[str]:
        """`holdfast train`, `resume`, `warm-start` or `baseline`."""
        python, begun = [sys.executable, "-m"], is_run(self.folder)
        if self.baseline:
            name, *options = self.baseline
            return [*python, "holdfast_research", "baseline", name, str(self.recipe), *self.words, *options]
        if self.warm_start:
            overwrite = ["--overwrite"] if begun else []
            return [*python, "holdfast", "warm-start", str(self.recipe), *self.words, *overwrite]
        if begun:
            return [*python, "holdfast", "resume", str(self.folder)]
        return [*python, "holdfast", "train", str(self.recipe), *self.words]


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationJob(Job):
    """`holdfast eval run` of the run that it needs."""

    row: str
    """Name in the table."""
    seed: int
    method: str
    data: str
    bare: bool = False
    """Without instructions."""

    @property
    def name(self) -> str:
        """Row and seed."""
        return f"evaluation of {self.row}, seed {self.seed}"

    @property
    def done(self) -> bool:
        """Whether its results are written."""
        return (self.folder / EVALUATED).is_file()

    def command(self) -> list[str]:
        """`holdfast eval run`."""
        (trained,) = self.needs
        options = ["--method", self.method, "--data", self.data, "--name", self.row, "--out", str(self.folder)]
        bare = ["--bare"] if self.bare else []
        return [sys.executable, "-m", "holdfast", "eval", "run", str(trained.folder), *options, *bare]


# ---- folders


def slug(name: str) -> str:
    """A name as a folder's, in ASCII.

    >>> slug("A ≥ 0, λ 0.5"), slug("A > 0, λ 0.5")
    ('a-ge-0-lambda-0.5', 'a-gt-0-lambda-0.5')
    """
    text = name.lower()
    for sign, word in (("≥", " ge "), (">", " gt "), ("λ", "lambda"), ("τ", "tau")):
        text = text.replace(sign, word)
    return "-".join("".join(c if c.isascii() and (c.isalnum() or c in ".-") else " " for c in text).split())


def comparable(config: Config) -> dict[str, Any]:
    """Every setting but the run's place and what it runs on."""
    place = ("run.dir", "run.name", "run.threads", "run.device")
    return {name: value for name, value in setting_values(absolute(config)).items() if name not in place}


def refuse_other_runs(jobs: Iterable[Job]) -> None:
    """A run folder made with other settings must not be taken for this plan's. Raises `ConfigError`."""
    for job in jobs:
        if not isinstance(job, TrainingJob) or job.shared or not is_run(job.folder):
            continue
        present, planned = comparable(load(job.folder / CONFIG)), comparable(job.config)
        for name in {**planned, **present}:
            if present.get(name) != planned.get(name):
                raise ConfigError(
                    f"{job.folder} was run with {name} = {present.get(name)!r}, but this plan has "
                    f"{planned.get(name)!r}. Give another --out, or the settings it was made with"
                )


def reuse_runs(jobs: Iterable[TrainingJob], folder: Path) -> list[Path]:
    """Copy runs that other experiments next to `folder` have finished with the very settings and seed of a job that
    has not begun; the folders they were copied from.

    A run is a function of its settings and of the version of holdfast, so the copy is the run.
    """
    missing = {_key(job.config): job for job in jobs if not job.folder.exists()}
    copied = []
    for run in _finished_next_to(folder) if missing else ():
        try:
            job = missing.pop(_key(load(run / CONFIG)), None)
        except ConfigError:  # of a version with other settings
            continue
        if job is not None:
            part = job.folder.with_name(f".{job.folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(run, part)
            part.rename(job.folder)
            copied.append(run)
    return copied


def _finished_next_to(folder: Path) -> Iterator[Path]:
    for kind in ("runs", "sweep"):
        for results in sorted(folder.parent.glob(f"*/{kind}/*/{RESULTS}")):
            elsewhere = results.parent.parent.parent.resolve() != folder.resolve()
            half = results.parent.name.startswith(".")  # another experiment is copying it
            if elsewhere and not half and _version(results) == __version__:
                yield results.parent


def _version(results: Path) -> str | None:
    """The version of holdfast that made a run; None for a file that is not a run's."""
    try:
        values = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values.get("made_by", {}).get("holdfast") if isinstance(values, dict) else None


def _key(config: Config) -> str:
    return json.dumps(comparable(config), sort_keys=True)


# ---- running


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that ended without its result."""

    job: Job
    reason: str
    """The error it printed, or how it ended."""
    log: Path


@dataclass(slots=True)
class Progress:
    """The state of all jobs; the same object at every look."""

    waiting: int
    steps: int
    """Training steps of all jobs together."""
    running: dict[str, int] = field(default_factory=dict)
    """Name of each running job -> the steps it has made."""
    finished: list[str] = field(default_factory=list)
    """Names, with those that were finished before."""
    failed: list[Failure] = field(default_factory=list)
    steps_done: int = 0
    """Steps that all jobs have logged, in this session or before."""
    left_s: float | None = None
    """Seconds of training to go; None while nothing is known."""


def run_jobs(jobs: Sequence[Job], at_once: int, logs: Path, watch: Callable[[Progress], None]) -> list[Failure]:
    """Run what is not done yet, `at_once` processes at a time; returns the jobs that failed.

    `watch` is called at every look. However this ends, no process is left behind: on Ctrl-C or an error they are
    terminated, and a stopped run continues from its checkpoint the next time.
    """
    refuse_other_runs(jobs)
    needs = _needs(jobs, logs.parent / "starts")
    ordered = [need for job in jobs for need in (*needs[job.folder], job)]
    queue = list({job.folder: job for job in ordered if not job.done}.values())
    meter = _Meter(jobs)
    progress = Progress(waiting=len(queue), steps=meter.total, finished=[job.name for job in jobs if job.done])
    with _Processes() as processes:
        while queue or len(processes):
            ended = processes.ended()
            for job, code in ended:
                if code != 0 or not job.done:
                    progress.failed.append(Failure(job, reason(_log(job, logs), code), _log(job, logs)))
                elif not _is_shared(job):
                    progress.finished.append(job.name)
            for job in list(queue):
                failed = {failure.job.folder for failure in progress.failed}
                if broken := [need for need in needs.get(job.folder, ()) if need.folder in failed]:
                    queue.remove(job)
                    why = "its warm start failed" if _is_shared(broken[0]) else f"{broken[0].name} failed"
                    progress.failed.append(Failure(job, why, _log(broken[0], logs)))
            ready = [job for job in queue if all(need.done for need in needs.get(job.folder, ()))]
            for job in ready[: max(at_once - len(processes), 0)]:
                queue.remove(job)
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                processes.start(job, _log(job, logs))
            meter.look([*(job for job, _ in ended), *processes.running])
            progress.waiting = len(queue)
            progress.running = {job.name: meter.made.get(job.folder, 0) for job in processes.running}
            progress.steps_done = sum(meter.made.values())
            lost = [failure.job for failure in progress.failed]
            progress.left_s = meter.left(lost, max(min(at_once, len(processes) + len(queue)), 1))
            watch(progress)
            if queue or len(processes):
                time.sleep(_POLL)
    return progress.failed


def _is_shared(job: Job) -> bool:
    return isinstance(job, TrainingJob) and job.shared


def _needs(jobs: Sequence[Job], folder: Path) -> dict[Path, tuple[Job, ...]]:
    """Folder of each job -> the jobs that must be done first, shared warm starts included. Runs that begin with the
    same warm start share one job, so that it is made once and is in the cache for all of them. One that comes with
    holdfast needs none.
    """
    starts: dict[str, TrainingJob] = {}
    needs: dict[Path, tuple[Job, ...]] = {}
    for job in jobs:
        needs[job.folder] = job.needs
        if not isinstance(job, TrainingJob) or job.done or job.baseline[:1] in (("sft",), ("rag-sft",)):
            continue
        config = job.config
        if config.warm_start.steps and shipped_start(config) is None:
            key = json.dumps(config.start_parts(), sort_keys=True)
            if key not in starts:
                name = f"start-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
                start = replace(job, folder=folder / name, warm_start=True, shared=True, baseline=(), label="")
                starts[key] = start
            needs[job.folder] = (*job.needs, starts[key])
    return needs


class _Meter:
    """Steps made, and seconds per step, from the runs' own logs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._planned = {job.folder: job.steps for job in jobs}
        self._seconds: dict[Path, float] = {}
        self.made: dict[Path, int] = dict.fromkeys(self._planned, 0)
        self.total = sum(self._planned.values())
        self.look(jobs)

    def look(self, jobs: Iterable[Job]) -> None:
        """Read what these jobs have logged."""
        for job in jobs:
            if not self._planned.get(job.folder):
                continue
            rows = _rows(job.folder)
            self.made[job.folder] = int(rows[-1]["step"]) if rows else 0
            if seconds := [row["time/step_s"] for row in rows if "time/step_s" in row]:
                self._seconds[job.folder] = mean(seconds)

    def left(self, lost: Sequence[Job], lanes: int) -> float | None:
        """Seconds of training to go without the lost jobs, at the median pace so far. Evaluations and warm starts are
        not counted. None when nothing is known."""
        if not self._seconds:
            return None
        gone = {job.folder for job in lost}
        steps = sum(max(n - self.made[folder], 0) for folder, n in self._planned.items() if folder not in gone)
        return median(self._seconds.values()) * steps / lanes


def _rows(folder: Path) -> list[dict[str, float]]:
    """Whole rows of a file that is being written."""
    rows = []
    try:
        for line in (folder / METRICS).read_text(encoding="utf-8", errors="replace").splitlines():
            rows.append(json.loads(line))
    except (OSError, ValueError):
        pass
    return rows


def _log(job: Job, logs: Path) -> Path:
    return logs / f"{'eval-' if isinstance(job, EvaluationJob) else ''}{job.folder.name}.log"


class _Processes:
    """A context: however it ends, processes that still run are terminated, and waited for."""

    def __init__(self) -> None:
        self._running: dict[Job, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Job, ...]:
        return tuple(self._running)

    def start(self, job: Job, log: Path) -> None:
        """With one thread; its output replaces the log."""
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            self._running[job] = subprocess.Popen(job.command(), stdout=file, stderr=subprocess.STDOUT, env=environment)

    def ended(self) -> list[tuple[Job, int]]:
        """Jobs that have ended since the last look, with their exit codes."""
        codes = [(job, process.poll()) for job, process in self._running.items()]
        done = [(job, code) for job, code in codes if code is not None]
        for job, _ in done:
            del self._running[job]
        return done


def reason(log: Path, code: int) -> str:
    """The error a process printed, or the last line of its traceback."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    ending = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    return f"{ending}; its last line: {lines[-1]}" if lines else ending
