"""Tables of a notebook, as Unsloth and transformers show them: with bars (Markdown), tabs, or aligned by blanks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

from holdfast.diagnose.readers.cells import decimal_text, reading
from holdfast.diagnose.readers.columns import number_in
from holdfast.diagnose.readers.names import AXES
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, stepless_frame
from holdfast.diagnose.readers.rows import read_rows
from holdfast.diagnose.readers.text import Tally, lines

_BLANKS = re.compile(r" {2,}|\t")
_AROUND = " *`"
"""Blanks, and the marks of bold and code."""
_RULE = re.compile(r"[\s|:+-]+")
_NAMES = {"training loss": "loss", "validation loss": "eval_loss", "step": "step", "epoch": "epoch"}
_EMPTY = ("", "no log")
_FIRST = 500
"""Lines that show what a comma in a number means."""


def cells_of(line: str, bars: bool) -> list[str]:
    """The cells of a line between bars, or between tabs or two blanks and more.

    >>> cells_of("| 1 | 0.5 |", True), cells_of("Step  Training Loss", False)
    (['1', '0.5'], ['Step', 'Training Loss'])
    """
    line = line.strip(" \r\n")
    if bars:
        return [cell.strip(_AROUND) for cell in line.strip("|").split("|")]
    return [cell.strip(_AROUND) for cell in (line.split("\t") if "\t" in line else _BLANKS.split(line))]


def header_of(line: str) -> list[str] | None:
    """The names of a table, as transformers logs them; None for any other line."""
    names = [_NAMES.get(cell.lower(), cell.replace(" / ", "/")) for cell in cells_of(line, "|" in line)]
    if len(names) < 2 or not {"epoch", *AXES} & {*names} or any(number_in(name) is not None for name in names):
        return None
    return names if all(names) and len(set(names)) == len(names) else None


def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    names: list[str] | None = None
    bars = False
    first = islice(lines(path, Tally(path)), _FIRST)
    read = reading(cell for _, line in first for cell in cells_of(line, "|" in line))
    for number, line in lines(path, tally):
        header = header_of(line)
        if header is not None:
            names, bars = header, "|" in line
        if header is not None or names is None or not line.strip() or _RULE.fullmatch(line):
            continue
        cells = cells_of(line, bars)
        if len(cells) == len(names):
            named = zip(names, cells, strict=True)
            yield number, {name: read(cell) for name, cell in named if cell.lower() not in _EMPTY}
        elif number_in(cells[0]) is not None:
            tally.add("skipped {n rows}: more or fewer cells than the header has", number)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    names = next(filter(None, (header_of(line) for _, line in lines(file.path, Tally(file.path)))))
    read = read_rows(_rows(file.path, tally), tally, stepless_frame(names))
    return [Raw("table", frame.host, frame.named(file.name), columns, {}) for frame, columns in read]


def _has_header(path: Path, start: str) -> bool:
    """Whether a header and a row of numbers follow each other, with a rule between at most."""
    shown = [line for line in start.split("\n") if line.strip() and not _RULE.fullmatch(line)]
    for line, below in pairwise(shown):
        names = header_of(line)
        if names is not None:
            cells = cells_of(below, "|" in line)
            if len(cells) == len(names) and sum(number_in(decimal_text(cell)) is not None for cell in cells) > 1:
                return True
    return False


TABLE = Reader(
    recognises=_has_header,
    read=_read,
    lacks="has a table without a row of numbers",
    suffixes=(".md", ".txt", ".tsv"),
)
