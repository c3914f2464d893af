"""`holdfast table`: results as the papers' tables, and the bundled world's whole table from one command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.terminal import err
from holdfast.errors import ConfigError, DataError

if TYPE_CHECKING:
    from holdfast.evals.make import Plan
    from holdfast.evals.table import Block

_FIRST_SEED = 11  # as in the laboratory
_OWN = {"run.dir", "run.name", "run.seed"}


class Form(StrEnum):
    MARKDOWN = "md"
    CSV = "csv"
    LATEX = "tex"


def table(
    ctx: typer.Context,
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULTS...", help="Folders of holdfast eval, or folders that hold them."),
    ] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Put a model's published rows beside, such as qwen2.5-3b. May be repeated."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="ROW", help="The own row that gains are over.", show_default=False)
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="What is printed.")] = Form.MARKDOWN,
    make: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="Train and evaluate every row first. `world` is the quickstart's recipe.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="With --make: only rows with this in their name. May be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="With --make: runs of every row.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="With --make: runs at a time, one thread each.")] = 2,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Also write table.md, table.csv and table.tex there."),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="With --make: seconds a run; whether it works, not what it shows.")
    ] = False,
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command of every training row, and stop there.")
    ] = False,
) -> None:
    """Put results into the papers' tables, or make the whole table.

    Own rows and published ones, with averages, gains over the row they name, and
    how each was measured. Stop --make at any time: the same command goes on.

    [cyan]holdfast table runs/evals --published qwen2.5-3b[/cyan]
    [cyan]holdfast table --make world[/cyan]
    """
    settings: list[str] = ctx.meta["settings"]
    if commands:
        _print_commands(make or "quickstart", rows or [])
        return
    if make is None:
        if settings or rows or short:
            raise ConfigError("settings, --rows and --short are of runs that are made; they go with --make RECIPE")
        _write(_blocks(_read(results or []), published or [], against), form, folder)
        return
    if results:
        raise ConfigError(f"--make makes the results itself; leave {results[0]} out, or --make")
    folder = folder or Path("runs") / "table" / Path(make).stem
    failed = _make(_plan(make, rows or [], seeds, settings, folder, short=short), jobs)
    found = _read([folder / "evals"])
    _write(_blocks(found, published or [], against), form, folder)
    if failed:
        err().print(f"\n{failed} row(s) failed; the same command tries them again.")
        raise typer.Exit(1)


def _blocks(results: Sequence[dict[str, Any]], published: Sequence[str], against: str | None) -> list[Block]:
    from holdfast.evals.table import beside, own_block, published_block

    known = [published_block(model) for model in published]
    if not results:
        if against is not None:
            raise ConfigError("--against names an own row, and no results were given")
        if not known:
            raise DataError("give folders of holdfast eval, or --published MODEL, or --make world")
        return known
    own = own_block(results, against=against)
    return [beside(own, one) for one in known] or [own]


def _read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The results in some folders, at any depth; those of training are passed over."""
    from holdfast.evals.state import RESULTS, SETTINGS, read_results

    found = []
    for folder in folders:
        if not folder.exists():
            raise DataError(f"{folder} does not exist; give folders of holdfast eval")
        if (folder / SETTINGS).is_file() or folder.is_file():
            found.append(read_results(folder))
            continue
        inside = [path.parent for path in sorted(folder.rglob(SETTINGS))]
        whole = [path for path in inside if (path / RESULTS).is_file()]
        for path in inside:
            if path not in whole:
                err().print(f"note: {path} is not finished and left out", soft_wrap=True)
        if not whole:
            raise DataError(f"{folder} holds no finished results of holdfast eval")
        found += [read_results(path) for path in whole]
    return found


def _write(blocks: Sequence[Block], form: Form, folder: Path | None) -> None:
    from holdfast.evals.render import FORMATS, render

    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for ending in FORMATS:
                (folder / f"table.{ending}").write_text(render(blocks, ending), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written ({error.strerror}); give another --out") from None
    typer.echo(render(blocks, form.value), nl=False)


def _print_commands(recipe: str, texts: Sequence[str]) -> None:
    from holdfast.evals.rows import rows_of

    for row in rows_of(texts):
        typer.echo(f"# {row.name}; evaluate with --method {row.method}\n{row.command(recipe)}")


# ---- making


def _plan(make: str, texts: Sequence[str], seeds: int, settings: Sequence[str], folder: Path, *, short: bool) -> Plan:
    from holdfast.cli.recipes import find
    from holdfast.config import Config
    from holdfast.evals.make import Plan
    from holdfast.evals.rows import rows_of
    from holdfast.lab.plan import SHORT, refuse_settings_of_none
    from holdfast.settings import parse_overrides

    if taken := _OWN & set(parse_overrides(settings, Config)):
        raise ConfigError(f"--{min(taken)}: the table sets this for each of its runs; use --out and --seeds")
    recipe, rows = find("quickstart" if make == "world" else make), rows_of(texts)
    refuse_settings_of_none(settings, [row.settings for row in rows], recipe)
    return Plan(
        recipe=recipe,
        rows=rows,
        seeds=tuple(range(_FIRST_SEED, _FIRST_SEED + seeds)),
        settings=(*(SHORT if short else ()), *settings),
        out=folder,
    )


def _make(plan: Plan, at_once: int) -> int:
    """Train and evaluate what is not there; how many rows failed."""
    from holdfast.cli.reproduce import stopping, watching
    from holdfast.evals.make import evaluate_all, evaluations, startable, training_jobs
    from holdfast.lab.runner import refuse_other_runs, run_jobs

    trained, evaluated = training_jobs(plan), evaluations(plan)
    refuse_other_runs([job for jobs in trained for job in jobs])
    console = err()
    lost = 0
    with stopping(plan.out):
        for jobs in filter(None, trained):
            ready, waiting = startable(plan, jobs)
            for job in waiting:
                console.print(f"{job.name}: left out, because the row it starts from failed", soft_wrap=True)
            console.print(f"training {len(ready)} rows, {at_once} at a time, in {plan.out}", soft_wrap=True)
            with watching(console) as watch:
                failures = run_jobs(ready, at_once, plan.out / "logs", watch)
            for failure in failures:
                console.print(f"failed: {failure.job.name}: {failure.reason} (see {failure.log})", soft_wrap=True)
            lost += len(failures) + len(waiting)

        def told(one: Any, reason: str | None) -> None:
            console.print(f"{one.row.name}: {'FAILED: ' + reason if reason else 'evaluated'}", soft_wrap=True)

        failed = evaluate_all(evaluated, at_once, plan.out / "logs", told)
    _keep_plan(plan)
    return lost + len(failed)


def _keep_plan(plan: Plan) -> None:
    """What the table was made of, for whoever finds the folder."""
    from holdfast.evals.state import write_json

    told = {"recipe": plan.recipe.stem, "rows": [row.name for row in plan.rows], "seeds": list(plan.seeds)}
    write_json(plan.out / "plan.json", json.loads(json.dumps(told | {"settings": list(plan.settings)})))
