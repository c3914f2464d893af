"""JSON Lines, and JSON arrays of rows: `metrics.jsonl`, verl's file log, W&B's history, `trainer_state.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.jsonl import objects
from holdfast.base.stored import bounded, bounded_json, read_toml
from holdfast.diagnose.readers.axes import axis_of
from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.names import AXES
from holdfast.diagnose.readers.numbering import Numbering
from holdfast.diagnose.readers.reader import (
    PROMPTS,
    STATE_FRAME,
    Frame,
    LogFile,
    Raw,
    Reader,
    Row,
    dotted,
    frame_of,
    of_completions,
)
from holdfast.diagnose.readers.text import Tally, lines, whole_text

Numbered = Iterable[tuple[int, Row]]
"""Rows with their places in the file."""

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_BEFORE_LIST = r'\{\s*(?:"[^"]*"\s*:\s*(?:\{\s*|(?:"[^"]*"|[-\w.]+)\s*,\s*))*"[^"]*"\s*:\s*\[\s*'
_IS_COLUMNS = re.compile(_BEFORE_LIST + r"(?:-?[\d.]|null|NaN)")
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_FIRST = 500  # rows from which the frame is recognised

_decode = json.JSONDecoder().raw_decode


def read_rows(rows: Numbered, tally: Tally, frame: Frame | None = None) -> list[tuple[Frame, Columns]]:
    """The run in these rows: their frame, and all of them as columns. No run if no row of the first ones has a step."""
    rows = iter(rows)
    first = list(islice(rows, _FIRST))
    if frame is None and of_completions([row for _, row in first]):
        rows = grouped(chain(first, rows), tally)
        first = list(islice(rows, _FIRST))
    frame = frame or frame_of([row for _, row in first])
    if frame is None or not first:
        return []
    columns = Columns(tally, null_is_nan=frame.null_is_nan)
    numbering = Numbering()
    for place, row in chain(first, rows):
        step, metrics = frame.split(row)
        if frame.numbered:
            numbering.add(metrics, step)
            step = 0
        columns.add(place, step, metrics)
    if frame.numbered:
        columns.renumber(numbering.steps(None, tally))
    return [(frame, columns)]


def line_rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    """The objects of a JSONL file, by line. Other lines are counted in the tally."""
    bad: list[int] = []
    last = 0
    for last, row in objects(lines(path, tally), on_bad=lambda line, _: bad.append(line)):
        yield last, row
    if bad and bad[-1] > last:
        tally.add("skipped the last line: not a complete JSON object", bad.pop())
    if bad:
        tally.add("skipped {n lines}: not a JSON object", bad[0], count=len(bad))


def array_rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    """The objects of a file that is one JSON array, numbered from 1."""
    text = whole_text(path, tally)
    array = _value(text)
    return _objects(array if isinstance(array, list) else _elements(text, text.index("[") + 1, tally), tally)


def column_rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    """The rows of an object of lists, `{"reward": [0.1, 0.2, …], …}`, numbered from 1 if no list has their steps."""
    tally.unit = "row"
    columns = _columns_in(_value(whole_text(path, tally)))
    axis = axis_of(columns)
    for number in range(max(map(len, columns.values()), default=0)):
        row = {name: values[number] for name, values in columns.items() if number < len(values)}
        yield number + 1, row if axis else {"step": number + 1, **row}


def _columns_in(value: Any) -> dict[str, list[Any]]:
    """The lists of numbers in an object, or in an object in it."""
    if not isinstance(value, dict):
        return {}
    found = {
        name: part
        for name, part in value.items()
        if isinstance(part, list) and part and all(item is None or isinstance(item, int | float) for item in part)
    }
    inner = (_columns_in(part) for part in value.values() if isinstance(part, dict))
    return found if len(found) > 1 else next((columns for columns in inner if columns), {})


def grouped(rows: Iterable[tuple[int, Row]], tally: Tally) -> Iterator[tuple[int, Row]]:
    """Rows of single completions as rows of the means of each group: of one step, or of one prompt in a row."""
    of: Any = None
    group: list[Row] = []
    place, groups, count = 0, 0, 0
    for number, row in chain(rows, [(0, {})]):
        key = next((row[name] for name in (*AXES, *PROMPTS) if name in row), None)
        if group and key != of:
            groups += 1
            yield place, _mean_of(group, groups)
            group = []
        of, place = key, place if group else number
        if row:
            group.append(row)
            count += 1
    if count > groups:
        tally.add(f"{count:,} rows are of single completions: read as the means of {groups:,} groups")


def _mean_of(group: Sequence[Row], number: int) -> Row:
    """The mean of each number that rows have; the step is theirs, or the number of the group."""
    flat = [_unnested_numbers(row) for row in group]
    names = dict.fromkeys(name for row in flat for name in row)
    values = {name: [row[name] for row in flat if name in row] for name in names}
    step = next((group[0][name] for name in AXES if name in group[0]), number)
    return {**{name: _mean(part) for name, part in values.items() if name not in AXES}, "step": step}


def _mean(values: Sequence[float]) -> float:
    try:
        return sum(values) / len(values)
    except OverflowError:  # whole numbers may have any number of digits
        return float("nan")


def _unnested_numbers(row: Row) -> Row:
    """The numbers of a row and of the objects in it, by `object/name`."""
    parts = [(name, part) for name, part in row.items() if isinstance(part, dict)]
    every = {**row, **{f"{name}/{key}": value for name, part in parts for key, value in part.items()}}
    return {name: value for name, value in every.items() if type(value) in (int, float)}


def _value(text: str) -> Any:
    """What a JSON text holds; None if it is damaged."""
    try:
        return bounded_json(text)
    except ValueError:
        return None


def _elements(text: str, at: int, tally: Tally) -> Iterator[Any]:
    """The elements of an array in a damaged text, after its `[`."""
    for number in count(1):
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            return
        try:
            value, at = _decode(text, at)
            bounded(value)
        except (ValueError, RecursionError):
            tally.add("the file ends early, or is not JSON from here on", number)
            return
        yield value


def _objects(elements: Iterable[Any], tally: Tally) -> Iterator[tuple[int, Row]]:
    """(number, element) of those that are objects."""
    tally.unit = "row"
    for number, element in enumerate(elements, 1):
        if isinstance(element, dict):
            yield number, element
        else:
            tally.add("skipped {n rows}: not a JSON object", number)


# ---- the readers

STATE_FILE = "trainer_state.json"

# Arguments that trainer_state.json keeps.
_STATE_SETTINGS = {
    "train_batch_size": "per_device_train_batch_size",
    **{name: name for name in ("max_steps", "num_train_epochs", "logging_steps", "save_steps", "eval_steps")},
}


def _read_with(rows_of: Callable[[Path, Tally], Numbered]) -> Callable[[LogFile, Tally], list[Raw]]:
    """A reader of files whose rows `rows_of` gives."""

    def read(file: LogFile, tally: Tally) -> list[Raw]:
        return [
            Raw(frame.format, frame.host, file.name, columns, _settings(file.settings, tally))
            for frame, columns in read_rows(rows_of(file.path, tally), tally)
        ]

    return read


def _read_state(file: LogFile, tally: Tally) -> list[Raw]:
    text = whole_text(file.path, tally)
    begin = _HISTORY.search(text)
    if begin is None:
        return []
    state = _value(text)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        state = {"log_history": _elements(text, begin.end(), tally)}
    read = read_rows(_objects(state["log_history"], tally), tally, STATE_FRAME)
    known = {ours: state[theirs] for theirs, ours in _STATE_SETTINGS.items() if state.get(theirs) is not None}
    return [Raw(frame.format, frame.host, file.name, columns, known) for frame, columns in read]


def _settings(path: Path | None, tally: Tally) -> dict[str, object]:
    if path is None:
        return {}
    try:
        return dotted(read_toml(path, DataError, "restore it"))
    except DataError:
        tally.add(f"the settings are unknown: {path.name} cannot be read")
        return {}


def _has_objects(path: Path, start: str) -> bool:
    first, *others = start.split("\n", 20)
    whole = [line for line in (first, *others[:-1]) if line.strip()]
    found = len(list(objects(enumerate(whole), on_bad=lambda line, bad: None)))
    if 2 * found < len(whole) and ("{'" in start or " - " in start):
        return False  # a console log that printed an object
    return found > 0 or (not others and start.startswith('{"'))


STATE = Reader(
    recognises=lambda path, start: start.startswith("{") and (path.name == STATE_FILE or '"log_history"' in start),
    read=_read_state,
    lacks="has no log_history with a row of metrics",
    suffixes=(".json",),
)
ARRAY = Reader(
    recognises=lambda path, start: re.match(r"\[\s*[{\]]", start) is not None,
    read=_read_with(array_rows),
    lacks="has no row of metrics with a step",
    suffixes=(".json",),
)
COLUMNS = Reader(
    recognises=lambda path, start: _IS_COLUMNS.match(start) is not None,
    read=_read_with(column_rows),
    lacks="has no list of numbers by step",
    suffixes=(".json",),
)
LINES = Reader(
    recognises=_has_objects,
    read=_read_with(line_rows),
    lacks="has no row of metrics with a step",
    suffixes=(".jsonl", ".jsonl.gz"),
)
