"""Runs of an experiment, each a process of its own: some at a time, resumable, and none dragged down by another."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from holdfast.config import Config, load
from holdfast.errors import ConfigError
from holdfast.run_folder import CONFIG, METRICS, is_finished, is_run
from holdfast_research.processes import Processes, reason

_POLL = 0.5
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, slots=True)
class Job:
    """One `holdfast train`: a run, a stage in place of one, or (`warm_start`) what several runs start from."""

    arm: str
    seed: int
    recipe: Path
    overrides: tuple[str, ...]
    folder: Path
    strength: str = ""
    warm_start: bool = False
    stage: str = ""
    """Of `holdfast train`, when the job is one that saves a model and no results."""
    baseline: tuple[str, ...] = ()
    """Words of `holdfast baseline`, when the job is one: its name, and options."""

    @property
    def config(self) -> Config:
        """What the run will do. Raises `ConfigError`."""
        return load(self.recipe, self.words)

    @property
    def words(self) -> list[str]:
        own = ["--run.dir", str(self.folder.parent), "--run.name", self.folder.name, "--run.seed", str(self.seed)]
        return [*self.overrides, *own]

    @property
    def name(self) -> str:
        arm = f"{self.arm} {self.strength}".rstrip()
        name = f"{arm}, seed {self.seed}"
        return f"warm start for {name}" if self.warm_start else name

    @property
    def done(self) -> bool:
        return is_finished(self.folder, stage=self.saves_model)

    @property
    def saves_model(self) -> bool:
        """A model and no results, when it is done."""
        return bool(self.warm_start or self.stage or self.baseline)

    @property
    def steps(self) -> int:
        """Training steps it logs."""
        return 0 if self.saves_model else self.config.train.steps

    def command(self) -> list[str]:
        """Goes on with a run that was stopped; begins one that never was."""
        if self.baseline:
            name, *options = self.baseline
            baseline = [sys.executable, "-m", "holdfast_research", "baseline", name, str(self.recipe)]
            return [*baseline, *self.words, *options]
        holdfast = [sys.executable, "-m", "holdfast"]
        begun = is_run(self.folder)
        if self.warm_start or self.stage:
            return [*holdfast, "warm-start", str(self.recipe), *self.words, *(["--overwrite"] if begun else [])]
        if begun:
            return [*holdfast, "resume", str(self.folder)]
        return [*holdfast, "train", str(self.recipe), *self.words]


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that ended without a result."""

    job: Job
    reason: str
    """The error it printed, or how it ended."""
    log: Path


@dataclass(slots=True)
class Progress:
    """Where all jobs stand; the same object at every look."""

    waiting: int
    steps: int
    """Training steps of all jobs together."""
    running: dict[str, int] = field(default_factory=dict)
    """Name of each running job -> the steps it has made."""
    finished: list[str] = field(default_factory=list)
    """Names, those that were finished before among them."""
    failed: list[Failure] = field(default_factory=list)
    made: int = 0
    """Steps made by all jobs, in this session or before."""
    left_s: float | None = None
    """Seconds to go; None while nothing is known."""


def refuse_other_runs(jobs: Sequence[Job]) -> None:
    """A run folder made with other settings must not be read as this experiment's. Raises `ConfigError`."""
    for job in jobs:
        path = job.folder / CONFIG
        if job.warm_start or not path.is_file():
            continue
        there, wanted = comparable(load(path)), comparable(job.config)
        differing = [name for name in {**wanted, **there} if there.get(name) != wanted.get(name)]
        if differing:
            name = differing[0]
            raise ConfigError(
                f"{job.folder} was run with {name} = {there.get(name)!r}, and this experiment wants "
                f"{wanted.get(name)!r}. Give "
                "another --out, or the settings it was made with"
            )


def warm_starts(jobs: Sequence[Job], folder: Path) -> dict[Path, Job]:
    """Folder of the run -> the job that makes what it starts from; absent when it starts from a model as it is.

    Runs that start from the same policy share one job, so that it is made once and lies in the cache for all.
    """
    made: dict[str, Job] = {}
    needed: dict[Path, Job] = {}
    for job in jobs:
        config = job.config
        if not config.warm_start.steps:
            continue
        key = json.dumps(config.start_parts(), sort_keys=True)
        name = f"start-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        made.setdefault(key, Job(job.arm, job.seed, job.recipe, job.overrides, folder / name, warm_start=True))
        needed[job.folder] = made[key]
    return needed


def run_jobs(jobs: Sequence[Job], at_once: int, logs: Path, watch: Callable[[Progress], None]) -> list[Failure]:
    """Run what is not done yet, `at_once` processes at a time; returns the jobs that failed, with their reasons.

    `watch` is called at every look. However this ends, no process is left behind: on Ctrl-C or an error they are told
    to stop, and a stopped run goes on from its checkpoint the next time.
    """
    refuse_other_runs(jobs)
    starts = warm_starts([job for job in jobs if not job.done], logs.parent / "starts")
    queue = list(dict.fromkeys(job for one in jobs for job in (starts.get(one.folder), one) if job and not job.done))
    meter = _Meter(jobs)
    progress = Progress(waiting=len(queue), steps=meter.total, finished=[job.name for job in jobs if job.done])
    with Processes[Job]() as at_work:
        while queue or at_work:
            ended = at_work.ended()
            for job, code in ended:
                _settle(job, code, logs, progress)
            broken = {failure.job for failure in progress.failed}
            for job in [j for j in queue if starts.get(j.folder) in broken]:
                queue.remove(job)
                progress.failed.append(Failure(job, "its warm start failed", _log(starts[job.folder], logs)))
            ready = [job for job in queue if (start := starts.get(job.folder)) is None or start.done]
            for job in ready[: max(at_once - len(at_work), 0)]:
                queue.remove(job)
                job.folder.parent.mkdir(parents=True, exist_ok=True)
                at_work.start(job, job.command(), _log(job, logs))
            meter.look([*(job for job, _ in ended), *at_work.running])
            progress.waiting = len(queue)
            progress.running = {job.name: meter.made.get(job.folder, 0) for job in at_work.running}
            progress.made = sum(meter.made.values())
            lost = {failure.job.folder for failure in progress.failed}
            progress.left_s = meter.left(lost, max(min(at_once, len(at_work) + len(queue)), 1))
            watch(progress)
            if queue or at_work:
                time.sleep(_POLL)
    return progress.failed


class _Meter:
    """Steps made, and seconds a step takes, read off the runs' own logs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._wanted = {job.folder: job.steps for job in jobs}
        self._seconds: dict[Path, float] = {}
        self.made: dict[Path, int] = dict.fromkeys(self._wanted, 0)
        self.total = sum(self._wanted.values())
        self.look(jobs)

    def look(self, jobs: Iterable[Job]) -> None:
        """Read what these jobs have logged by now."""
        for job in jobs:
            if job.saves_model:
                continue
            rows = _rows(job.folder)
            self.made[job.folder] = int(rows[-1]["step"]) if rows else 0
            if seconds := [row["time/step_s"] for row in rows if "time/step_s" in row]:
                self._seconds[job.folder] = mean(seconds)

    def left(self, lost: Collection[Path], lanes: int) -> float | None:
        """Seconds to go, some runs being lost; evaluations and warm starts come on top. None when nothing is known."""
        if not self._seconds:
            return None
        steps = sum(max(n - self.made[folder], 0) for folder, n in self._wanted.items() if folder not in lost)
        return median(self._seconds.values()) * steps / lanes


def _settle(job: Job, code: int, logs: Path, progress: Progress) -> None:
    if code == 0 and job.done:
        progress.finished += [] if job.warm_start else [job.name]
    else:
        progress.failed.append(Failure(job, reason(_log(job, logs), code), _log(job, logs)))


def _log(job: Job, logs: Path) -> Path:
    return logs / f"{job.folder.name}.log"


def comparable(config: Config) -> dict[str, object]:
    """Every setting but where the run lies and what it runs on."""
    sections = config.model_dump(exclude={"run"})
    flat: dict[str, object] = {"run.seed": config.run.seed}
    for section, values in sections.items():
        for key, value in values.items():
            inner = value.items() if isinstance(value, dict) else [("", value)]
            flat |= {f"{section}.{key}{f'.{name}' if name else ''}": item for name, item in inner}
    return flat


def _rows(folder: Path) -> list[dict[str, float]]:
    """Whole rows of a file that is being written."""
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows
