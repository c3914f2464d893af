"""`holdfast launch`: a recipe as files and a command for another trainer. It writes them and starts nothing."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from holdfast.adapters.launch import Machines, Plan, write_plan
from holdfast.adapters.launch import plan as translate
from holdfast.base.tested import installed_version, newer_than_tested
from holdfast.cli.recipes import complete_recipe, read_recipe
from holdfast.cli.terminal import out


def launch(
    ctx: typer.Context,
    host: Annotated[str, typer.Argument(metavar="trl|verl", help="The trainer.")],
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A TOML file, or the name of a bundled recipe.", autocompletion=complete_recipe
        ),
    ],
    show: Annotated[
        bool, typer.Option("--print", help="Print the files instead of writing them. Does not read the questions.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Output folder. Default: launch/NAME-TRAINER, such as launch/my-verl."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, metavar="N", help="Number of GPUs per machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of machines.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write into the folder even if it is not empty.")
    ] = False,
) -> None:
    """Translate a recipe into files for TRL or verl.

    Reads the recipe and its questions, and imports the code that the recipe
    names. Writes a folder with the trainer's own configuration, the questions and
    run.sh, the script that starts the training.
    If the trainer does not support a setting of the recipe, the error message
    names the nearest one that it supports.

    [cyan]holdfast launch verl my.toml --gpus 8[/cyan]

    [cyan]holdfast launch trl my.toml --loss.penalty.name none --print[/cyan]
    """
    config, _ = read_recipe(recipe, ctx.meta["settings"])
    plan = translate(host, config, Machines(gpus=gpus, nodes=nodes))
    console = out()
    if show:
        _print(plan, console)
        return
    folder = folder or Path("launch") / f"{config.run.name}-{host}"
    write_plan(plan, folder, overwrite=overwrite)
    console.print(f"Wrote {folder}: {', '.join([*plan.files, *plan.data])}", soft_wrap=True)
    _remarks(plan, console)
    console.print("\nNext:", soft_wrap=True)
    for line in (f"cd {quote(str(folder))}", *plan.first, "./run.sh"):
        console.print(f"  {line}", soft_wrap=True)


def _print(plan: Plan, console: Console) -> None:
    for name, text in plan.files.items():
        if name == "recipe.toml":
            continue  # `holdfast recipe show` prints it better
        console.print(f"#### {name}\n", style="bold", soft_wrap=True)
        console.print(text, soft_wrap=True)
    console.print("#### and\n", style="bold")
    console.print("recipe.toml: the recipe, every setting written out", soft_wrap=True)
    for name, origin in plan.data.items():
        console.print(f"{name}: {origin}", soft_wrap=True)
    _remarks(plan, console)


def _remarks(plan: Plan, console: Console) -> None:
    console.print(f"\nOptimizer steps per rollout batch: {plan.schedule}", soft_wrap=True)
    if plan.notes:
        console.print("\nDifferences from the local trainer:", soft_wrap=True)
    for note in plan.notes:
        console.print(f"  {note}", soft_wrap=True)
    if newer := newer_than_tested(plan.host, installed_version(plan.host)):
        console.print(f"\nNote: {newer}", soft_wrap=True)
