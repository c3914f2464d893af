"""verl's console log: `step:12 - actor/entropy:0.3 - …` between whatever else a job prints, Ray's marks before it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.diagnostics.readers.columns import number_in
from holdfast.diagnostics.readers.frames import Frame, Row, dotted
from holdfast.diagnostics.readers.jsonl import Batch
from holdfast.diagnostics.readers.tally import Tally
from holdfast.diagnostics.readers.text import lines

STEP = re.compile(r"(?<![\w./@-])step:(\d{1,15}) - (?=[^\s:]+:)")
FRAME = Frame("verl", "verl", lambda row: (row.pop("step"), row), null_is_nan=True)

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RAY = re.compile(r"\s*\([^()]*\bpid=\d+[^()]*\) ?")
_NUMPY = re.compile(r"(?:np|numpy)\.\w+\((.*)\)")
_WORDS = {"True": 1.0, "False": 0.0}
_LONGEST_SETTINGS = 1 << 20  # characters


class Console:
    """Reads a file once; then `settings` is what verl printed of its configuration."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally
        self.settings: dict[str, object] = {}
        self._printed: list[str] = []
        self._looking = True

    def rows(self) -> Iterator[Batch]:
        """`{"step": …, name: number}` by line."""
        for first, some in lines(self.path, self.tally):
            places: list[int] = []
            rows: list[Row] = []
            for number, line in enumerate(some, first):
                if "step:" in line and (row := self._row(line, number)) is not None:
                    places.append(number)
                    rows.append(row)
                elif self._looking:
                    self._configuration(line)
            if rows:
                self._looking = False
                yield places, rows

    def _row(self, line: str, number: int) -> Row | None:
        line = _COLOUR.sub("", line).rstrip()
        marks = list(STEP.finditer(line))  # what stands before the last may be a progress bar's
        if not marks:
            return None
        row: Row = {"step": int(marks[-1][1])}
        for part in line[marks[-1].end() :].split(" - "):
            name, _, text = part.rpartition(":")
            value = _value(text) if name else None
            if value is None or name == "step":
                self.tally.add("left out {n values}: no number", number, part)
            else:
                row[name] = value
        return row

    def _configuration(self, line: str) -> None:
        """A line of the dict that verl prints before the first step, if it is one; lines of others may lie between."""
        line = _RAY.sub("", _COLOUR.sub("", line), count=1).rstrip()
        if not self._printed and not line.startswith("{'actor_rollout_ref'"):
            return
        if line[:1] not in ("{", " "):
            return
        self._printed.append(line)
        if not line.endswith("}") and sum(map(len, self._printed)) < _LONGEST_SETTINGS:
            return
        self._looking = False
        try:
            read: Any = ast.literal_eval("\n".join(self._printed))
            self.settings = dotted(read)
        except (ValueError, SyntaxError, RecursionError, MemoryError, AttributeError):
            self.tally.add("the settings are not known: the configuration that verl printed cannot be read")


def _value(text: str) -> float | None:
    """`0.3`, `nan`, `True`, `np.float64(0.3)`."""
    inner = _NUMPY.fullmatch(text)
    text = inner[1] if inner else text
    return _WORDS[text] if text in _WORDS else number_in(text)
