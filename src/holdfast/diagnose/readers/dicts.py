"""The console of transformers and trainers made from it: `{'loss': 0.1, 'reward': 0.5, …}` among any other output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from pathlib import Path

from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.console import SEARCHED, STEP
from holdfast.diagnose.readers.names import trainer_of
from holdfast.diagnose.readers.numbering import (
    CORE,
    Numbering,
    is_numeric,
    is_row,
    is_training,
    logging_steps_in,
    step_in,
)
from holdfast.diagnose.readers.reader import Raw, Reader, Row
from holdfast.diagnose.readers.runs import Lines, read_runs
from holdfast.diagnose.readers.text import COLOUR, Tally, lines, parsed, without_process

FLAT = re.compile(r"\{\s*['\"][^{}]*\}")
"""A dict without another in it."""
_BEGUN = re.compile(r"\{\s*['\"]")
_NAMES = re.compile(r"['\"](\w+)['\"]:")
_BAR = re.compile(r"(?:^|\r)([^\r%|]*)%\|[^|\r]*\|\s*(\d{1,15})/(\d{1,15})\s*\[")
_RANK = re.compile(r"(\[?\w*rank\W?\d+\]?:?|Train(ing)?:)?", re.IGNORECASE)
_ANNOUNCED = re.compile(r"(?<![\w/])(global step|rollout|perf|eval|step) (\d{1,9}):\s*$", re.IGNORECASE)
_ANNOUNCEMENT = 80  # characters
_MAX_DICT = 1 << 16  # characters of a dict that is wrapped over lines
_MAX_WRAPPED = 1000  # lines
_TAIL = 1 << 14  # characters before a dict that may hold its progress bar


class Dicts:
    """Reads the lines of a file once. `numbering` and `logging_steps` then have what they show about steps."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.numbering = Numbering()
        self.logging_steps: int | None = None
        self._bars = _Bars()
        self._rollout: int | None = None
        self._before = ""
        self._open: list[str] = []
        self._open_at = 0

    def rows(self, numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
        """The dicts of metrics in numbered lines, without their steps."""
        for number, line in numbered:
            for row in self._in_line(line, number):
                yield number, row
        if self._open:
            self._cut(self._open)

    def _in_line(self, line: str, number: int) -> Iterator[Row]:
        if "\x1b" in line:
            line = COLOUR.sub("", line)
        if self._open:
            line = self._joined(line)
        elif "{" not in line:
            if "%|" in line:
                self._bars.see(line)
            elif "logging_steps" in line and self.logging_steps is None:
                self.logging_steps = logging_steps_in(line)
            elif line.rstrip().endswith(":"):
                self._before = line[-_ANNOUNCEMENT:]
            return
        at, has_bars = 0, "%|" in line
        for match in FLAT.finditer(line):
            value = parsed(match[0])
            announced = self._announced_in(line[max(at, match.start() - _ANNOUNCEMENT) : match.start()])
            if value is not None and (is_row(value) or (announced is not None and is_numeric(value))):
                if has_bars:
                    self._bars.see(line[max(at, match.start() - _TAIL) : match.start()])
                at = match.end()
                yield self._row(value, announced)
        if has_bars:
            self._bars.see(line[at:][-_TAIL:])
        if "logging_steps" in line and self.logging_steps is None:
            self.logging_steps = logging_steps_in(line)
        last = line.rfind("{")
        if last > line.rfind("}") and _BEGUN.match(line, last) and not self._open:
            self._open, self._open_at = [line[last:].rstrip("\r")], number

    def _joined(self, line: str) -> str:
        """The line with the beginning of a dict that a terminal or pprint has wrapped. The line alone if it begins
        another dict, "" if the dict continues."""
        begun, self._open = self._open, []
        if _BEGUN.search(line) and "}" not in line.partition("{")[0]:
            self._cut(begun)
            return line
        begun.append(line.rstrip("\r"))
        if "}" in line:
            return "".join(begun)
        if len(begun) > _MAX_WRAPPED or sum(map(len, begun)) > _MAX_DICT:
            self._cut(begun)
        else:
            self._open = begun
        return ""

    def _cut(self, begun: list[str]) -> None:
        if CORE & set(_NAMES.findall("".join(begun))):
            self.tally.add("skipped {n rows}: cut off", self._open_at, begun[0])

    def _announced_in(self, text: str) -> int | None:
        """The step in the words before a dict, such as `rollout 12:`, which may be on the line before."""
        if not text.strip():
            text, self._before = self._before, ""
        match = _ANNOUNCED.search(text)
        if match is None:
            return None
        word, step = match[1].lower(), int(match[2])
        if word in ("rollout", "perf"):
            self._rollout = step
        # slime counts optimizer steps in lines of `step`, and we count rollout batches
        return self._rollout if word == "step" and self._rollout is not None else step

    def _row(self, row: Row, announced: int | None) -> Row:
        step = step_in(row)
        bar = self._bars.at_row() if is_training(row) else None
        self.numbering.add(row, step if announced is None else announced, bar)
        # Beside the summary at the end, TRL prints means of the steps since the last row, which are not of that row.
        return row if "train_runtime" not in row else {name: row[name] for name in row if name.startswith("train_")}


class _Bars:
    """The progress bars without a description: that of the training, and those of evaluations, which have other totals.
    The first is that of the training. If its count does not change from row to row, another run with another total has
    begun."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = self._newest = 0
        self._last: int | None = None

    def see(self, text: str) -> None:
        """Keeps the counts of the bars in a text."""
        for match in _BAR.finditer(text):
            if _RANK.fullmatch(without_process(match[1].rstrip(" 0123456789")).strip()):
                self._newest = int(match[3])
                self._counts[self._newest] = int(match[2])
                self._total = self._total or self._newest

    def at_row(self) -> int | None:
        """The count of the training's bar at a row of metrics; None without a bar."""
        if self._newest != self._total and self._counts.get(self._total) == self._last:
            self._total = self._newest
        self._last = self._counts.get(self._total)
        return self._last


def _read_lines(lines_for: Callable[[Tally], Lines], name: str, tally: Tally) -> Raw | None:
    dicts = Dicts(tally)
    columns = Columns(tally, null_is_nan=True)
    for place, row in dicts.rows(lines_for(tally)):
        columns.add(place, 0, row)
    if not columns:
        return None
    columns.renumber(dicts.numbering.steps(dicts.logging_steps, tally))
    known = {"logging_steps": dicts.logging_steps} if dicts.logging_steps else {}
    return Raw("console", trainer_of(columns.names()), name, columns, known)


def has_rows(path: Path, start: str) -> bool:
    """Whether the first row of a console log is a dict, and no line of verl's. The summary at the end is no log."""
    tally = Tally(path)
    first = islice(lines(path, tally), SEARCHED)
    before_verl = takewhile(lambda numbered: not STEP.search(numbered[1]), first)
    return any("train_runtime" not in row for _, row in Dicts(tally).rows(before_verl))


DICTS = Reader(
    recognises=has_rows,
    read=lambda file, tally: read_runs(file, tally, _read_lines),
    lacks="has no row of metrics",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
)
