"""Code that a file names: it runs only after a line that says so, and code that a run folder names only if allowed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.agent import mcp
from holdfast.base.errors import ConfigError
from holdfast.base.importing import place_of
from holdfast.base.run_folder import CONFIG
from holdfast.cli.terminal import err, program
from holdfast.recipe import Config
from holdfast.recipe.code import OF_MODEL, TRUST, code_of
from holdfast.recipe.overrides import parse_overrides

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
