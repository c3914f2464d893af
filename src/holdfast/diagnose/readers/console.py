"""verl's console log: lines such as `step:12 - actor/entropy:0.3 - …` among other output, often with Ray's prefix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast.diagnose.readers.columns import number_in
from holdfast.diagnose.readers.jsonl import read_rows
from holdfast.diagnose.readers.reader import Frame, LogFile, Raw, Reader, Row, dotted
from holdfast.diagnose.readers.text import Tally, lines

STEP = re.compile(r"(?<![\w./@-])step:(\d{1,15}) - (?=[^\s:]+:)")
FRAME = Frame("verl", "verl", lambda row: (row.pop("step"), row), null_is_nan=True)

COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = {"True": 1.0, "False": 0.0}
_LONGEST_SETTINGS = 1 << 20  # characters
SEARCHED = 100_000
"""Lines of a file that are searched for a first row."""


class Console:
    """Reads a file once. `settings` then has the configuration that verl printed."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally
        self.settings: dict[str, object] = {}
        self._printed: list[str] = []
        self._characters = 0  # of `_printed`
        self._looking = True

    def rows(self) -> Iterator[tuple[int, Row]]:
        """`{"step": …, name: number}` by line."""
        for number, line in lines(self.path, self.tally):
            if "step:" in line and (row := self._row(line, number)) is not None:
                self._looking = False
                yield number, row
            elif self._looking:
                self._configuration(line)

    def _row(self, line: str, number: int) -> Row | None:
        line = COLOUR.sub("", line)
        mark = _last_mark(line)
        if mark is None:
            return None
        row: Row = {"step": int(mark[1])}
        for part in line[mark.end() :].rstrip().split(" - "):
            name, _, text = part.rpartition(":")
            value = _value(text)
            if value is None or not name or name == "step":
                self.tally.add("left out {n values}: not a number", number, part)
            else:
                row[name] = value
        return row

    def _configuration(self, line: str) -> None:
        """Collects the dict that verl prints before the first step. Other lines may come between."""
        line = without_process(COLOUR.sub("", line)).rstrip()
        if not self._printed and not line.startswith("{'actor_rollout_ref'"):
            return
        if line[:1] not in ("{", " "):
            return
        self._printed.append(line)
        self._characters += len(line)
        if not line.endswith("}") and self._characters < _LONGEST_SETTINGS:
            return
        self._looking = False
        try:
            read: Any = ast.literal_eval("\n".join(self._printed))
            self.settings = dotted(read)
        except (ValueError, SyntaxError, RecursionError, MemoryError, AttributeError):
            self.tally.add("the settings are unknown: the configuration that verl printed cannot be read")


def without_process(line: str) -> str:
    """A line without the process that Ray prints before it.

    >>> without_process("(TaskRunner pid=123, ip=10.0.0.1) {'a': 1}"), without_process("  (see below) b")
    ("{'a': 1}", '  (see below) b')
    """
    process, closed, rest = line.lstrip().partition(")")
    is_process = process.startswith("(") and "pid=" in process and "(" not in process[1:]
    return rest.removeprefix(" ") if closed and is_process else line


def _last_mark(line: str) -> re.Match[str] | None:
    """The last `step:12 - ` of a line: an earlier one may belong to a progress bar."""
    mark, at = None, len(line)
    while mark is None and (at := line.rfind("step:", 0, at)) >= 0:
        mark = STEP.match(line, at)
    return mark


def _value(text: str) -> float | None:
    """A number, `True`, or `np.float32(0.3)`, also without the last bracket."""
    if text.startswith("np."):
        text = text.rpartition("(")[2]
    text = text.removesuffix(")")
    return _WORDS[text] if text in _WORDS else number_in(text)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    console = Console(file.path, tally)
    read = read_rows(console.rows(), tally, FRAME)
    return [Raw("verl", "verl", file.name, columns, console.settings) for _, columns in read]


def has_step(path: Path) -> bool:
    """Whether a file has a line of verl's among its first lines."""
    return any(STEP.search(line) for _, line in islice(lines(path, Tally(path)), SEARCHED))


CONSOLE = Reader(
    recognises=lambda path, start: True,
    read=_read,
    lacks="has neither rows with a step nor lines like `step:1 - name:0.5 - …` or `step 1 loss 0.3 reward 0.5`",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
    certain=has_step,
)
