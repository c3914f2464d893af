"""verl's console log: `step:12 - actor/entropy:0.3 - …` between whatever else a job prints, Ray's marks before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.diagnostics.readers.columns import number_in
from holdfast.diagnostics.readers.frames import Frame, Row, nested_settings
from holdfast.diagnostics.readers.tally import Tally
from holdfast.diagnostics.readers.text import lines

STEP = re.compile(r"(?:^|[\s)])step:(\d+) - (?=\S+?:)")
FRAME = Frame("verl", "verl", lambda row: (row.pop("step"), row), null_is_nan=True)

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"^\s*\([^()]*\bpid=\d+[^()]*\)\s?")
_NUMPY = re.compile(r"^np\.(?:float|int|uint|bool)\w*\((.*)\)$|^tensor\(([^,()]*)[^()]*\)$")
_WORDS = {"True": 1.0, "False": 0.0, "None": float("nan")}
_MOST_SETTINGS = 20_000
"""Lines a printed configuration may have."""


class Console:
    """Reads once; `settings` is there afterwards."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally
        self.settings: dict[str, object] = {}
        self._printed: list[str] | None = None
        self._ended = False

    def rows(self) -> Iterator[tuple[list[int], list[Row]]]:
        """(numbers of lines, `{"step": …, name: number}`), as many as a block of the file has."""
        for first, some in lines(self.path, self.tally):
            places: list[int] = []
            rows: list[Row] = []
            for number, line in enumerate(some, first):
                if "step:" not in line:
                    if not self._ended:
                        self._configuration(line)
                    continue
                if "\x1b" in line:
                    line = _COLOUR.sub("", line)
                if (found := _last(line)) is None:
                    continue
                places.append(number)
                rows.append(self._row(int(found[1]), line[found.end() :], number))
            if rows:
                self._ended = True
                yield places, rows

    def _row(self, step: int, text: str, number: int) -> Row:
        row: Row = {"step": step}
        for part in text.rstrip().split(" - "):
            name, colon, value = part.rpartition(":")
            read = _value(value) if colon and name else None
            if read is None:
                self.tally.add("left out {n} values that are no numbers", number, part)
            else:
                row[name] = read
        return row

    def _configuration(self, line: str) -> None:
        """Collects what verl prints before the first step: its configuration as a Python dict over many lines."""
        line = _RAY.sub("", _COLOUR.sub("", line)).rstrip()
        if self._printed is None:
            if line.startswith("{'actor_rollout_ref'"):
                self._printed = []
            else:
                return
        if line[:1] not in "{ ":
            return  # another process, in between
        self._printed.append(line)
        if line.endswith("}") or len(self._printed) > _MOST_SETTINGS:
            try:
                values: Any = ast.literal_eval("\n".join(self._printed))
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                self._ended = len(self._printed) > _MOST_SETTINGS
                return
            self._ended = True
            if isinstance(values, dict):
                self.settings = nested_settings(values)


def _last(line: str) -> re.Match[str] | None:
    """The last mark of a step in a line: a progress bar may stand before it."""
    found = None
    for match in STEP.finditer(line):
        found = match
    return found


def _value(text: str) -> float | None:
    """`0.3`, `nan`, `np.float64(0.3)`, `True`, `tensor(0.3)`."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if (inner := _NUMPY.match(text)) is not None:
        text = inner[1] if inner[1] is not None else inner[2]
        if text in _WORDS:
            return _WORDS[text]
    return number_in(text)
