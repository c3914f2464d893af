"""The tables of completions that TRL prints: a panel `Step N`, with a row for each rollout in columns of cells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.diagnose.readers.text import Tally, lines

HEAD_LINE = "┡"
"""Stands under the names of the columns, and in few other texts."""
_TITLE = re.compile(r"─ Step (\d+) ─")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def panel_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of every table in a log, by the names of its columns in small letters, with `step`. A cell of several
    lines is one text; a table that was cut off ends with its last whole row."""
    step, names = 0, list[str]()
    cells: list[list[str]] = []
    for _, printed in lines(path, Tally(path)):
        line = _COLOUR.sub("", printed)
        if title := _TITLE.search(line):
            step, names, cells = int(title[1]), [], []
        elif "┃" in line:
            heads = [part.strip().lower() for part in line.split("┃")[1:-1]]
            names = [f"{name} {more}".strip() for name, more in zip(names or [""] * len(heads), heads, strict=False)]
        elif names and any(mark in line for mark in "├└"):
            if cells:
                yield {
                    "step": step,
                    **{name: _value(" ".join(filter(None, part))) for name, part in zip(names, cells, strict=False)},
                }
            cells = []
        elif names and line.count("│") > len(names):
            inner = line.strip().removeprefix("│").removesuffix("│").strip().split("│")[1:-1]
            cells = cells or [[] for _ in inner]
            for cell, part in zip(cells, inner, strict=False):
                cell.append(part.strip())


def _value(cell: str) -> str | float:
    try:
        return float(cell)
    except ValueError:
        return cell
