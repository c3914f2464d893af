"""Imports that may fail: code that a recipe names as `module:name`, and packages of an extra."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from holdfast.base.errors import ConfigError, MissingExtra, Terminated

TRAIN_PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "tokenizers": "tokenizers",
    "safetensors": "safetensors",
    "Stemmer": "PyStemmer",
}
"""Modules of the [train] extra, as they are imported -> what they are installed as."""

_PACKAGE = str(Path(__file__).parents[1])
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_import_path(text: str) -> bool:
    """Whether a text has the form `module:name`.

    >>> is_import_path("my_code.penalties:Hinge"), is_import_path("penalties.py:Hinge()")
    (True, False)
    """
    return _PATH.fullmatch(text) is not None


def search_in(folder: str) -> None:
    """Let imports look in a folder too, after all others."""
    if folder not in sys.path:
        sys.path.append(folder)


def place_of(path: str) -> str:
    """The file or folder whose code an import of `module:name` runs, found without running any of it.

    >>> place_of("no_such_module:name")
    'no_such_module:name'
    """
    search_in(os.getcwd())
    try:
        spec = find_spec(path.partition(":")[0].partition(".")[0])  # of the package: to find its modules would run it
    except ValueError:  # a module that was not imported but made, such as __main__
        spec = None
    if spec is None:
        return path
    return next(iter(spec.submodule_search_locations or [spec.origin or path]), path)


def import_named(path: str) -> Any:
    """Import the object that `path` names. The working directory is searched last.

    Raises `ConfigError` for another form, a module that cannot be imported, and a name that the module does not have.
    """
    if not is_import_path(path):
        raise ConfigError(f"{path!r} is not an import path; write module:name, such as my_code:Hinge")
    module_name, _, name = path.partition(":")
    search_in(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # the module's own code runs
        line = failing_line(error)
        remedy = "Fix that line" if line else "Install it, put it beside the recipe, or set run.code to its folder"
        raise ConfigError(
            f"{path!r}: the module {module_name} cannot be imported ({type(error).__name__}: {error}){line}. {remedy}"
        ) from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, vars(module), n=1)
        raise ConfigError(f"{path!r}: {module_name} has no {name}" + (f"; did you mean {near[0]}?" if near else ""))
    return getattr(module, name)


@contextmanager
def running(what: str) -> Iterator[None]:
    """Run code of the user's: whatever it raises, `SystemExit` included, becomes a `ConfigError` that begins with
    `what`, such as "reward part 'a:b' fails". A signal stays what it is."""
    try:
        yield
    except Terminated:
        raise
    except (Exception, SystemExit) as error:
        line = failing_line(error)
        raise ConfigError(f"{what} ({type(error).__name__}: {error}){line}{line and '. Fix that line'}") from error


def failing_line(error: BaseException) -> str:
    """Where code of the user's fails: file and line; empty if none of it ran."""
    if isinstance(error, SyntaxError):
        return f", in {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith(_PACKAGE) and "importlib" not in f.filename]
    return "".join(f", in {frame.filename}, line {frame.lineno}" for frame in theirs[:1])


def optional(module: str, extra: str, package: str = "") -> Any:
    """A module of an optional package, which the [`extra`] installs. Raises `MissingExtra`."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtra(package or module, extra) from None


def missing_train_package() -> str | None:
    """A package of the [train] extra that is not installed; None if all are."""
    return next((package for module, package in TRAIN_PACKAGES.items() if find_spec(module) is None), None)
