"""`holdfast baseline rejection-sampling`, until the research package has it. Delete this file then."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from holdfast.cli.command import SettingsCommand
from holdfast.cli.recipes import RecipeArgument, read_recipe
from holdfast.cli.terminal import HELP_OPTIONS, out, program
from holdfast.cli.train import Overwrite, claim, load_engine, on_console
from holdfast.run_folder import CONFIG, KEPT

app = typer.Typer(help="Train a baseline.", rich_markup_mode="rich", context_settings=HELP_OPTIONS)


@app.callback()
def baseline() -> None:
    """Train a baseline of the papers."""


@app.command("rejection-sampling", cls=SettingsCommand)
def rejection_sampling(ctx: typer.Context, recipe: RecipeArgument = None, overwrite: Overwrite = False) -> None:
    """Sample rollouts, and learn from the correct ones alone. The same command continues a run that was stopped."""
    from holdfast.config import load

    config, named = read_recipe(recipe, ctx.meta["settings"])
    run_dir = Path(config.run.dir) / config.run.name
    fresh = overwrite or not (run_dir / KEPT).is_file()
    engine = load_engine("rejection")
    if fresh:
        config, run_dir = claim(config, named=named, overwrite=overwrite)
    else:
        config = load(run_dir / CONFIG)
    model = on_console(
        run_dir, lambda listener: engine.rejection_sampling(config, run_dir, listener=listener), fresh=fresh
    )
    out().print(f"\nThe model is in {model}. Evaluate it with:\n  {program()} eval run {quote(str(run_dir))}")
