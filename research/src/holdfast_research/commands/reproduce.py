"""`holdfast reproduce`: the experiments of the study, from runs to a page."""

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

from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import duration, err, is_live, out, program
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast_research.plan import Plan
    from holdfast_research.runner import Failure, Progress
    from holdfast_research.values import Experiment

_SET_BY_PLAN = {"run.dir", "run.name", "run.seed"}
_SEEDS = 5

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The study's experiments: run one again, and judge the papers' claims.",
)

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment; `list` prints them.")]


@app.command("list")
def list_experiments() -> None:
    """List the experiments: what each shows, how many runs it has and how long they take."""
    _list(out())


@app.command("run", cls=SettingsCommand)
def run_experiment(
    ctx: typer.Context,
    name: Name,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Reported seeds. Default: 5; with --short 1.", show_default=False),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one CPU thread each.")] = 2,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Output folder. Default: runs/lab/EXPERIMENT, with --short EXPERIMENT-short.",
            show_default=False,
        ),
    ] = None,
    arms: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Only arms with this in their name, and the controls. Repeatable."),
    ] = None,
    no_sweep: Annotated[
        bool, typer.Option("--no-sweep", help="Use the default coefficient of each method; sweep none.")
    ] = False,
    short: Annotated[
        bool, typer.Option("--short", help="Smoke test: a few seconds per run; results are meaningless.")
    ] = False,
) -> None:
    """Run an experiment and write its page.

    Every arm is trained with several seeds, each run a process of its own.
    Methods with a coefficient first try three values on seeds that are not
    reported. Stop at any time: the same command continues. Settings apply to
    all arms:

    [cyan]holdfast reproduce run death-spiral --seeds 3 --train.steps 80[/cyan]
    """
    from holdfast_research.experiments import find

    settings: list[str] = ctx.meta["settings"]
    experiment = find(name)
    folder = folder or _home(experiment, short=short)
    _refuse_planned(settings, experiment)
    _need_packages()
    plan = _plan(experiment, seeds, arms or [], settings, short=short, sweep=not no_sweep and not short)
    _refuse_others(plan, experiment, folder)
    plan.save(folder)
    failures = _run(plan, experiment, folder, jobs)
    _close(_write(plan, experiment, folder, failures), failures)


@app.command("report")
def report(
    name: Name,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of `reproduce run`. Default: runs/lab/EXPERIMENT.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write the page of an experiment again, from the runs that are finished. Runs nothing."""
    from holdfast_research.experiments import find
    from holdfast_research.plan import load_plan

    experiment = find(name)
    folder = folder or _home(experiment, short=False)
    plan = load_plan(folder)
    if plan.experiment != experiment.name:
        raise ConfigError(
            f"{folder} holds {plan.experiment}, not {experiment.name}; give the --out of {experiment.name}"
        )
    _refuse_others(plan, experiment, folder)
    _need_drawing()
    _close(_write(plan, experiment, folder, []), [])


def _home(experiment: Experiment, *, short: bool) -> Path:
    return Path("runs") / "lab" / (experiment.name + ("-short" if short else ""))


def _plan(
    experiment: Experiment,
    seeds: int | None,
    texts: Sequence[str],
    settings: Sequence[str],
    *,
    short: bool,
    sweep: bool,
) -> Plan:
    from holdfast_research.plan import FIRST_SEED, SHORT, Plan, arms_of

    count = seeds or (1 if short else _SEEDS)
    command = ["holdfast", "reproduce", "run", experiment.name, "--seeds", str(count)]
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
    from holdfast_research.plan import planned_runs, planned_sweep
    from holdfast_research.reuse import take_over
    from holdfast_research.runner import run_jobs

    recipe, console = _recipe(experiment), out()
    with stopping(folder):
        failures = []
        for title, planned in (("sweep", planned_sweep), ("runs", planned_runs)):
            todo = planned(plan, experiment, recipe, folder)
            if not todo:
                continue
            if taken := take_over(todo, folder):
                places = sorted({run.parent.parent.name for run in taken})
                console.print(f"reusing {len(taken)} of {len(todo)} finished runs from {', '.join(places)}")
            console.print(f"{experiment.name}: {title}, {len(todo)} runs, {at_once} at a time, in {folder}")
            with watching(console) as watch:
                failures += run_jobs(todo, at_once, folder / "logs", watch)
        return failures


def _refuse_others(plan: Plan, experiment: Experiment, folder: Path) -> None:
    """Before anything is written: runs with other settings are neither gone on with nor shown as this plan's, and a
    setting that concerns no run is not left out in silence."""
    from holdfast_research.plan import planned_arms, planned_runs, planned_sweep, refuse_settings_of_none
    from holdfast_research.runner import refuse_other_runs

    arms = [arm.overrides for arm in planned_arms(plan, experiment)]
    refuse_settings_of_none(plan.settings, arms, _recipe(experiment))
    for planned in (planned_sweep, planned_runs):
        refuse_other_runs(planned(plan, experiment, _recipe(experiment), folder))


def _write(plan: Plan, experiment: Experiment, folder: Path, failures: Sequence[Failure]) -> Path:
    from holdfast_research.plan import finished, planned_arms, planned_choices, planned_runs
    from holdfast_research.report import write_report
    from holdfast_research.results import results_of

    recipe = _recipe(experiment)
    choices = planned_choices(plan, experiment, recipe, folder)
    jobs = planned_runs(plan, experiment, recipe, folder)
    runs = finished(jobs)
    if not runs:
        first = f" The first to fail said: {failures[0].reason} (see {failures[0].log})" if failures else ""
        raise ConfigError(f"no run of {folder} is finished, so there is nothing to report.{first}")
    results = results_of(experiment, plan, planned_arms(plan, experiment), choices, jobs, runs, failures)
    return write_report(experiment, results, runs, folder)


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


def _refuse_planned(settings: Sequence[str], experiment: Experiment) -> None:
    from holdfast.config import Config
    from holdfast.settings import parse_overrides

    if taken := (_SET_BY_PLAN | set(experiment.drawn)) & set(parse_overrides(settings, Config)):
        raise ConfigError(f"--{min(taken)}: the experiment sets this for each of its runs; use --out and --seeds")


def _need_packages() -> None:
    """Said once and at the start, not by every run or after hours of them."""
    from holdfast.cli.terminal import missing_train_module
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

    from holdfast_research.experiments import EXPERIMENTS
    from holdfast_research.plan import TUNING_SEEDS

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
        f"  {program()} reproduce run first-action --short"
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
