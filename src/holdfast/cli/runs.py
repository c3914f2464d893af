"""Run folders: finding one by name, and the options that several commands have about them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.base.errors import ConfigError
from holdfast.base.run_folder import CONFIG, is_run
from holdfast.cli.terminal import completes_value, program

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
