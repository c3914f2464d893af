"""The folder of a new run: made once, whoever else wants it, and never in the place of something else."""

from __future__ import annotations

import shutil
from pathlib import Path
from shlex import quote

from holdfast.base.errors import ConfigError
from holdfast.base.files import is_locked
from holdfast.base.run_folder import CONFIG, headed, is_run
from holdfast.cli.terminal import program
from holdfast.recipe import Config, dump


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
