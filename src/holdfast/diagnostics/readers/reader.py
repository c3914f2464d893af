"""What it takes to read a kind of log: a `Reader`, and its line in `registry.READERS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.diagnostics.log import Format, Host
from holdfast.diagnostics.readers.columns import Columns
from holdfast.diagnostics.readers.tally import Tally


@dataclass(frozen=True, slots=True)
class Found:
    """A file of metrics."""

    reader: Reader
    path: Path
    name: str
    """To call the run by."""
    settings: Path | None = None
    """The run's config.toml."""
    note: str = ""
    """Why this file and not another of the folder, where that can surprise."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A run under its host's names."""

    format: Format
    host: Host
    name: str
    columns: Columns
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of log."""

    recognises: Callable[[Path, str], bool]
    """Whether a file is one, from its path and the beginning of its text. The first reader that says so has it."""
    read: Callable[[Found, Tally], list[Raw]]
    """The runs in a file; what is skipped is noted in the tally."""
    lacks: str
    """What is said of a file that was recognised and holds no run: it `has no row of metrics with a step`."""
    suffixes: tuple[str, ...]
    """How such files are called in a folder; others there are not looked at."""
    certain: Callable[[Path], bool] = lambda path: True
    """Of a file in a folder that was recognised by little: whether it is a log indeed."""
