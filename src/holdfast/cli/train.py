"""`holdfast train`: from a recipe to a run folder, watched."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from holdfast import run_folder
from holdfast.cli.terminal import complain, err, out, program
from holdfast.errors import CheckpointError, ConfigError, GuardStop, HoldfastError

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.listener import Listener

T = TypeVar("T")
STOPPED = 3
"""Exit code of a run that its guard has stopped."""


class Stage(StrEnum):
    WARM_START = "warm-start"
    REJECTION_SAMPLING = "rejection-sampling"


def train(
    ctx: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A TOML file, or the name of a bundled recipe. Default: quickstart.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print every setting, explained, as a recipe; run nothing.")
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Continue a run from its newest checkpoint, as if it had never stopped."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")] = False,
    stage: Annotated[
        Stage | None,
        typer.Option(
            help="Make and save the warm-started model, and stop there; or instead of reinforcement learning learn "
            "from its right episodes alone.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a search agent.

    With no arguments, a tiny model learns to search a bundled world of made-up
    people: about six minutes on a CPU core. A recipe is a TOML file with your
    own model, questions, passages and method. Settings may be given here as well:

    [cyan]holdfast train my.toml --train.steps 50 --loss.penalty.name sapo[/cyan]
    """
    settings: list[str] = ctx.meta["settings"]
    if resume is not None:
        _resume(resume, recipe, settings, dry_run=dry_run, overwrite=overwrite, stage=stage)
        return
    from holdfast.train.checks import validate_before_training

    config, named = read_recipe(recipe, settings)
    validate_before_training(config, stage=stage)
    if dry_run:
        _print_recipe(config)
    else:
        _start(config, named=named, overwrite=overwrite, stage=stage, recipe=recipe)


def read_recipe(recipe: str | None, settings: list[str]) -> tuple[Config, bool]:
    """The config, and whether the user chose the run's name. A recipe without a name lends the run its own."""
    from holdfast.cli import recipes
    from holdfast.config import Config, load
    from holdfast.settings import parse_overrides, read_toml

    path = recipes.find(recipe or "quickstart")
    named = "run.name" in parse_overrides(settings, Config)
    run = read_toml(path).get("run", {})
    if not named and isinstance(run, dict) and "name" not in run:
        settings = [f"--run.name={path.stem}", *settings]
    return load(path, settings), named


def _start(config: Config, *, named: bool, overwrite: bool, stage: Stage | None, recipe: str | None) -> None:
    from holdfast.cli import runs

    engine = load_engine({Stage.WARM_START: "start", Stage.REJECTION_SAMPLING: "rejection", None: "run"}[stage])
    run_dir = runs.claim(config, named=named, overwrite=overwrite)
    config = config.model_copy(update={"run": config.run.model_copy(update={"name": run_dir.name})})
    if stage is Stage.WARM_START:
        model = _watch(run_dir, lambda listener: engine.warm_start_only(config, run_dir, listener=listener))
        again = f"{program()} train {quote(recipe) + ' ' if recipe else ''}--model.path {quote(str(model))}"
        again += " --warm_start.steps 0 --world.scripts.plain_steps 0"
        out().print(f"\nThe model is in {model}. Train on from it with:\n  {again}")
        return
    if stage is Stage.REJECTION_SAMPLING:
        _learn_from_right(config, run_dir)
        return
    from holdfast.cli.closing import close

    close(_watch(run_dir, lambda listener: engine.train(config, run_dir, listener=listener)), out())


def _resume(name: Path, recipe: str | None, settings: list[str], **others: Any) -> None:
    from holdfast.cli import runs
    from holdfast.config import load

    run_dir = runs.find_run(str(name))
    if recipe is not None or settings:
        given = recipe or " ".join(settings)
        raise ConfigError(
            f"--resume continues {run_dir} with its own recipe, but you also gave {given}. Leave that out; to make the "
            f"run longer, raise train.steps in {run_dir / run_folder.CONFIG} and resume; or start a new run from the "
            f"trained model with --model.path {run_dir}/checkpoints/…/model --warm_start.steps 0 "
            "--world.scripts.plain_steps 0"
        )
    if others["overwrite"] or others["stage"] is not None:
        raise ConfigError(f"--resume continues {run_dir}; it does not go with --overwrite or --stage")
    if others["dry_run"]:
        _print_recipe(load(run_dir / run_folder.CONFIG))
        return
    if _is_rejection_sampling(run_dir):
        _learn_from_right(load(run_dir / run_folder.CONFIG), run_dir)
        return
    engine = load_engine("run")
    from holdfast.cli.closing import close

    close(_watch(run_dir, lambda listener: engine.resume(run_dir, listener=listener), fresh=False), out())


def _learn_from_right(config: Config, run_dir: Path) -> None:
    engine = load_engine("rejection")
    model = _watch(run_dir, lambda listener: engine.rejection_sampling(config, run_dir, listener=listener))
    out().print(
        f"\nThe model is in {model}. Evaluate it with:\n  {program()} eval {quote(str(run_dir))}", soft_wrap=True
    )


def _is_rejection_sampling(run_dir: Path) -> bool:
    return (run_dir / run_folder.KEPT).is_file()


def load_engine(module: str) -> Any:
    """`holdfast.train.MODULE`, which takes seconds to import. Raises `MissingExtra` without the [train] extra."""
    from holdfast.cli.extra import train_extra

    with train_extra(err(), "loading PyTorch and transformers"):
        return import_module(f"holdfast.train.{module}")


def _watch(run_dir: Path, work: Callable[[Listener], T], *, fresh: bool = True) -> T:
    """Run `work(listener)`; however it ends, the terminal is whole and the user knows how to go on.

    A `fresh` folder goes again when the run never began.
    """
    from holdfast.cli import runs
    from holdfast.cli.console import open_console
    from holdfast.listener import Listeners

    # A `kill` becomes an exception, so that a live display gives the cursor back.
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with open_console(out(), run_dir) as console:
            result = work(Listeners(runs.Replacing(run_dir), console))
        runs.forget_replaced(run_dir)
        return result
    except KeyboardInterrupt:
        _explain_stop(run_dir, 130, fresh=fresh)
    except SystemExit:
        _explain_stop(run_dir, 143, fresh=fresh)
    except GuardStop as stop:
        err().print(str(stop), soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    except HoldfastError as error:
        complain(error)
        if fresh:
            runs.discard_if_bare(run_dir)
        # A recipe or a checkpoint that cannot be used stops the next --resume as well.
        ended_work = not isinstance(error, ConfigError | CheckpointError) and "--resume" not in str(error)
        if ended_work and (step := run_folder.newest_step(run_dir)) is not None:
            err().print(f"Step {step} is saved. To go on from there:\n  {_resuming(run_dir)}", soft_wrap=True)
        raise typer.Exit(2) from None
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, previous)


def _explain_stop(run_dir: Path, code: int, *, fresh: bool) -> NoReturn:
    from holdfast.cli import runs

    # The process is about to end: a second Ctrl-C must not cut off how to go on, nor print a traceback behind it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if fresh and runs.discard_if_bare(run_dir):
        message = "Stopped before the first step, so nothing is kept."
    elif (step := run_folder.newest_step(run_dir)) is None:
        message = f"Stopped before the first checkpoint (checkpoint.every). To begin again:\n  {_resuming(run_dir)}"
    else:
        message = f"Stopped. Step {step} is saved; to go on from there:\n  {_resuming(run_dir)}"
    err().print(message, soft_wrap=True)  # a command to copy is never broken
    raise typer.Exit(code)


def _resuming(run_dir: Path) -> str:
    return f"{program()} train --resume {quote(str(run_dir))}"


def _print_recipe(config: Config) -> None:
    """TOML on standard output; on a terminal its comments are dim."""
    from rich.text import Text

    from holdfast.cli.describe import annotated

    console = out()
    for line in annotated(config).splitlines():
        style = "dim" if line.startswith("#") else "bold" if line.startswith("[") else ""
        console.print(Text(line, style=style), soft_wrap=True)
