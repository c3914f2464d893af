"""`holdfast reproduce`: the experiments of the study, from runs to a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import ConfigError
from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import out, program
from holdfast_research.commands.screen import need_training, print_failures, shared_settings, stopping, watching

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast_research.jobs import Failure
    from holdfast_research.plan import Plan
    from holdfast_research.values import Experiment

_SEEDS = 5

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The study's experiments: run one again, and judge the papers' claims.",
)

Name = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment; `list` prints them.")]


@app.command("list")
def list_experiments() -> None:
    """List the experiments: what each asks, how many runs it has and how long they take."""
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

    experiment = find(name)
    folder = folder or _home(experiment, short=short)
    settings = shared_settings(ctx.meta["settings"], experiment.drawn)
    _need_drawing()
    need_training()
    plan = _plan(experiment, seeds, arms or [], settings, short=short, sweep=not no_sweep and not short)
    _check(plan, folder)
    plan.save(folder)
    _write(plan, folder, _run(plan, folder, jobs))


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
    if plan.experiment is not experiment:
        raise ConfigError(
            f"{folder} holds {plan.experiment.name}, not {experiment.name}; give the --out of {experiment.name}"
        )
    _check(plan, folder)
    _need_drawing()
    _write(plan, folder)


def _home(experiment: Experiment, *, short: bool) -> Path:
    return Path("runs") / "lab" / (experiment.name + ("-short" if short else ""))


def _plan(
    experiment: Experiment,
    seeds: int | None,
    texts: Sequence[str],
    settings: Mapping[str, Any],
    *,
    short: bool,
    sweep: bool,
) -> Plan:
    from holdfast_research.plan import Plan, arms_of

    first, count = experiment.first_seed, seeds or (1 if short else _SEEDS)
    return Plan(
        experiment=experiment,
        arms=arms_of(experiment, texts),
        seeds=tuple(range(first, first + count)),
        settings=settings,
        sweep=sweep,
        short=short,
    )


def _run(plan: Plan, folder: Path, at_once: int) -> list[Failure]:
    """The sweep, if there is one, then the runs with what it chose; every failure of either."""
    from holdfast_research.jobs import reuse_runs, run_jobs

    console, failures = out(), []
    sweep = [job for jobs in plan.sweep_jobs(folder).values() for job in jobs]
    with stopping(folder):
        for title in ("sweep", "runs"):
            todo = sweep if title == "sweep" else plan.jobs(folder)
            if not todo:
                continue
            if copied := reuse_runs(todo, folder):
                places = sorted({run.parent.parent.name for run in copied})
                console.print(f"reusing {len(copied)} of {len(todo)} finished runs from {', '.join(places)}")
            console.print(f"{plan.experiment.name}: {title}, {len(todo)} runs, {at_once} at a time, in {folder}")
            with watching(console) as watch:
                failures += run_jobs(todo, at_once, folder / "logs", watch)
    return failures


def _check(plan: Plan, folder: Path) -> None:
    """Raise `ConfigError` before anything is written: for settings that cannot work, and for runs in `folder` that were
    made with other ones, which are neither continued nor shown as this plan's.
    """
    from holdfast_research.jobs import refuse_other_runs

    plan.check()
    refuse_other_runs([*(job for jobs in plan.sweep_jobs(folder).values() for job in jobs), *plan.jobs(folder)])


def _write(plan: Plan, folder: Path, failures: Sequence[Failure] = ()) -> None:
    """The page; exit code 1 after failures. Raises `ConfigError` when no run is finished."""
    from holdfast_research.page import write_report
    from holdfast_research.plan import finished
    from holdfast_research.results import results_of

    runs = finished(plan.jobs(folder))
    if not runs:
        first = f" The first to fail said: {failures[0].reason} (see {failures[0].log})" if failures else ""
        raise ConfigError(f"no run of {folder} is finished, so there is nothing to report.{first}")
    page = write_report(plan.experiment, results_of(plan, runs, folder, failures), runs, folder)
    print_failures(failures)
    out().print(f"\n{page}", soft_wrap=True)
    if failures:
        out().print("The same command tries the failed runs again.")
        raise typer.Exit(1)


def _need_drawing() -> None:
    from importlib.util import find_spec

    from holdfast.base.errors import MissingExtra

    if find_spec("matplotlib") is None:
        raise MissingExtra("matplotlib", "figures")


def _list(console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    from holdfast_research.experiments import EXPERIMENTS
    from holdfast_research.plan import TUNING_SEEDS

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("experiment", "question", "runs", "hours"):
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
