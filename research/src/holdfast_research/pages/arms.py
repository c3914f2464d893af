"""The methods with runs in the repository, on one start: the runs that research/docs/why.md compares measures on.

A method is a set of settings. One that several experiments trained is one method, with the seeds of all of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.methods.penalties import LLDS, SAPO
from holdfast.recipe import load
from holdfast_research.experiments import EXPERIMENTS
from holdfast_research.jobs import TrainingJob
from holdfast_research.pages.kept_runs import KEPT, restore
from holdfast_research.plan import PLAN_FILE, Plan, finished, load_plan
from holdfast_research.results import config_hash
from holdfast_research.series import RunSeries

RECIPE = "flaky"
BELONGS_TO = {"coefficient": "LLDS", "preserving": "LLDS", "sapo": "SAPO"}
"""Experiment -> the method that its arms are variants of, whose names do not say so."""


@dataclass(frozen=True, slots=True)
class Method:
    """A set of settings, with its runs on one start."""

    name: str
    experiment: str
    """The first that trained it; its page has the curves."""
    runs: Mapping[int, RunSeries]
    """By seed."""


def methods(kept: Path = KEPT) -> dict[str, list[Method]]:
    """Methods by what their experiments set for all arms, as JSON: `{}` for those that train the recipe as it is.

    Left out are testbeds drawn with the seed, runs that start from another policy than the recipe's, and runs with a
    fault of the sampler.
    """
    groups: dict[str, dict[str, Method]] = {}
    for experiment in EXPERIMENTS.values():
        if experiment.recipe != RECIPE or experiment.drawn or not (kept / experiment.name / PLAN_FILE).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            restore(experiment.name, Path(folder), kept)
            plan = load_plan(Path(folder))
            group = groups.setdefault(json.dumps(plan.shared, sort_keys=True), {})
            for key, method in _methods_of(plan, Path(folder)):
                same = group.get(key, method)
                group[key] = Method(same.name, same.experiment, {**method.runs, **same.runs})
    return {shared: list(group.values()) for shared, group in groups.items()}


def _methods_of(plan: Plan, out: Path) -> Iterator[tuple[str, Method]]:
    """(hash of the settings, method) for each arm with finished runs that start from the recipe's own policy."""
    jobs = {job.arm: job for job in reversed(plan.jobs(out))}
    runs, start = finished(plan.jobs(out)), load(plan.recipe).start_parts()
    for arm, seeds in runs.items():
        job = jobs[arm]
        if job.config.start_parts() == start and not job.config.sampler_differs:
            name = _name(plan.experiment.name, job)
            yield config_hash(job), Method(name, plan.experiment.name, {run.seed: run for run in seeds})


def _name(experiment: str, job: TrainingJob) -> str:
    """The arm's name, with the method that it belongs to and the strength of its penalty where it says neither."""
    penalty = job.config.loss.penalty
    if not isinstance(penalty, LLDS | SAPO):
        return f"{job.arm}, {job.label}" if job.label else job.arm
    name = f"{BELONGS_TO[experiment]}, {job.arm}" if experiment in BELONGS_TO else job.arm
    sign = "λ" if isinstance(penalty, LLDS) else "γ"
    return name if sign in name else f"{name}, {sign} = {penalty.coef}"
