"""`holdfast recipe`, how a recipe is found and read, and the code that it names. Bundled recipes are TOML files in
`recipe/bundled`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.agent import mcp
from holdfast.base.errors import ConfigError
from holdfast.base.importing import place_of
from holdfast.base.run_folder import CONFIG, is_run
from holdfast.cli.command import SettingsCommand
from holdfast.cli.describe import annotated
from holdfast.cli.terminal import HELP_OPTIONS, completes_value, err, out, program
from holdfast.recipe import Config, load
from holdfast.recipe.code import OF_MODEL, TRUST, code_of
from holdfast.recipe.loading import bundled, find_recipe
from holdfast.recipe.overrides import parse_overrides, read_toml

DEFAULT = "quickstart"


def complete_recipe(ctx: typer.Context, incomplete: str) -> list[str]:
    """For a shell: the bundled recipes and the TOML files in this folder."""
    return [] if completes_value(ctx) else [*bundled(), *map(str, Path().glob("*.toml"))]


RecipeArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RECIPE",
        help="A TOML file, or the name of a bundled recipe. Default: quickstart.",
        autocompletion=complete_recipe,
    ),
]

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", context_settings=HELP_OPTIONS)


@app.callback()
def recipe() -> None:
    """List the bundled recipes, or explain every setting of one.

    A recipe is a TOML file that describes a training run. Start your own recipe
    as a copy of a bundled one:

    [cyan]holdfast recipe show > my.toml[/cyan]
    """


@app.command("list")
def list_recipes() -> None:
    """Print the names of the bundled recipes, one line each."""
    recipes = bundled()
    width = max(map(len, recipes), default=0)
    console = out()
    for name, path in recipes.items():
        line = f"{name:<{width}}  {_summary(path)}"
        console.print(line, no_wrap=True, overflow="ellipsis", soft_wrap=not console.is_terminal)


@app.command("show", cls=SettingsCommand)
def show(
    ctx: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE", help="A TOML file, the name of a bundled recipe, or a run folder. Default: quickstart."
        ),
    ] = None,
) -> None:
    """Print a recipe with every setting explained, as TOML that can be edited and trained.

    Settings on the command line change the recipe that is printed. For a run
    folder, it prints the recipe that the run was started with. A setting without
    a value is unset; on the command line and in a file, its value is none. To
    remove any other setting from a recipe, give --unset KEY, or write a list named
    unset at the top of a file.

    [cyan]holdfast recipe show > my.toml[/cyan]

    [cyan]holdfast recipe show flaky --loss.penalty.name sapo > my.toml[/cyan]
    """
    settings: list[str] = ctx.meta["settings"]
    if recipe is not None and is_run(Path(recipe)):
        config = load(Path(recipe) / CONFIG, settings)
    else:
        config, _ = _read(recipe, settings)  # runs no code
    console = out()
    for line in annotated(config).rstrip("\n").split("\n"):  # `splitlines` would also break a line inside a string
        style = "dim" if line.startswith("#") else "bold" if line.startswith("[") else ""
        console.print(Text(line, style=style), soft_wrap=True)


def read_recipe(recipe: str | None, settings: list[str]) -> tuple[Config, bool]:
    """(the config, whether the user chose the run's name), after a line for each piece of code that it names.

    By default a run has the name of its recipe.
    """
    config, named = _read(recipe, settings)
    announce(config)
    return config, named


def _read(recipe: str | None, settings: list[str]) -> tuple[Config, bool]:
    path = find_recipe(recipe or DEFAULT)
    named = "run.name" in parse_overrides(settings, Config)
    run = read_toml(path).get("run", {})
    if not named and isinstance(run, dict) and "name" not in run:
        settings = [f"--run.name={path.stem}", *settings]
    return load(path, settings), named


def _summary(path: Path) -> str:
    """The first sentence of the recipe's description, which is the second paragraph of its comments."""
    paragraphs: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.removeprefix("#").strip()
        paragraphs[-1].append(text) if text else paragraphs.append([])
    description = " ".join(paragraphs[1]) if len(paragraphs) > 1 else ""
    sentence, stop, _ = description.partition(". ")
    return sentence + stop.strip()


# ---- code that a recipe names: it runs only after a line that says so, and that of a run folder only if allowed

_OF_MODEL = "Python files of the model"


def announce(config: Config) -> None:
    """Print a line for each piece of code that a recipe names, before any of it runs."""
    for setting, named in code_of(config).items():
        for name in named:
            if setting == OF_MODEL:
                what = f"{_OF_MODEL} {name}, if it has any"
            else:
                what = name if name.startswith(mcp.PREFIX) else place_of(name)
            err().print(f"this recipe runs code: {what} ({setting})", soft_wrap=True)


def allow(config: Config, run: Path | None, settings: Sequence[str], *, trusted: bool) -> None:
    """As `announce`, for the recipe of a run folder, which somebody else may have written; None if the user named it.

    `settings` are those that the user gave: what they name, the user named. Raises `ConfigError` for other code unless
    it is `trusted`.
    """
    foreign = code_of(config).keys() - parse_overrides(settings, Config).keys()
    if run is not None and foreign and not trusted:
        told = [
            f"{setting} runs {_OF_MODEL if setting == OF_MODEL else ', '.join(named)}"
            for setting, named in code_of(config).items()
            if setting in foreign
        ]
        raise ConfigError(
            f"{run / CONFIG} names code: {'; '.join(told)}. A run folder may come from somebody else, and its code can "
            f"do whatever you can, so it runs only if you allow it. Read it, and if you trust it, add {TRUST}",
            hint=shlex.join([program(), *sys.argv[1:], TRUST]),
        )
    announce(config)
