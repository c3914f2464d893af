"""`holdfast reproduce`: an experiment of the laboratory, from runs to a page."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.terminal import duration, err, is_live, out, program
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.lab.plan import Plan
    from holdfast.lab.runner import Failure, Progress
    from holdfast.lab.values import Experiment

_OWN = {"run.dir", "run.name", "run.seed"}
_SEEDS = 5


def reproduce(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="EXPERIMENT", help="Which; without one, they are listed.", show_default=False),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds that are reported. Default: 5; with --short 1.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where. Default: runs/lab/EXPERIMENT, with --short EXPERIMENT-short.",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Only the arm of this name, or those with it in theirs; and the controls. Repeatable."
        ),
    ] = None,
    no_sweep: Annotated[bool, typer.Option("--no-sweep", help="Take the strengths of the experiment's file.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Seconds a run: whether it works, not what it shows.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Make the page again; run nothing.")] = False,
) -> None:
    """Rerun an experiment of the laboratory and judge the papers' claims.

    Every arm is trained with several seeds, each run a process of its own.
    Methods with a strength first try three on seeds that are not reported.
    Stop at any time: the same command goes on. Settings apply to all arms:

    [cyan]holdfast reproduce death-spiral --seeds 3 --train.steps 80[/cyan]
    """
    from holdfast.lab.experiments import find

    settings: list[str] = ctx.meta["settings"]
    if name is None:
        _list(out())
        return
    experiment = find(name)
    folder = folder or Path("runs") / "lab" / (experiment.name + ("-short" if short else ""))
    if report_only:
        if settings or arms or seeds or short or no_sweep:
            raise ConfigError(f"--report-only makes the page of {folder} again as it was run; give it --out alone")
        _report(folder, experiment)
        return
    _refuse_own(settings, experiment)
    _need_packages()
    plan = _plan(experiment, seeds, arms or [], settings, short=short, sweep=not no_sweep and not short)
    _refuse_others(plan, experiment, folder)
    plan.save(folder)
    failures = _run(plan, experiment, folder, jobs)
    _close(_write(plan, experiment, folder, failures), failures)


def _plan(
    experiment: Experiment,
    seeds: int | None,
    texts: Sequence[str],
    settings: Sequence[str],
    *,
    short: bool,
    sweep: bool,
) -> Plan:
    from holdfast.lab.plan import FIRST_SEED, SHORT, Plan, arms_of

    count = seeds or (1 if short else _SEEDS)
    command = ["holdfast", "reproduce", experiment.name, "--seeds", str(count)]
    command += [word for text in texts for word in ("--arms", text)]
    command += ["--short"] if short else [] if sweep else ["--no-sweep"]
    command += settings
    return Plan(
        experiment=experiment.name,
        arms=tuple(arm.name for arm in arms_of(experiment, texts)),
        seeds=tuple(range(FIRST_SEED, FIRST_SEED + count)),
        settings=(*experiment.settings, *(SHORT if short else ()), *settings),
        sweep=sweep,
        short=short,
        command=shlex.join(command),
        drawn=experiment.drawn,
    )


def _run(plan: Plan, experiment: Experiment, folder: Path, at_once: int) -> list[Failure]:
    """The sweep, if there is one, then what it chose; every failure of either."""
    from holdfast.lab.plan import planned_runs, planned_sweep
    from holdfast.lab.reuse import take_over
    from holdfast.lab.runner import run_jobs

    recipe, console = _recipe(experiment), out()
    with stopping(folder):
        failures = []
        for title, planned in (("sweep", planned_sweep), ("runs", planned_runs)):
            todo = planned(plan, experiment, recipe, folder)
            if not todo:
                continue
            if taken := take_over(todo, folder):
                places = sorted({run.parent.parent.name for run in taken})
                console.print(f"{len(taken)} of {len(todo)} runs are copied: {', '.join(places)} made them already")
            console.print(f"{experiment.name}: {title}, {len(todo)} runs, {at_once} at a time, in {folder}")
            with watching(console) as watch:
                failures += run_jobs(todo, at_once, folder / "logs", watch)
        return failures


def _refuse_others(plan: Plan, experiment: Experiment, folder: Path) -> None:
    """Before anything is written: runs with other settings are neither gone on with nor shown as this plan's, and a
    setting that concerns no run is not left out in silence."""
    from holdfast.lab.plan import planned_arms, planned_runs, planned_sweep, refuse_settings_of_none
    from holdfast.lab.runner import refuse_other_runs

    arms = [arm.overrides for arm in planned_arms(plan, experiment)]
    refuse_settings_of_none(plan.settings, arms, _recipe(experiment))
    for planned in (planned_sweep, planned_runs):
        refuse_other_runs(planned(plan, experiment, _recipe(experiment), folder))


def _write(plan: Plan, experiment: Experiment, folder: Path, failures: Sequence[Failure]) -> Path:
    from holdfast.lab.plan import finished, planned_arms, planned_choices, planned_runs
    from holdfast.lab.report import write_report
    from holdfast.lab.results import results_of

    recipe = _recipe(experiment)
    choices = planned_choices(plan, experiment, recipe, folder)
    jobs = planned_runs(plan, experiment, recipe, folder)
    runs = finished(jobs)
    if not runs:
        first = f" The first to fail said: {failures[0].reason} (see {failures[0].log})" if failures else ""
        raise ConfigError(f"no run of {folder} is finished, so there is nothing to report.{first}")
    results = results_of(experiment, plan, planned_arms(plan, experiment), choices, jobs, runs, failures)
    return write_report(experiment, results, runs, folder)


def _report(folder: Path, experiment: Experiment) -> None:
    from holdfast.lab.plan import load_plan

    plan = load_plan(folder)
    if plan.experiment != experiment.name:
        raise ConfigError(
            f"{folder} holds {plan.experiment}, not {experiment.name}; give the --out of {experiment.name}"
        )
    _refuse_others(plan, experiment, folder)
    _need_drawing()
    _close(_write(plan, experiment, folder, []), [])


def _close(page: Path, failures: Sequence[Failure]) -> None:
    for failure in failures:
        err().print(f"failed: {failure.job.name}: {failure.reason} (see {failure.log})", soft_wrap=True)
    out().print(f"\n{page}", soft_wrap=True)
    if failures:
        out().print("The same command tries the failed runs again.")
        raise typer.Exit(1)


def _recipe(experiment: Experiment) -> Path:
    from holdfast.cli.recipes import find

    return find(experiment.recipe)


def _refuse_own(settings: Sequence[str], experiment: Experiment) -> None:
    from holdfast.config import Config
    from holdfast.settings import parse_overrides

    if taken := (_OWN | set(experiment.drawn)) & set(parse_overrides(settings, Config)):
        raise ConfigError(f"--{min(taken)}: the experiment sets this for each of its runs; use --out and --seeds")


def _need_packages() -> None:
    """Said once and at the start, not by every run or after hours of them."""
    from holdfast.cli.extra import missing_train_module
    from holdfast.errors import MissingExtra

    _need_drawing()
    if missing := missing_train_module():
        raise MissingExtra(missing, "train")


def _need_drawing() -> None:
    from importlib.util import find_spec

    from holdfast.errors import MissingExtra

    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "figures")


@contextmanager
def stopping(folder: Path) -> Iterator[None]:
    """A `kill` stops the runs too; whoever stops is told how to go on."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        code = 130 if isinstance(stop, KeyboardInterrupt) else 143
        err().print(f"Stopped. The same command goes on; what is finished is in {folder}.", soft_wrap=True)
        raise typer.Exit(code) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


# ---- on the screen


def _list(console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast.lab.experiments import EXPERIMENTS
    from holdfast.lab.plan import TUNING_SEEDS

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("experiment", "shows", "runs", "hours"):
        table.add_column(column, justify="right" if column in ("runs", "hours") else "left")
    for experiment in EXPERIMENTS.values():
        swept = sum(len(arm.sweep.values) for arm in experiment.arms if arm.sweep is not None)
        runs = _SEEDS * len(experiment.arms) + len(TUNING_SEEDS) * swept
        hours = runs * experiment.minutes / 60 / 2
        table.add_row(Text(experiment.name, "cyan"), experiment.shows, str(runs), f"{hours:.1f}")
    console.print(table, soft_wrap=False)
    console.print(
        f"\nRuns and hours are of {_SEEDS} seeds with sweeps, two at a time on two cores. One at work in a minute:\n"
        f"  {program()} reproduce first-action --short"
    )


@contextmanager
def watching(console: Console) -> Iterator[Callable[[Progress], None]]:
    """Draws progress: a line that stays for each run that ends, and, on a terminal, one that moves below."""
    from rich.live import Live
    from rich.text import Text

    said: set[str] = set()
    first = True
    live = Live(console=console, refresh_per_second=2, transient=True) if is_live(console) else None
    told = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal first, told
        ended = [(name, "done") for name in progress.finished]
        ended += [(failure.job.name, f"FAILED: {failure.reason}") for failure in progress.failed]
        new = [(name, how) for name, how in ended if name not in said]
        if first and len(new) > 1:
            console.print(f"{len(new)} finished before")
        else:
            for name, how in new:
                console.print(f"{name}: {how}", soft_wrap=True)
        first = False
        said.update(name for name, _ in new)
        line = describe(progress)
        if live is not None:
            live.update(Text(line, "cyan"))
        elif new or time.monotonic() - told > 60:
            told = time.monotonic()
            console.print(line, soft_wrap=True)

    if live is None:
        yield watch
    else:
        with live:
            yield watch


def describe(progress: Progress) -> str:
    """Where all runs stand, in one line."""
    running = "; ".join(f"{name}: step {step}" if step else name for name, step in progress.running.items())
    parts = [f"{progress.made}/{progress.steps} steps", running]
    if progress.waiting:
        parts.append(f"{progress.waiting} waiting")
    if progress.left_s:
        parts.append(f"about {duration(progress.left_s)} left")
    return " · ".join(part for part in parts if part)
