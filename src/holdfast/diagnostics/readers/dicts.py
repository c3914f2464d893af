"""The console of transformers and trainers made from it: `{'loss': 0.1, 'reward': 0.5, …}` among any other output."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from holdfast.diagnostics.readers.columns import Columns
from holdfast.diagnostics.readers.console import COLOUR, STEP
from holdfast.diagnostics.readers.jsonl import Batch
from holdfast.diagnostics.readers.names import host_of
from holdfast.diagnostics.readers.numbering import CORE, Numbering, is_numeric, is_row, logging_steps_in, step_in
from holdfast.diagnostics.readers.reader import LogFile, Raw, Reader, Row
from holdfast.diagnostics.readers.text import Tally, lines

FLAT = re.compile(r"\{\s*['\"][^{}]*\}")
"""A dict without another in it."""
_BEGUN = re.compile(r"\{\s*['\"]")
_NAMES = re.compile(r"['\"](\w+)['\"]:")
_BAR = re.compile(r"([^\r%|]*?)\s*\d{1,3}%\|[^|\r]*\|\s*(\d+)/(\d+)\s*\[")
_RANK = re.compile(r"\s*(\[?\w*rank\W?\d+\]?:?|\([^()]*pid=[^()]*\)|Train(ing)?:)?\s*", re.IGNORECASE)
_WORDS = re.compile(r"(?<=: )(-?)(nan|inf|None|True|False)(?=[,}\s])")
_JSON = {"nan": "NaN", "inf": "Infinity", "None": "null", "True": "true", "False": "false"}
_CALLS = re.compile(r"\b(?:[\w.]+\.\w+|tensor|array)\(\[?([-+.\w]+)\]?[^()]*\)")
_ANNOUNCED = re.compile(r"(?<![\w/])(global step|rollout|perf|eval|step) (\d{1,9}):\s*$", re.IGNORECASE)
_ANNOUNCEMENT = 80  # characters
_LONGEST = 1 << 16  # characters of a dict that is wrapped over lines
_MOST_WRAPPED = 1000  # lines
_TAIL = 1 << 14  # characters before a dict that may hold its progress bar
_BLOCKS = 100  # blocks of a file that are searched for a first dict

_decode = json.JSONDecoder().raw_decode


class Dicts:
    """Reads the lines of a file once. `numbering` and `logging_steps` then have what they show about steps."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.numbering = Numbering()
        self.logging_steps: int | None = None
        self._bar: int | None = None
        self._total: int | None = None
        self._rollout: int | None = None
        self._before = ""
        self._open: list[str] = []

    def rows(self, batches: Iterable[tuple[int, list[str]]]) -> Iterator[Batch]:
        """The dicts of metrics among some lines and their numbers, without their steps."""
        number = 0
        for first, some in batches:
            places: list[int] = []
            rows: list[Row] = []
            for number, line in enumerate(some, first):
                for row in self._in_line(line, number):
                    places.append(number)
                    rows.append(row)
            if rows:
                yield places, rows
        if self._open:
            self._cut(self._open, number)

    def _in_line(self, line: str, number: int) -> Iterator[Row]:
        if "\x1b" in line:
            line = COLOUR.sub("", line)
        if self._open:
            line = self._joined(line, number)
        elif "{" not in line:
            if "%|" in line:
                self._see_bar(line)
            elif "logging_steps" in line and self.logging_steps is None:
                self.logging_steps = logging_steps_in(line)
            elif line.rstrip().endswith(":"):
                self._before = line[-_ANNOUNCEMENT:]
            return
        at = 0
        for match in FLAT.finditer(line):
            value = parsed(match[0])
            announced = self._announced_in(line[at : match.start()][-_ANNOUNCEMENT:])
            if value is not None and (is_row(value) or (announced is not None and is_numeric(value))):
                if "%|" in line:
                    self._see_bar(line[max(at, match.start() - _TAIL) : match.start()])
                at = match.end()
                yield self._row(value, announced)
        if "%|" in line:
            self._see_bar(line[at:][-_TAIL:])
        if "logging_steps" in line and self.logging_steps is None:
            self.logging_steps = logging_steps_in(line)
        last = line.rfind("{")
        if last > line.rfind("}") and _BEGUN.match(line, last) and not self._open:
            self._open = [line[last:].rstrip("\r")]

    def _joined(self, line: str, number: int) -> str:
        """The line with the beginning of a dict that a terminal or pprint has wrapped. The line alone if it begins
        another dict, "" if the dict goes on."""
        begun, self._open = self._open, []
        if _BEGUN.search(line) and "}" not in line.partition("{")[0]:
            self._cut(begun, number - 1)
            return line
        begun.append(line.rstrip("\r"))
        if "}" in line:
            return "".join(begun)
        if len(begun) > _MOST_WRAPPED or sum(map(len, begun)) > _LONGEST:
            self._cut(begun, number)
        else:
            self._open = begun
        return ""

    def _cut(self, begun: list[str], number: int) -> None:
        if CORE & set(_NAMES.findall("".join(begun))):
            self.tally.add("skipped {n rows}: cut off", number, begun[0])

    def _announced_in(self, text: str) -> int | None:
        """The step in the words before a dict, such as `rollout 12:`, which may stand on the line before."""
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
        self.numbering.add(row, step if announced is None else announced, self._bar)
        if "train_runtime" in row:
            self._total = self._bar = None  # another run may follow
        return row

    def _see_bar(self, text: str) -> None:
        """Keeps the newest count of the training's bar: the first bar without a description. Others, such as an
        evaluation's, have another total."""
        for match in _BAR.finditer(text):
            if not _RANK.fullmatch(match[1]):
                continue
            count, total = int(match[2]), int(match[3])
            if self._total is None:
                self._total = total
            if total == self._total:
                self._bar = count


def parsed(text: str) -> Row | None:
    """A dict as Python or JSON writes it, `nan` and numpy's numbers included; None for anything else.

    >>> parsed("{'loss': nan, 'reward': '0.5', 'kl': np.float64(0.1)}")
    {'loss': nan, 'reward': '0.5', 'kl': 0.1}
    """
    try:
        value = _decode(text.replace("'", '"'))[0]
    except (ValueError, RecursionError):
        value = _carefully(text)
    return value if isinstance(value, dict) and all(type(name) is str for name in value) else None


def _carefully(text: str) -> Any:
    text = _CALLS.sub(r"\1", text)
    with suppress(ValueError, RecursionError):
        return _decode(_WORDS.sub(lambda m: m[1] + _JSON[m[2]], text.replace("'", '"')))[0]
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the texts of a dict
        return ast.literal_eval(_WORDS.sub(lambda m: _literal(m[1], m[2]), text))
    return None


def _literal(sign: str, word: str) -> str:
    return {"nan": "'nan'", "inf": f"{sign}1e999"}.get(word, word)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    dicts = Dicts(tally)
    columns = Columns(tally, null_is_nan=True)
    for places, rows in dicts.rows(lines(file.path, tally)):
        columns.add(places, [0] * len(rows), rows)
    if not columns:
        return []
    columns.renumber(dicts.numbering.steps(dicts.logging_steps, tally))
    host = host_of(columns.names())
    known = {"logging_steps": dicts.logging_steps} if dicts.logging_steps else {}
    return [Raw("console", "trl" if host == "unknown" else host, file.name, columns, known)]


def has_rows(path: Path, start: str = "") -> bool:
    """Whether the first row of a console log is a dict, and no line of verl's."""
    tally = Tally(path)
    batches = islice(lines(path, tally), _BLOCKS)
    before_verl = takewhile(lambda batch: not any("step:" in line and STEP.search(line) for line in batch[1]), batches)
    return next(Dicts(tally).rows(before_verl), None) is not None


DICTS = Reader(
    recognises=has_rows,
    read=_read,
    lacks="has no row of metrics",
    suffixes=(".log", ".log.gz", ".out", ".txt"),
    certain=has_rows,
)
