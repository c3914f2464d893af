"""Run folders: making one for a new run, and finding one by name."""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import ConfigError
from holdfast.base.files import is_locked
from holdfast.base.run_folder import CONFIG, headed, is_run
from holdfast.cli.terminal import completes_value, program

if TYPE_CHECKING:
    from holdfast.recipe import Config

ROOT = Path("runs")
WHICH_CHECKPOINT = "Checkpoint: `last`, `best` (on dev), a step, its folder's name, or a path"
"""The help of `--checkpoint`: what `checkpoint_of` takes."""
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Run the code that the run's own recipe names. It can do whatever you can."),
]


def newest_run() -> Path:
    """The run folder in `ROOT` that was started last. Raises `ConfigError`."""
    if runs := _runs():
        return runs[0]
    raise ConfigError(f"there is no run in {ROOT}/", hint=f"train one with: {program()} train")


def find_run(name: str, otherwise: str = "") -> Path:
    """The run folder for a path, or for a name in `ROOT`. Raises `ConfigError`, which ends with `otherwise`."""
    for folder in (Path(name), ROOT / name):
        if is_run(folder):
            return folder
    if Path(name).suffix == ".toml":
        raise ConfigError(f"{name} is a recipe; give a run that was trained with it", hint=f"{program()} train {name}")
    listed = ", ".join(str(path) for path in _runs()[:5])
    hint = f"newest runs here: {listed}" if listed else f"train one with: {program()} train"
    problem = f"has no {CONFIG}, so it is not a run folder" if Path(name).is_dir() else "is not a run folder"
    raise ConfigError(f"{name} {problem}{otherwise}", hint=hint)


def in_runs(name: str) -> str:
    """The run folder for the name of a run in `ROOT`; any other text unchanged."""
    return str(ROOT / name) if not Path(name).exists() and is_run(ROOT / name) else name


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """For a shell: the names of the runs in `ROOT`. It completes paths by itself."""
    return [] if completes_value(ctx) else [path.name for path in _runs()]


def _runs() -> list[Path]:
    """Newest first."""
    return sorted((path for path in ROOT.glob("[!.]*") if is_run(path)), key=lambda p: -(p / CONFIG).stat().st_mtime)


def claim(config: Config, recipe: str, *, named: bool, overwrite: bool) -> tuple[Config, Path]:
    """Make the folder of a new run and write its recipe there: two processes never get the same.

    Returns the config with the name that the run got, and the folder. `recipe`: its name on the command line. `named`:
    the user chose the run's name, so it is not changed; otherwise a taken name gets a number. `overwrite` deletes an
    existing run. Raises `ConfigError`.
    """
    from holdfast.recipe import dump

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
