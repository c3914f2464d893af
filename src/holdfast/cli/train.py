"""`holdfast train`, `resume` and `warm-start`: from a recipe to a run folder, on a console."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from shlex import quote
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from holdfast.base import run_folder
from holdfast.base.errors import CheckpointError, ConfigError, GuardStop, HoldfastError, Terminated
from holdfast.base.files import is_locked
from holdfast.base.importing import failing_line
from holdfast.base.run_folder import CONFIG, headed, is_run
from holdfast.cli import runs
from holdfast.cli.recipes import DEFAULT, RecipeArgument, allow, read_recipe
from holdfast.cli.terminal import err, out, print_error, program, train_extra, waiting
from holdfast.recipe import Config, dump, load_run
from holdfast.recipe.code import trusting
from holdfast.recipe.overrides import parse_overrides
from holdfast.recipe.paths import PATHS

if TYPE_CHECKING:
    from holdfast.train.listener import Listener
    from holdfast.train.prepare import Prepared

T = TypeVar("T")
STOPPED = 3
"""Exit code of a run that its guard has stopped."""

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run folder if it exists.")]


def train(
    ctx: typer.Context,
    recipe: RecipeArgument = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the recipe and stop. Exit code 2 if it cannot be trained.")
    ] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a search agent with reinforcement learning.

    Without arguments, a tiny model learns to search a small bundled world of
    made-up people. That takes less than four minutes on one CPU core.

    A recipe is a TOML file that names your model, questions, passages and method.
    Options such as --train.steps 50 change its settings. The run folder runs/NAME
    gets the recipe, metrics, sampled rollouts, checkpoints and a report.

    [cyan]holdfast train[/cyan]

    [cyan]holdfast train my.toml --train.steps 50 --loss.penalty.name sapo[/cyan]

    Exit codes: 0 finished, 2 error, 3 stopped on a finding (guard.action),
    130 stopped with Ctrl-C.
    """
    prepared, named = _prepare(recipe, ctx.meta["settings"])
    if dry_run:
        folder = free_folder(prepared.config, named=named, overwrite=overwrite)
        out().print(f"This recipe can be trained. The run would be written to {folder}.", soft_wrap=True)
        if prepared.needs is not None:
            out().print(f"It needs {prepared.needs}.", soft_wrap=True)
        for note in prepared.notes:
            out().print(f"{note}.", soft_wrap=True)
        if prepared.prompt is not None:
            out().print(
                f"The prompt of the first question, as the model reads it:\n\n{prepared.prompt}", soft_wrap=True
            )
        return
    trainer = load_trainer("run")
    config, run_dir = claim(prepared.config, recipe or DEFAULT, named=named, overwrite=overwrite)
    claimed = replace(prepared, config=config)
    summary = on_console(run_dir, config, lambda listener: trainer.train_prepared(claimed, run_dir, listener=listener))
    _close(summary, config)


def resume(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, or the name of a run in runs/.", autocompletion=runs.complete_run
        ),
    ],
    trust_code: runs.TrustCode = False,
) -> None:
    """Continue a run from its newest checkpoint.

    The run continues with its own recipe, as if it had never stopped. With the
    same number of CPU threads, its metrics are the same too. To make a finished
    run longer, first raise train.steps in the config.toml of its folder. With
    options that are paths, or --retrieval.url, say where a file or a server is now.
    If the recipe names code, such as tools of your own, give --trust-code.

    [cyan]holdfast resume runs/quickstart[/cyan]

    [cyan]holdfast resume runs/my --retrieval.corpus new/place/docs[/cyan]

    Exit codes: as for [cyan]holdfast train[/cyan].
    """
    run_dir = runs.find_run(run)
    if not parse_overrides(ctx.args, Config).keys() <= {*PATHS, "retrieval.url"}:
        raise ConfigError(
            f"a run is resumed with its own recipe, but you also gave {' '.join(ctx.args)}. Leave that out. To make "
            f"the run longer, raise train.steps in {run_dir / run_folder.CONFIG} and resume; or start a new run from "
            f"the trained model with --model.path {run_dir}/checkpoints/…/model --warm_start.steps 0"
        )
    if (run_dir / run_folder.KEPT).is_file():
        raise ConfigError(
            f"{run_dir} is a run of rejection sampling; to continue it, repeat the command that started it"
        )
    config = load_run(run_dir, ctx.args)
    allow(config, run_dir, ctx.args, trusted=trust_code)
    trainer = load_trainer("run")
    resumed = partial(trainer.resume, run_dir, moved=ctx.args)
    summary = on_console(run_dir, config, lambda listener: resumed(listener=listener), fresh=False)
    _close(summary, config)


def warm_start(ctx: typer.Context, recipe: RecipeArgument = None, overwrite: Overwrite = False) -> None:
    """Run only the warm start of a recipe, and save the model.

    A warm start is supervised training on demonstrations. It teaches a model the
    format of searches and answers. [cyan]holdfast train[/cyan] starts with one if
    warm_start.steps is above 0. Use this command to train several runs from the
    same model. The model is written to runs/NAME/model.

    [cyan]holdfast warm-start quickstart --run.name start[/cyan]
    """
    prepared, named = _prepare(recipe, ctx.meta["settings"], stage="warm-start")
    trainer = load_trainer("start")
    config, run_dir = claim(prepared.config, recipe or DEFAULT, named=named, overwrite=overwrite)
    claimed = replace(prepared, config=config)
    model = on_console(
        run_dir, config, lambda listener: trainer.warm_start_prepared(claimed, run_dir, listener=listener)
    )
    from holdfast.train.start_cache import from_model

    command = f"{program()} train {quote(recipe) + ' ' if recipe else ''}{from_model(config, model)}"
    asking = f"{program()} ask {quote(str(run_dir))}{trusting(config)}"
    out().print(f"\nThe model is in {model}. Ask it, or train from it:\n  {asking}\n  {command}", soft_wrap=True)


def load_trainer(module: str) -> Any:
    """`holdfast.train.MODULE`, which takes seconds to import. Raises `MissingExtra` without the [train] extra."""
    with train_extra("loading PyTorch and transformers"):
        return import_module(f"holdfast.train.{module}")


def on_console(run_dir: Path, config: Config, work: Callable[[Listener], T], *, fresh: bool = True) -> T:
    """Run `work(listener)` and show it. However it ends, the terminal is restored and the user reads how to continue.

    A `fresh` folder is removed when the run never started.
    """
    from holdfast.cli.console import open_console

    resuming = f"{program()} resume {quote(str(run_dir))}{trusting(config)}"
    # A `kill` becomes an exception, so that a live display gives the cursor back.
    previous = signal.signal(signal.SIGTERM, _terminate)
    previous_hook, sys.unraisablehook = sys.unraisablehook, _stop_again
    try:
        with open_console(out(), run_dir) as console:
            return work(console)
    except KeyboardInterrupt:
        _explain_stop(run_dir, 130, resuming, fresh=fresh)
    except Terminated:
        _explain_stop(run_dir, 143, resuming, fresh=fresh)
    except GuardStop as stop:
        err().print(str(stop), soft_wrap=True)
        raise typer.Exit(STOPPED) from None
    except (HoldfastError, SystemExit) as stop:
        error = stop if isinstance(stop, HoldfastError) else _exit_of_user_code(stop)
        # `resume` would fail on a recipe or a checkpoint that cannot be used.
        resumable = not isinstance(error, ConfigError | CheckpointError) and error.hint is None
        print_error(error)
        if fresh:
            discard_if_bare(run_dir)
        if resumable and (step := run_folder.newest_step(run_dir)) is not None:
            err().print(f"Step {step} is saved. To continue from there:\n  {resuming}", soft_wrap=True)
        raise typer.Exit(2) from None
    finally:
        sys.unraisablehook = previous_hook
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, previous)


def _prepare(recipe: str | None, settings: list[str], *, stage: str | None = None) -> tuple[Prepared, bool]:
    """The recipe, ready to be trained, and whether it names its run."""
    from holdfast.train.prepare import prepare

    config, named = read_recipe(recipe, settings)
    with waiting("Reading questions, passages and the tokenizer"):
        return prepare(config, stage=stage), named


def _terminate(*_: object) -> NoReturn:
    raise Terminated(143)


def _exit_of_user_code(stop: SystemExit) -> ConfigError:
    """The error for a `sys.exit` that is not ours."""
    return ConfigError(
        f"code that this recipe names ended the run: sys.exit({stop.code!r}){failing_line(stop)}. Let it return, or "
        "raise another exception"
    )


def _stop_again(ignored: sys.UnraisableHookArgs) -> None:
    """Send a signal again that came during Python's clean-up, which only prints exceptions and drops them."""
    numbers = {Terminated: signal.SIGTERM, KeyboardInterrupt: signal.SIGINT}
    if (number := numbers.get(ignored.exc_type)) is None:
        sys.__unraisablehook__(ignored)
    else:
        Timer(0.01, os.kill, (os.getpid(), number)).start()


def _close(summary: Any, config: Config) -> None:
    from holdfast.cli.closing import close  # --help does without numpy

    close(summary, config, out())


def _explain_stop(run_dir: Path, code: int, resuming: str, *, fresh: bool) -> NoReturn:
    # The process is about to end: a second Ctrl-C must neither cut off the explanation nor print a traceback after it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if fresh and discard_if_bare(run_dir):
        message = "Stopped before the first step, so nothing was saved."
    elif (step := run_folder.newest_step(run_dir)) is None:
        message = "Stopped before the first step was saved. To begin again at step 1:"
        message += f"\n  {resuming}"
    else:
        message = f"Stopped. Step {step} is saved. To continue from there:\n  {resuming}"
    err().print(message, soft_wrap=True)  # a command to copy is never broken
    raise typer.Exit(code)


# ---- the folder of a new run: made once, whoever else wants it, and never in the place of something else


def claim(config: Config, recipe: str, *, named: bool, overwrite: bool) -> tuple[Config, Path]:
    """Make the folder of a new run and write its recipe there: two processes never get the same.

    Returns the config with the name that the run got, and the folder. `recipe`: its name on the command line. `named`:
    the user chose the run's name, so it is not changed; otherwise a taken name gets a number. `overwrite` deletes an
    existing run. Raises `ConfigError`.
    """
    folder = free_folder(config, named=named, overwrite=overwrite)
    try:
        if overwrite and folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / CONFIG).open("x", encoding="utf-8") as file:
            file.write(headed(dump(config), recipe))
    except OSError as error:
        if isinstance(error, FileExistsError) and folder.is_dir():  # another process was faster
            return claim(config, recipe, named=named, overwrite=overwrite)
        raise ConfigError(f"the run folder {folder} cannot be made: {error.strerror or error}; set run.dir") from None
    return config.model_copy(update={"run": config.run.model_copy(update={"name": folder.name})}), folder


def free_folder(config: Config, *, named: bool, overwrite: bool) -> Path:
    """The folder that `claim` would make, without making it. Raises `ConfigError` as `claim` does."""
    root, name = Path(config.run.dir), config.run.name
    folder = root / name
    if overwrite and folder.exists():
        _refuse_to_replace(folder)
        return folder
    number = 2
    while _is_taken(folder):
        if named:
            raise _taken(folder)
        folder = root / f"{name}-{number}"
        number += 1
    return folder


def discard_if_bare(folder: Path) -> bool:
    """Remove a run folder that holds only its recipe, because the run never started; True when it was removed."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} != {CONFIG}:
        return False
    shutil.rmtree(folder)
    return True


def _is_taken(folder: Path) -> bool:
    """Whether it exists and is not an empty folder."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _taken(folder: Path) -> ConfigError:
    if not is_run(folder):
        return ConfigError(f"{folder} exists but is not a run folder; give another --run.name")
    return ConfigError(
        f"{folder} exists; replace it with --overwrite, or give another --run.name",
        hint=f"to continue it: {program()} resume {quote(str(folder))}",
    )


def _refuse_to_replace(folder: Path) -> None:
    if not is_run(folder):
        raise ConfigError(
            f"--overwrite would delete {folder}, which is not a run folder (it has no {CONFIG}); move it away, "
            "or give another --run.name"
        )
    if is_locked(folder / CONFIG):
        raise ConfigError(
            f"--overwrite would replace {folder}, in which another process is training. Stop that process first, or "
            "give another --run.name"
        )
