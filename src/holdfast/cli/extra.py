"""Loading what is heavy: with a word on the screen while it takes seconds, and a clear one when it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from rich.console import Console

from holdfast.cli.terminal import is_live
from holdfast.errors import MissingExtra
from holdfast.importing import TRAIN_PACKAGES


def missing_train_module() -> str | None:
    """A package of the [train] extra that is not installed; None when all are."""
    return next((package for module, package in TRAIN_PACKAGES.items() if find_spec(module) is None), None)


@contextmanager
def train_extra(console: Console, doing: str) -> Iterator[None]:
    """Imports inside may need the [train] extra. Raises `MissingExtra` when it is absent."""
    try:
        with console.status(doing) if is_live(console) else nullcontext():
            from transformers.utils import logging

            logging.disable_progress_bar()  # of reading and writing weights; downloads keep theirs
            yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in TRAIN_PACKAGES:
            raise
        raise MissingExtra(TRAIN_PACKAGES[package], "train") from None
