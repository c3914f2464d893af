"""JSON Lines, and one JSON array of rows: `metrics.jsonl`, verl's file log, W&B's history, `trainer_state.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.diagnostics.readers.columns import Columns
from holdfast.diagnostics.readers.frames import Frame, Row, frame_of, state_frame
from holdfast.diagnostics.readers.tally import Tally
from holdfast.diagnostics.readers.text import LONGEST, blocks, lines

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_MANY = 1000
Places = tuple[list[int], list[Row]]


def read_rows(batches: Iterable[Places], tally: Tally, frame: Frame | None = None) -> tuple[Frame, Columns] | None:
    """All rows as columns, and how they were framed; None when the first rows are no log."""
    columns: Columns | None = None
    for places, rows in batches:
        if frame is None:
            frame = frame_of(rows)
            if frame is None:
                return None
        if columns is None:
            columns = Columns(tally, null_is_nan=frame.null_is_nan)
        split = frame.split
        steps, metrics = [], []
        for row in rows:
            step, values = split(row)
            steps.append(step)
            metrics.append(values)
        columns.add(places, steps, metrics)
    return (frame, columns) if frame is not None and columns is not None else None


def line_rows(path: Path, tally: Tally) -> Iterator[Places]:
    """(numbers of lines, their objects), many at a time; a line that is no JSON object is noted."""
    loads, bad, total = json.loads, 0, 0
    for first, some in lines(path, tally):
        places: list[int] = []
        rows: list[Row] = []
        total = first + len(some) - 1
        for number, line in enumerate(some, first):
            try:
                row = loads(line)
            except (ValueError, RecursionError):
                if line and not line.isspace():
                    bad = _bad(tally, number, line, bad)
                continue
            if type(row) is dict:
                places.append(number)
                rows.append(row)
            else:
                bad = _bad(tally, number, line, bad)
        if rows:
            yield places, rows
    if bad:
        _note_bad(tally, bad, total)


def array_rows(path: Path, tally: Tally) -> Iterator[Places]:
    """The objects of a file that is one array, and the number of each from 1."""
    tally.unit = "row"
    text = blocks(path, tally)
    start = ""
    for block in text:
        start += block.lstrip("\ufeff")
        if "[" in start:
            break
    _, _, rest = start.partition("[")
    yield from _batched(_elements(rest, text, tally, []))


def read_state(path: Path, tally: Tally) -> tuple[Frame, Columns, dict[str, Any]] | None:
    """`trainer_state.json`: its history as columns, and everything else in it. None when there is no history."""
    tally.unit = "row"
    text, before = blocks(path, tally), ""
    found = None
    for block in text:
        before += block
        found = _HISTORY.search(before)
        if found or len(before) > LONGEST:
            break
    if found is None:
        return None
    after: list[str] = []
    read = read_rows(_batched(_elements(before[found.end() :], text, tally, after)), tally, state_frame())
    try:
        rest = json.loads(before[: found.end()] + "]" + "".join(after))
    except (ValueError, RecursionError):
        rest = {}
    frame, columns = read or (state_frame(), Columns(tally, null_is_nan=True))
    rest.pop("log_history", None)
    return frame, columns, rest


def _elements(text: str, more: Iterator[str], tally: Tally, after: list[str]) -> Iterator[tuple[int, Row]]:
    """(number, object) of an array whose `[` has been read; what follows its `]` goes to `after`."""
    decode = json.JSONDecoder().raw_decode
    at, number = 0, 0
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if at < len(text) and text[at] == "]":
            after.append(text[at + 1 :])
            size = len(after[0])
            for block in more:
                size += len(block)
                if size > LONGEST:
                    break
                after.append(block)
            return
        value: object = None
        cut = at >= len(text)
        if not cut:
            try:
                value, end = decode(text, at)
                # a number at the end of the text may go on in the next block
                cut = end == len(text) and not isinstance(value, dict | list)
            except (ValueError, RecursionError):
                cut = True
        if cut:
            block = next(more, "") if len(text) - at <= LONGEST else ""
            if not block:
                tally.add(f"the file breaks off, or holds no JSON, after row {number}")
                return
            text, at = text[at:] + block, 0
            continue
        at = end
        number += 1
        if isinstance(value, dict):
            yield number, value
        else:
            tally.add("skipped {n} rows that are no JSON objects", number, str(value))


def _batched(rows: Iterable[tuple[int, Row]]) -> Iterator[Places]:
    places: list[int] = []
    batch: list[Row] = []
    for place, row in rows:
        places.append(place)
        batch.append(row)
        if len(batch) == _MANY:
            yield places, batch
            places, batch = [], []
    if batch:
        yield places, batch


def _bad(tally: Tally, number: int, line: str, last: int) -> int:
    """Notes the bad line before this one; the last of the file gets a sentence of its own."""
    if last:
        tally.add("skipped {n} lines that are no JSON objects", last)
    return number


def _note_bad(tally: Tally, last: int, total: int) -> None:
    if last == total:
        tally.add("the last line is cut off and was skipped", last)
    else:
        tally.add("skipped {n} lines that are no JSON objects", last)
