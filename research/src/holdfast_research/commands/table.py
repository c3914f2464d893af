"""`holdfast table`: results as the papers' tables, and a whole table from one command."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import ConfigError, DataError
from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import err
from holdfast_research.commands.screen import print_failures, shared_settings, stopping, watching

if TYPE_CHECKING:
    from holdfast_research.tables.make import Plan
    from holdfast_research.tables.table import Block


class Form(StrEnum):
    """Formats of a table."""

    MARKDOWN = "md"
    CSV = "csv"
    LATEX = "tex"


app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The papers' tables: results of `eval` next to published rows.",
)

Published = Annotated[
    list[str] | None,
    typer.Option("--published", metavar="MODEL", help="Add a model's published rows, such as qwen2.5-3b. Repeatable."),
]
Against = Annotated[
    str | None, typer.Option("--against", metavar="ROW", help="Baseline row for the gain column.", show_default=False)
]
Format = Annotated[Form, typer.Option("--format", help="Format that is printed.")]
Rows = Annotated[
    list[str] | None, typer.Option("--rows", metavar="TEXT", help="Only rows with this in their name. Repeatable.")
]


@app.command("show")
def show(
    results: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RESULTS...", help="Folders of `holdfast eval run`, or folders that hold them."),
    ] = None,
    published: Published = None,
    against: Against = None,
    form: Format = Form.MARKDOWN,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Also write table.md, table.csv and table.tex into this folder."),
    ] = None,
) -> None:
    """Print results as a table: averages, gains over a baseline row, and how each row was measured.

    [cyan]holdfast table show runs/evals --published qwen2.5-3b[/cyan]
    """
    _write(_blocks(_read(results or []), published or [], against), form, folder)


@app.command("make", cls=SettingsCommand)
def make(
    ctx: typer.Context,
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Recipe of every row; `world` is the quickstart's recipe.")
    ],
    rows: Rows = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of every row.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one CPU thread each.")] = 2,
    published: Published = None,
    against: Against = None,
    form: Format = Form.MARKDOWN,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Output folder. Default: runs/table/RECIPE.", show_default=False),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="Smoke test: a few seconds per run; results are meaningless.")
    ] = False,
) -> None:
    """Train and evaluate every row, then print the table.

    Stop at any time: the same command continues. Settings apply to all rows:

    [cyan]holdfast table make world --seeds 3[/cyan]
    """
    folder = folder or Path("runs") / "table" / Path(recipe).stem
    failed = _make(_plan(recipe, rows or [], seeds, ctx.meta["settings"], folder, short=short), jobs)
    _write(_blocks(_read([folder / "evals"]), published or [], against), form, folder)
    if failed:
        err().print(f"\n{failed} jobs failed; the same command tries them again.")
        raise typer.Exit(1)


@app.command("commands")
def commands(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Recipe the commands name.")] = "quickstart",
    rows: Rows = None,
) -> None:
    """Print the command that trains each row, to run them elsewhere."""
    from holdfast_research.tables.rows import rows_of

    for row in rows_of(rows or []):
        typer.echo(f"# {row.name}; evaluate with --method {row.method}\n{row.command(recipe)}")


def _blocks(results: Sequence[dict[str, Any]], published: Sequence[str], against: str | None) -> list[Block]:
    from holdfast_research.tables.table import block_of, joined, published_block

    known = [published_block(model) for model in published]
    if not results:
        if against is not None:
            raise ConfigError("--against names one of your rows, and no results were given")
        if not known:
            raise DataError("there is nothing to show: give folders of holdfast eval, or --published MODEL")
        return known
    block = block_of(results, against=against)
    return [joined(block, model) for model in known] or [block]


def _read(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The results in some folders, at any depth; those of training are passed over."""
    from holdfast.evaluate.folder import RESULTS, SETTINGS, read_results

    results = []
    for folder in folders:
        if not folder.exists():
            raise DataError(f"{folder} does not exist; give folders of holdfast eval")
        if (folder / SETTINGS).is_file() or folder.is_file():
            results.append(read_results(folder))
            continue
        inside = [path.parent for path in sorted(folder.rglob(SETTINGS))]
        whole = [path for path in inside if (path / RESULTS).is_file()]
        for path in inside:
            if path not in whole:
                err().print(f"note: {path} is not finished and left out", soft_wrap=True)
        if not whole:
            raise DataError(f"{folder} holds no finished results of holdfast eval")
        results += [read_results(path) for path in whole]
    return results


def _write(blocks: Sequence[Block], form: Form, folder: Path | None) -> None:
    from holdfast_research.tables.render import FORMATS, render

    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for ending in FORMATS:
                (folder / f"table.{ending}").write_text(render(blocks, ending), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{folder} cannot be written ({error.strerror}); give another --out") from None
    typer.echo(render(blocks, form.value), nl=False)


def _plan(recipe: str, texts: Sequence[str], seeds: int, words: Sequence[str], folder: Path, *, short: bool) -> Plan:
    from holdfast.recipe.loading import find_recipe
    from holdfast_research.methods import SHORT, refuse_unused
    from holdfast_research.tables.make import Plan
    from holdfast_research.tables.rows import rows_of
    from holdfast_research.values import FIRST_SEED

    path, rows, settings = (
        find_recipe("quickstart" if recipe == "world" else recipe),
        rows_of(texts),
        shared_settings(words),
    )
    refuse_unused(settings, [row.settings for row in rows], path)
    return Plan(
        recipe=path,
        rows=rows,
        seeds=tuple(range(FIRST_SEED, FIRST_SEED + seeds)),
        settings={**(SHORT if short else {}), **settings},
        out=folder,
    )


def _make(plan: Plan, at_once: int) -> int:
    """Train and evaluate what is not finished; how many jobs failed."""
    from holdfast_research.jobs import run_jobs

    jobs = plan.jobs()
    console = err()
    console.print(f"{len(jobs)} trainings and evaluations, {at_once} at a time, in {plan.out}", soft_wrap=True)
    with stopping(plan.out), watching(console) as watch:
        failures = run_jobs(jobs, at_once, plan.out / "logs", watch)
    print_failures(failures)
    plan.save()
    return len(failures)
