"""`holdfast baseline`: what reinforcement learning is compared with, trained on the same recipe."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import ConfigError
from holdfast.base.run_folder import MODEL, is_run
from holdfast.cli.command import SettingsCommand
from holdfast.cli.terminal import out, program

if TYPE_CHECKING:
    from holdfast.recipe import Config
    from holdfast.train.listener import Listener

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Baselines for reinforcement learning: supervised learning on short answers, and rejection sampling.",
)

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="TOML file, or the name of a bundled recipe.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="Optimizer steps. Default: the recipe's warm_start.steps.", show_default=False),
]


@app.command("sft", cls=SettingsCommand)
def sft(ctx: typer.Context, recipe: Recipe, steps: Steps = None, overwrite: Overwrite = False) -> None:
    """Train on the training questions and their short answers, without retrieval.

    Batch size and learning rate are warm_start.batch_size and warm_start.lr of the
    recipe. The model is saved in the run folder; evaluate it with `eval run RUN --method direct --bare`.
    """
    _short_answers(recipe, ctx.meta["settings"], "sft", steps, overwrite)


@app.command("rag-sft", cls=SettingsCommand)
def rag_sft(ctx: typer.Context, recipe: Recipe, steps: Steps = None, overwrite: Overwrite = False) -> None:
    """Train on short answers after the passages that the question retrieves.

    Batch size and learning rate are warm_start.batch_size and warm_start.lr of the
    recipe. The model is saved in the run folder; evaluate it with `eval run RUN --method rag --bare`.
    """
    _short_answers(recipe, ctx.meta["settings"], "rag-sft", steps, overwrite)


@app.command("rejection-sampling", cls=SettingsCommand)
def rejection_sampling(ctx: typer.Context, recipe: Recipe, overwrite: Overwrite = False) -> None:
    """Sample rollouts, and train on the correct ones by supervised learning.

    The budget is that of the recipe's reinforcement learning: as many rollouts,
    as many optimizer steps. Stop at any time: the same command continues.
    """
    baselines = _baselines()
    config, run_dir = _claim(recipe, ctx.meta["settings"], "rejection-sampling", overwrite, (baselines.CORRECT,))
    _watch(run_dir, lambda listener: baselines.rejection_sampling(config, run_dir, listener=listener))


def _short_answers(recipe: str, settings: list[str], name: str, steps: int | None, overwrite: bool) -> None:
    baselines = _baselines()
    config, run_dir = _claim(recipe, settings, name, overwrite)
    warm = config.warm_start
    if not (steps or warm.steps):
        raise ConfigError("the recipe's warm_start.steps is 0, so the number of steps is unknown; give --steps")
    course = baselines.Course(steps=steps or warm.steps, batch_size=warm.batch_size, lr=warm.lr)
    passages = name == "rag-sft"
    _watch(run_dir, lambda listener: baselines.sft(config, run_dir, course, passages=passages, listener=listener))


def _claim(
    recipe: str, settings: list[str], baseline: str, overwrite: bool, continues: tuple[str, ...] = ()
) -> tuple[Config, Path]:
    """The config and its run folder, RECIPE-BASELINE without a name of the user's. A folder without a model was not
    finished: it is begun again, or continued if it holds one of the files `continues`. Raises `ConfigError`.
    """
    from holdfast.recipe import Config, load
    from holdfast.recipe.loading import find_recipe
    from holdfast.recipe.overrides import parse_overrides

    path = find_recipe(recipe)
    if "run.name" not in parse_overrides(settings, Config):
        settings = [f"--run.name={path.stem}-{baseline}", *settings]
    config = load(path, settings)
    run_dir = Path(config.run.dir) / config.run.name
    if run_dir.exists() and not is_run(run_dir):
        raise ConfigError(f"{run_dir} exists and is not a run folder; give another --run.name")
    if (run_dir / MODEL).exists() and not overwrite:
        raise ConfigError(f"{run_dir} is finished; replace it with --overwrite, or give another --run.name")
    if run_dir.exists() and (overwrite or not any((run_dir / name).exists() for name in continues)):
        shutil.rmtree(run_dir)
    return config, run_dir


def _watch(run_dir: Path, work: Callable[[Listener], Path]) -> None:
    from holdfast.cli.console import open_console

    with open_console(out(), run_dir) as console:
        model = work(console)
    out().print(
        f"\nThe model is in {model}. Evaluate it with:\n  {program()} eval run {quote(str(run_dir))}", soft_wrap=True
    )


def _baselines() -> Any:
    """The module, which takes seconds to import. Raises `MissingExtra` without the [train] extra."""
    from holdfast.cli.terminal import train_extra

    with train_extra("loading PyTorch and transformers"):
        from holdfast_research import baselines

        return baselines
