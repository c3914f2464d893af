"""Tables of a notebook, as Unsloth and transformers show them: with bars (Markdown), tabs, or aligned by blanks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path

from holdfast.diagnose.readers.cells import decimal_text, reading
from holdfast.diagnose.readers.columns import number_in
from holdfast.diagnose.readers.names import AXES, host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, stepless_frame
from holdfast.diagnose.readers.rows import read_rows
from holdfast.diagnose.readers.text import Tally, head, lines

_BLANKS = re.compile(r" {2,}|\t")
_AROUND = " *`"
"""Blanks, and the marks of bold and code."""
_RULE = re.compile(r"[\s|:+=-]+")
_NAMES = {"training loss": "loss", "validation loss": "eval_loss", "step": "step", "epoch": "epoch"}
_COUNTERS = {"iteration", "iterations", "iter", "update", "episode", "rollout", "round", "batch"}
_FEW = 2
"""Numbers of a row below a header."""
_WORD = re.compile(r"\S+")
_EMPTY = ("", "no log", "none", "-", "...")
_FIRST = 500
"""Lines that show what a comma in a number means."""


Split = Callable[[str], list[str]]


def by_bars(line: str) -> list[str]:
    """The cells of a line between bars.

    >>> by_bars("| 1 | **0.5** |")
    ['1', '0.5']
    """
    return [cell.strip(_AROUND) for cell in line.strip(" \r\n").strip("|").split("|")]


def by_gaps(line: str) -> list[str]:
    """The cells of a line between tabs, or two blanks and more.

    >>> by_gaps("Step  Training Loss")
    ['Step', 'Training Loss']
    """
    line = line.strip(" \r\n")
    return [cell.strip(_AROUND) for cell in (line.split("\t") if "\t" in line else _BLANKS.split(line))]


def by_blanks(line: str) -> list[str]:
    """The words of a line, as pandas prints a table.

    >>> by_blanks("   step reward_mean    loss")
    ['step', 'reward_mean', 'loss']
    """
    return line.split()


def header_of(line: str, split: Split) -> list[str] | None:
    """The names of a table, as transformers logs them; None for any other line."""
    names = [_NAMES.get(cell.lower(), cell.replace(" / ", "/")) for cell in split(line)]
    if "step" not in names:
        names = ["step" if name.lower() in _COUNTERS else name for name in names]
    if len(names) < 2 or not {"epoch", *AXES} & {*names} or any(number_in(name) is not None for name in names):
        return None
    return names if all(names) and len(set(names)) == len(names) else None


def table_at(line: str, below: str) -> tuple[list[str], Split] | None:
    """The names of a table that begins with these two lines, and what splits its lines; None if none does. pandas puts
    names and numbers below each other, and begins rows with an index, whose name is ""."""
    for split in (by_bars,) if "|" in line else (by_gaps, by_blanks):
        names = header_of(line, split)
        cells = split(below) if names else []
        if not names or sum(number_in(decimal_text(cell)) is not None for cell in cells) < _FEW:
            continue
        if split is by_blanks:
            if _ends(line) == _ends(below)[-len(names) :]:
                return [*[""] * (len(cells) - len(names)), *names], split
        elif len(cells) == len(names):
            return names, split
    return None


def _ends(line: str) -> list[int]:
    """Where the words of a line end."""
    return [word.end() for word in _WORD.finditer(line)]


def _with_below(path: Path, tally: Tally) -> Iterator[tuple[int, str, str]]:
    """(number, line, the next line) of those that say something."""
    said = ((number, line) for number, line in lines(path, tally) if line.strip() and not _RULE.fullmatch(line))
    for (number, line), (_, below) in pairwise(chain(said, [(0, "")])):
        yield number, line, below


def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    table: tuple[list[str], Split] | None = None
    read: Callable[[str], str] = str
    for number, line, below in _with_below(path, tally):
        begun = table_at(line, below)
        if begun is not None:
            table = begun
            first = islice(lines(path, Tally(path)), _FIRST)
            read = reading(cell for _, line in first for cell in table[1](line))
        if begun is not None or table is None:
            continue
        names, split = table
        cells = split(line)
        if len(cells) == len(names):
            named = zip(names, cells, strict=True)
            yield number, {name: read(cell) for name, cell in named if name and cell.lower() not in _EMPTY}
        elif number_in(cells[0]) is not None:
            tally.add("skipped {n rows}: more or fewer cells than the header has", number)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    found = (table_at(line, below) for _, line, below in _with_below(file.path, Tally(file.path)))
    names, _ = next(filter(None, found))
    frame = stepless_frame(names)
    if "loss" not in names:  # which transformers shows in every table
        frame = replace(frame, host=host_of(names))
    read = read_rows(_rows(file.path, tally), tally, frame)
    return [Raw("table", frame.host, frame.named(file.name), columns, {}) for frame, columns in read]


def _has_header(start: str) -> bool:
    """Whether a header and a row of numbers follow each other, with a rule between at most."""
    shown = [line for line in start.split("\n") if line.strip() and not _RULE.fullmatch(line)]
    return any(table_at(line, below) for line, below in pairwise(shown))


TABLE = Reader(
    recognises=lambda path, start: _has_header(head(path)),  # with the blanks that align it
    read=_read,
    lacks="has a table without a row of numbers",
    suffixes=(".md", ".txt", ".tsv"),
)
