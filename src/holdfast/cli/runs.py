"""Run folders: which one a new run gets, which one a name means, and what may be deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast.cli.terminal import program
from holdfast.config import Config, dump
from holdfast.errors import ConfigError
from holdfast.files import is_locked
from holdfast.listener import Listener, StepResult
from holdfast.run_folder import CONFIG, is_run

ROOT = Path("runs")


def newest_run(root: Path = ROOT) -> Path:
    """The run folder in `root` that was begun last. Raises `ConfigError`."""
    if runs := _runs(root):
        return runs[0]
    raise ConfigError(f"there is no run in {root}/; make one with: {program()} train")


def find_run(name: str, root: Path = ROOT) -> Path:
    """The run folder somebody means by a path, or by a name in `root`. Raises `ConfigError`."""
    for folder in (Path(name), root / name):
        if is_run(folder):
            return folder
    listed = ", ".join(str(path) for path in _runs(root)[:5])
    hint = f"Newest runs here: {listed}" if listed else f"Make one with: {program()} train"
    what = f"has no {CONFIG}, so it is no run folder" if Path(name).is_dir() else "is no run folder"
    raise ConfigError(f"{name} {what}. {hint}")


def _runs(root: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in root.glob("[!.]*") if is_run(path)), key=lambda p: -(p / CONFIG).stat().st_mtime)


def claim(config: Config, *, named: bool, overwrite: bool) -> Path:
    """Make the folder of a new run, put its recipe there and return it: two processes never get the same.

    `named`: the user chose the name, so it is taken as it is; otherwise a number is put behind a name that is taken.
    `overwrite` moves what is there aside, if it is a run: `forget_replaced` deletes it once the new run has begun, and
    `discard_if_bare` moves it back if that never happens. Raises `ConfigError`.
    """
    root, name = Path(config.run.dir), config.run.name
    folder = root / name
    if overwrite and folder.exists():
        _set_aside(folder)
    number = 2
    while True:
        try:
            if not folder.is_dir() or not any(folder.iterdir()):
                folder.mkdir(parents=True, exist_ok=True)
                with (folder / CONFIG).open("x", encoding="utf-8") as file:
                    file.write(dump(config))
                return folder
        except FileExistsError:  # a file of that name, or another process was faster
            pass
        except OSError as error:
            raise ConfigError(f"the run folder {folder} cannot be made: {error.strerror}; set run.dir") from None
        if named:
            raise ConfigError(_taken(folder))
        folder = root / f"{name}-{number}"
        number += 1


def discard_if_bare(folder: Path) -> bool:
    """Remove a run folder that holds nothing but its recipe, because the run never began; whether it did so.

    The run it was to replace comes back. Another process's folder is left alone.
    """
    bare = folder.is_dir() and {path.name for path in folder.iterdir()} <= {CONFIG}
    if not bare or is_locked(folder / CONFIG):
        return False
    shutil.rmtree(folder)
    if _aside(folder).exists():
        _aside(folder).rename(folder)
    return True


def forget_replaced(folder: Path) -> None:
    """Delete the run that `folder` replaces, if there is one."""
    shutil.rmtree(_aside(folder), ignore_errors=True)


class Replacing(Listener):
    """Deletes the run that a new one replaces, as soon as the new one has made a step."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def step(self, result: StepResult) -> None:
        forget_replaced(self._run_dir)


def _taken(folder: Path) -> str:
    if not is_run(folder):
        return f"{folder} exists and is no run folder; give another --run.name"
    return (
        f"{folder} exists; continue it with --resume {folder}, replace it with --overwrite, or give another --run.name"
    )


def _set_aside(folder: Path) -> None:
    if folder.is_symlink() or not is_run(folder):
        raise ConfigError(
            f"--overwrite would delete {folder}, which is no run folder (it has no {CONFIG}); move it away, "
            "or give another --run.name"
        )
    if is_locked(folder / CONFIG):
        raise ConfigError(
            f"--overwrite would replace {folder}, in which another process is training. Stop that one first, or give "
            "another --run.name"
        )
    forget_replaced(folder)
    folder.rename(_aside(folder))


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")
