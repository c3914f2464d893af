"""JSON in one piece: an array of rows, an object of lists, an object of several runs, or objects over several lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from holdfast.base.stored import bounded, bounded_json
from holdfast.diagnose.readers.axes import LABELS, MAX_LABEL, axis_of, is_evaluation
from holdfast.diagnose.readers.names import AXES, like_a_reward
from holdfast.diagnose.readers.numbering import is_numeric
from holdfast.diagnose.readers.reader import LogFile, Numbered, Raw, Reader, Row, read_rows
from holdfast.diagnose.readers.text import Tally, whole_text

_BEFORE_LIST = r'\{\s*(?:"[^"]*"\s*:\s*(?:\{\s*|(?:"[^"]*"|[-\w.]+)\s*,\s*))*"[^"]*"\s*:\s*\[\s*'
_IS_COLUMNS = re.compile(_BEFORE_LIST + r"(?:-?[\d.]|null|NaN)")
_BEGINS = re.compile(r'\{[ \t]*\r?\n\s*"[^"\n]*"\s*:')
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_PHASE = "phase"
"""The column that rows of an evaluation get."""
_MAX_RUNS = 1000
"""Runs that are looked for in a value."""
_CALLED = ("name", "run_name", "experiment_name", "exp_name", "experiment", "tag", "label")
"""Where a run says what it is called, before its ids."""

_decode = json.JSONDecoder().raw_decode


def value_of(text: str) -> Any:
    """What a JSON text holds; None if it is damaged."""
    try:
        return bounded_json(text)
    except ValueError:
        return None


def elements(text: str, at: int, tally: Tally) -> Iterator[Any]:
    """The values that follow each other in a text, with or without commas: those of an array that is damaged, or of
    objects over several lines."""
    for number in count(1):
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if at == len(text) or text.startswith("]", at):
            return
        try:
            value, at = _decode(text, at)
            bounded(value)
        except (ValueError, RecursionError):
            tally.add("the file ends early, or is not JSON from here on", number)
            return
        yield value


def numbered_objects(values: Iterable[Any], tally: Tally) -> Iterator[tuple[int, Row]]:
    """(number, value) of those that are objects."""
    tally.unit = "row"
    for number, value in enumerate(values, 1):
        if isinstance(value, dict):
            yield number, value
        else:
            tally.add("skipped {n rows}: not a JSON object", number)


def runs_in(value: Any) -> dict[str, list[Row]]:
    """The runs in a JSON value, by the keys on the way to them: lists of rows, and objects of lists. Lists beside each
    other are parts of one run if they have other metrics, or if one is of an evaluation.

    >>> runs_in({"a": {"reward": [0.5, 1.0]}, "b": {"rows": [{"step": 3, "loss": 2.0}, {"step": 4, "loss": 1.0}]}})["b"]
    [{'step': 3, 'loss': 2.0}, {'step': 4, 'loss': 1.0}]
    """
    runs: dict[str, list[Row]] = {}
    for path, rows in islice(_lists_in(value, ()), _MAX_RUNS):
        *outer, last = path or ("",)
        if is_evaluation(last):
            rows = [{**row, _PHASE: "eval"} for row in rows]
        name = "/".join(outer)
        if name not in runs or _metrics(runs[name]).isdisjoint(_metrics(rows)):
            runs.setdefault(name, []).extend(rows)
        else:
            runs["/".join(path)] = rows
    return runs


def _lists_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    if isinstance(value, list):
        runs = [item for item in value if isinstance(item, dict) and any(map(_is_rows, item.values()))]
        rows = [row for row in value if _is_row(row)]
        for number, run in enumerate(runs, 1):
            yield from _lists_in(run, (*path, _label_of(run, number)))
        if len(rows) > 1 and not runs:
            yield path, rows
    elif isinstance(value, dict) and len(value) > 1 and all(map(str.isdecimal, value)):
        if all(map(_is_row, value.values())):
            yield path, [{"step": int(key), **part} for key, part in value.items()]
    elif isinstance(value, dict):
        lists = {key: part for key, part in value.items() if _is_numbers(part)}
        if lists:
            yield (*path, ""), _as_rows(lists)
        for key, part in value.items():
            if key not in lists:
                yield from _lists_in(part, (*path, str(key)))


def _is_rows(value: Any) -> bool:
    """Whether a value of an object is a log: several objects of numbers."""
    return isinstance(value, list) and sum(map(_is_row, value)) > 1


def _is_row(value: Any) -> bool:
    """Whether a value is an object of numbers, or of a step and an object of numbers."""
    if not isinstance(value, dict):
        return False
    inner = axis_of(value) is not None and any(isinstance(part, dict) and is_numeric(part) for part in value.values())
    return is_numeric(value) or inner


def _label_of(run: Row, number: int) -> str:
    """What a run calls itself, by the likeliest of its short texts; its number if it has none."""
    texts = {name: text for name, text in run.items() if isinstance(text, str) and 0 < len(text) <= MAX_LABEL}
    named = next((texts[name] for name in (*_CALLED, *LABELS) if name in texts), None)
    return named or next(iter(texts.values()), str(number))


def _metrics(rows: list[Row]) -> set[str]:
    """The names of numbers in rows, those of an evaluation told apart."""
    names = {(name, row.get(_PHASE)) for row in rows for name, value in row.items() if isinstance(value, float)}
    return {f"{phase}/{name}" for name, phase in names if name not in AXES}


def _is_numbers(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(item is None or isinstance(item, int | float) for item in value)
    )


def _as_rows(columns: dict[str, list[Any]]) -> list[Row]:
    """The rows of an object of lists, numbered from 1 if no list has their steps."""
    has_steps = axis_of(columns) is not None
    rows = []
    for number in range(max(map(len, columns.values()))):
        row = {name: values[number] for name, values in columns.items() if number < len(values)}
        rows.append(row if has_steps else {"step": number + 1, **row})
    return rows


def read_whole(file: LogFile, tally: Tally) -> list[Raw]:
    """The runs in a file that is read as a whole."""
    text = whole_text(file.path, tally)
    value = value_of(text)
    runs = runs_in(value)
    if isinstance(value, list) and not any(runs):
        return _raws(file, "", numbered_objects(value, tally), tally)
    if isinstance(value, list | dict):
        raws = [raw for name, rows in runs.items() for raw in _raws(file, name, enumerate(rows, 1), tally)]
        rewarded = [raw for raw in raws if like_a_reward(raw.columns.names())]
        if rewarded and len(rewarded) < len(raws):
            tally.add("left out {n lists} without a reward", count=len(raws) - len(rewarded))
            raws = rewarded
        if len(raws) > 1:
            tally.unit = "row"
            tally.add(f"the file has {len(raws)} runs, distinguished by their keys")
        return raws or _raws(file, "", [(1, value)] if isinstance(value, dict) else [], tally)
    start = text.index("[") + 1 if text.lstrip().startswith("[") else 0
    return _raws(file, "", numbered_objects(elements(text, start, tally), tally), tally)


def _raws(file: LogFile, name: str, rows: Numbered, tally: Tally) -> list[Raw]:
    return read_rows(rows, tally, f"{file.name}: {name}" if name else file.name)


ARRAY = Reader(
    recognises=lambda path, start: re.match(r"\[\s*[{\]]", start) is not None,
    read=read_whole,
    lacks="has no row of metrics with a step",
    suffixes=(".json",),
)
COLUMNS = Reader(
    recognises=lambda path, start: _IS_COLUMNS.match(start) is not None,
    read=read_whole,
    lacks="has no list of numbers by step",
    suffixes=(".json",),
)
OBJECTS = Reader(
    recognises=lambda path, start: _BEGINS.match(start) is not None,
    read=read_whole,
    lacks="has no row of metrics with a step",
    suffixes=(".json", ".jsonl"),
    certain=lambda path: any(len(raw.columns.steps()) > 1 for raw in read_whole(LogFile(ARRAY, path, ""), Tally(path))),
)
"""Any other JSON that begins with an object over several lines."""
