"""`holdfast launch`: a recipe as a command and files for another engine. It writes; starting them is yours."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.terminal import out

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.launch import Plan


class Host(StrEnum):
    TRL = "trl"
    VERL = "verl"


def launch(
    ctx: typer.Context,
    host: Annotated[Host, typer.Argument(help="The engine.", show_default=False)],
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a bundled recipe.", show_default=False),
    ],
    show: Annotated[bool, typer.Option("--print", help="Print the files; write nothing, read no data.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write. Default: launch/NAME-HOST.", show_default=False),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of each machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write into the folder though it is in use.")] = False,
) -> None:
    """Translate a recipe for TRL or verl.

    Writes a folder with the engine's own command and files, questions included:
    run.sh starts it. What the engine lacks is refused by name, with the nearest
    it has. Settings may be given here as well:

    [cyan]holdfast launch verl my.toml --gpus 8 --loss.penalty.name none[/cyan]
    """
    from holdfast.cli.train import read_recipe
    from holdfast.launch import Machines, plan, write_plan

    config, _ = read_recipe(recipe, ctx.meta["settings"])
    made = plan(host.value, config, Machines(gpus=gpus, nodes=nodes))
    console = out()
    if show:
        _print(made, console)
        return
    folder = folder or Path("launch") / f"{config.run.name}-{host.value}"
    write_plan(made, folder, overwrite=overwrite)
    console.print(f"Wrote {folder}: {', '.join([*made.files, *made.data])}", soft_wrap=True)
    _remarks(made, console)
    console.print("\nNext:", soft_wrap=True)
    for line in (f"cd {quote(str(folder))}", *made.first, "./run.sh"):
        console.print(f"  {line}", soft_wrap=True)


def _print(made: Plan, console: Console) -> None:
    for name, text in made.files.items():
        if name == "recipe.toml":
            continue  # `holdfast train --dry-run` prints it better
        console.print(f"#### {name}\n", style="bold", soft_wrap=True)
        console.print(text, soft_wrap=True)
    console.print("#### and\n", style="bold")
    console.print("recipe.toml: the recipe, every setting written out", soft_wrap=True)
    for name, origin in made.data.items():
        console.print(f"{name}: {origin}", soft_wrap=True)
    _remarks(made, console)


def _remarks(made: Plan, console: Console) -> None:
    console.print(f"\nOptimizer steps per rollout batch: {made.schedule}", soft_wrap=True)
    if made.notes:
        console.print("\nNot the same there:", soft_wrap=True)
    for note in made.notes:
        console.print(f"  {note}", soft_wrap=True)
