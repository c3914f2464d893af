"""The whole table from one command: every row trained and evaluated. What is there is not made again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.config import load
from holdfast.errors import ConfigError
from holdfast.evals.state import RESULTS, read_results
from holdfast_research.plan import for_method, slug
from holdfast_research.processes import Processes, reason
from holdfast_research.runner import Job
from holdfast_research.tables.rows import TrainingRow

_POLL = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is made, and where."""

    recipe: Path
    rows: tuple[TrainingRow, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    """For every row; a row's own come after, and win."""
    out: Path


@dataclass(frozen=True, slots=True)
class Evaluating:
    """One `holdfast eval` of what a job trained."""

    job: Job
    row: TrainingRow
    out: Path
    data: str

    @property
    def done(self) -> bool:
        return (self.out / RESULTS).is_file()

    def command(self) -> list[str]:
        words = [sys.executable, "-m", "holdfast", "eval", "run", str(self.job.folder), "--method", self.row.method]
        return [
            *words,
            "--data",
            self.data,
            "--name",
            self.row.name,
            "--out",
            str(self.out),
            *(["--bare"] if self.row.bare else []),
        ]


def training_jobs(plan: Plan) -> tuple[list[Job], list[Job]]:
    """A job per row and seed, seed by seed: those of the recipe's start, and those that come after one of them."""
    jobs: tuple[list[Job], list[Job]] = ([], [])
    for seed in plan.seeds:
        for row in plan.rows:
            start = () if row.after is None else ("--model.path", str(_folder(plan, row.after, seed) / "model"))
            settings = for_method(plan.settings, row.settings, plan.recipe)
            overrides = ("--run.threads", "1", *settings, *start, *row.settings)
            folder = _folder(plan, row.name, seed)
            job = Job(row.name, seed, plan.recipe, overrides, folder, stage=row.stage, baseline=row.baseline)
            jobs[bool(start)].append(job)
    return jobs


def startable(plan: Plan, jobs: Sequence[Job]) -> tuple[list[Job], list[Job]]:
    """(jobs whose start is there, jobs that wait for one whose training failed)."""
    after = {row.name: row.after for row in plan.rows}
    ready: tuple[list[Job], list[Job]] = ([], [])
    for job in jobs:
        start = after[job.arm]
        ready[start is not None and not (_folder(plan, start, job.seed) / "model").is_dir()].append(job)
    return ready


def _folder(plan: Plan, name: str, seed: int) -> Path:
    return plan.out / "runs" / f"{slug(name.replace('+', 'with'))}-s{seed}"


def evaluations(plan: Plan) -> list[Evaluating]:
    """An evaluation per job, on the recipe's test questions. Raises `ConfigError` when it names none."""
    config = load(plan.recipe, plan.settings)
    in_world = config.data.train == "world"
    if not in_world and config.data.test is None:
        raise ConfigError(f"{plan.recipe} names no data.test, and a table is about test questions; set it")
    rows = {row.name: row for row in plan.rows}
    return [
        Evaluating(job, rows[job.arm], plan.out / "evals" / job.folder.name, "world" if in_world else "test")
        for jobs in training_jobs(plan)
        for job in jobs
    ]


def evaluate_all(
    todo: Sequence[Evaluating], at_once: int, logs: Path, told: Callable[[Evaluating, str | None], None]
) -> list[Evaluating]:
    """Evaluate what is trained and not evaluated yet; returns those that failed. `told` hears how each ended.

    No process is left behind, however this ends.
    """
    queue = [one for one in todo if one.job.done and not one.done]
    failed = []
    with Processes[Evaluating]() as at_work:
        while queue or at_work:
            for one, code in at_work.ended():
                why = None if code == 0 and one.done else reason(_log(one, logs), code)
                failed += [one] if why else []
                told(one, why)
            while queue and len(at_work) < at_once:
                one = queue.pop(0)
                at_work.start(one, one.command(), _log(one, logs))
            time.sleep(_POLL)
    return failed


def finished(todo: Sequence[Evaluating]) -> list[dict[str, Any]]:
    """The results that are there."""
    return [read_results(one.out) for one in todo if one.done]


def _log(one: Evaluating, logs: Path) -> Path:
    return logs / f"eval-{one.out.name}.log"
