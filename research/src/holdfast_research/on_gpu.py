"""An experiment's runs on one GPU, several at once, within minutes.

    python -m holdfast_research.on_gpu real-old --seeds 3 --keep out
    python -m holdfast_research.on_gpu first-action --short --seeds 1 --device cpu --jobs 2     # the same on a CPU

The runs are those of `holdfast reproduce run`: seed by seed, with the arms that --arms names and the controls. Small
models share a card well under CUDA MPS, which is started if the machine has it. When the time is up, runs that are not
finished are stopped, with a checkpoint. What is finished is printed, and packed into --keep: one file, which a GPU
machine can send back. With --cut that is also a run that was stopped after so many steps; it has no evaluation. Without
it the same command continues. Elsewhere this adds the runs to the repository:

    python -m holdfast_research.pages.kept_runs keep runs/lab/real-old
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.base.environment import versions
from holdfast.base.run_folder import METRICS, RESULTS
from holdfast.train.tracking import MetricsFile
from holdfast_research.experiments import find
from holdfast_research.jobs import Failure, Progress, run_jobs
from holdfast_research.pages.kept_runs import HOME, keep
from holdfast_research.plan import Plan, arms_of, finished
from holdfast_research.series import summarise

MINUTES = 13.0
"""A machine that is lent for a quarter of an hour needs two for its start and the transfers."""


class _TimeIsUp(Exception):
    pass


def run_for(plan: Plan, folder: Path, *, minutes: float, at_once: int) -> list[Failure]:
    """Run what is not finished, for so long; the runs that failed. Those that are still at work then are stopped."""
    deadline = time.monotonic() + 60 * minutes

    def watch(progress: Progress) -> None:
        if time.monotonic() > deadline:
            raise _TimeIsUp

    plan.check()
    plan.save(folder)
    try:
        return run_jobs(plan.jobs(folder), at_once, folder / "logs", watch)
    except _TimeIsUp:
        return []


def end_where_cut(plan: Plan, folder: Path, least: int) -> None:
    """Make finished runs, without an evaluation, of those that were stopped after `least` steps or more."""
    for job in plan.jobs(folder):
        rows = MetricsFile(job.folder / METRICS).read() if not job.done and (job.folder / METRICS).exists() else []
        if rows and int(rows[-1]["step"]) >= least:
            seconds = sum(row.get("time/step_s", 0.0) for row in rows)
            ended = {
                "made_by": versions(),
                "seconds": seconds,
                "steps": int(rows[-1]["step"]),
                "before": {},
                "after": {},
            }
            (job.folder / RESULTS).write_text(json.dumps(ended, indent=1) + "\n", encoding="utf-8")


def results(plan: Plan, folder: Path) -> Iterator[str]:
    """A line for each arm and seed: what the run ended with, or that it did not end."""
    runs = {(arm, run.seed): run for arm, seeds in finished(plan.jobs(folder)).items() for run in seeds}
    for job in plan.jobs(folder):
        run = runs.get((job.arm, job.seed))
        if run is None:
            yield f"{job.name}: not finished"
            continue
        end = summarise(run)
        fell = ", fell" if run.fell else ""
        yield f"{job.name}: reward {end.peak:.2f} at its peak, {end.last:.2f} last{fell}; test EM {end.em_after:.3f}"


@contextmanager
def shared_card(device: str) -> Iterator[None]:
    """CUDA MPS while the runs last, if the machine has it."""
    control = shutil.which("nvidia-cuda-mps-control") if device == "cuda" else None
    if control is None:
        yield
        return
    subprocess.run([control, "-d"], check=False)
    try:
        yield
    finally:
        subprocess.run([control], input="quit\n", text=True, check=False)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", help="a name of `holdfast reproduce list`")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", action="append", default=[], help="only arms with this in their name; repeatable")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="then the runs are stopped")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, help="instead of the experiment's")
    parser.add_argument("--short", action="store_true", help="a few seconds a run; results are meaningless")
    parser.add_argument("--out", type=Path, help="default: runs/lab/EXPERIMENT")
    parser.add_argument("--cut", type=int, metavar="STEPS", help="also keep runs stopped after so many steps or more")
    parser.add_argument("--keep", type=Path, help="a folder for the finished runs, in one file")
    asked = parser.parse_args()
    experiment = find(asked.experiment)
    steps = {} if asked.steps is None else {"train.steps": asked.steps}
    plan = Plan(
        experiment=experiment,
        arms=arms_of(experiment, asked.arms),
        seeds=tuple(range(experiment.first_seed, experiment.first_seed + asked.seeds)),
        settings={"run.device": asked.device, **steps},
        short=asked.short,
    )
    folder = asked.out or HOME / experiment.name
    with shared_card(asked.device):
        failures = run_for(plan, folder, minutes=asked.minutes, at_once=asked.jobs)
    if asked.cut is not None:
        end_where_cut(plan, folder, asked.cut)
    print("\n".join(results(plan, folder)))
    for failure in failures:
        print(f"failed: {failure.job.name}: {failure.reason} (see {failure.log})")
    if asked.keep:
        print(f"{len(keep(folder, asked.keep))} runs are kept in {asked.keep / experiment.name}")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
