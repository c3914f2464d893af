"""JSON Lines, and JSON arrays of rows: `metrics.jsonl`, verl's file log, W&B's history, `trainer_state.json`."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.numbering import Numbering
from holdfast.diagnose.readers.reader import Frame, LogFile, Raw, Reader, Row, dotted, frame_of, state_frame
from holdfast.diagnose.readers.text import LONGEST, Tally, blocks, lines

Batch = tuple[list[int], list[Row]]
"""Places of some rows in the file, and the rows."""

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_MANY = 500
_MOST_WITHOUT_OBJECT = 100_000
"""Elements of an array that are read without finding an object."""

_decode = json.JSONDecoder().raw_decode


def read_rows(batches: Iterable[Batch], tally: Tally, frame: Frame | None = None) -> tuple[Frame, Columns] | None:
    """All rows as columns, and their frame; None if no row of the first batch has a step."""
    columns: Columns | None = None
    numbering = Numbering()
    for places, rows in batches:
        frame = frame or frame_of(rows)
        if frame is None:
            return None
        if columns is None:
            columns = Columns(tally, null_is_nan=frame.null_is_nan)
        pairs = list(map(frame.split, rows))
        steps = [step for step, _ in pairs]
        if frame.numbered:
            for step, row in pairs:
                numbering.add(row, step)
            steps = [0] * len(pairs)
        columns.add(places, steps, [metrics for _, metrics in pairs])
    if frame is not None and columns is not None and frame.numbered:
        columns.renumber(numbering.steps(None, tally))
    return (frame, columns) if frame is not None and columns is not None else None


def line_rows(path: Path, tally: Tally) -> Iterator[Batch]:
    """The objects of a JSONL file, by line. Other lines are counted in the tally."""
    bad: list[int] = []
    last = 0
    for first, some in lines(path, tally):
        places: list[int] = []
        rows: list[Row] = []
        whole = _all_objects(some)
        if whole is not None:
            last = first + len(some) - 1
            yield list(range(first, first + len(some))), whole
            continue
        for number, line in enumerate(some, first):
            if not line:
                continue
            last = number
            try:
                line = line.strip()
                row, end = _decode(line)
                if end != len(line):
                    row = None
            except (ValueError, RecursionError):
                row = None
            if type(row) is dict:
                places.append(number)
                rows.append(row)
            elif line:
                bad.append(number)
        if rows:
            yield places, rows
        if len(bad) > 1:
            tally.add("skipped {n lines}: not a JSON object", bad[0], count=len(bad) - 1)
            del bad[:-1]
    if bad:
        cut = bad[0] == last
        tally.add(
            "skipped the last line: not a complete JSON object" if cut else "skipped {n lines}: not a JSON object",
            bad[0],
        )


def _all_objects(some: list[str]) -> list[Row] | None:
    """The objects of lines that are each one, decoded at once, which is twice as fast; None for any other lines."""
    if not all(line.startswith("{") and line.rstrip().endswith("}") for line in some):
        return None
    with suppress(ValueError, RecursionError):
        rows = json.loads(f"[{','.join(some)}]")
        if len(rows) == len(some) and all(type(row) is dict for row in rows):
            return list(rows)
    return None


def array_rows(path: Path, tally: Tally) -> Iterator[Batch]:
    """The objects of a file that is one JSON array, numbered from 1."""
    tally.unit = "row"
    text = blocks(path, tally)
    for block in text:
        if (at := block.find("[")) >= 0:
            yield from _batched(_elements(chain([block[at + 1 :]], text), tally, []))
            return


def read_state(path: Path, tally: Tally) -> tuple[Frame, Columns, dict[str, Any]] | None:
    """`trainer_state.json`: its history as columns, and the rest of it. None without a history."""
    tally.unit = "row"
    text, before, match = blocks(path, tally), "", None
    while match is None and len(before) <= LONGEST and (block := next(text, "")):
        before += block
        match = _HISTORY.search(before)
    if match is None:
        return None
    after: list[str] = []
    history = _elements(chain([before[match.end() :]], text), tally, after)
    read = read_rows(_batched(history), tally, state_frame())
    try:
        rest = json.loads(before[: match.end()] + "]" + "".join(after))
    except (ValueError, RecursionError):
        rest = {}
    frame, columns = read or (state_frame(), Columns(tally, null_is_nan=True))
    return frame, columns, rest if isinstance(rest, dict) else {}


def _elements(more: Iterator[str], tally: Tally, after: list[str]) -> Iterator[tuple[int, Row]]:
    """(number, object) of an array after its `[`. The text after its `]` is added to `after`."""
    text, at, number, objects = "", 0, 0, 0
    while objects or number < _MOST_WITHOUT_OBJECT:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            after.append(text[at + 1 :])
            after += _at_most(more, LONGEST)
            return
        value, end = None, len(text)
        if at < end:
            with suppress(ValueError, RecursionError):  # not JSON, or only the beginning of it
                value, end = _decode(text, at)
        if end == len(text):  # even a number may continue in the next block
            block = "".join(_at_least(more, end - at)) if end - at <= LONGEST else ""
            if block:
                text, at = text[at:] + block, 0
                continue
            tally.add("the file ends early, or is not JSON from here on", number + 1)
            if isinstance(value, dict):
                yield number + 1, value
            return
        at = end
        number += 1
        if isinstance(value, dict):
            objects += 1
            yield number, value
        else:
            tally.add("skipped {n rows}: not a JSON object", number)


def _at_least(more: Iterator[str], fewest: int) -> Iterator[str]:
    """Blocks of more than `fewest` characters in all, so that a long row is not parsed again for every block."""
    for block in more:
        yield block
        fewest -= len(block)
        if fewest < 0:
            return


def _at_most(more: Iterator[str], longest: int) -> Iterator[str]:
    for block in more:
        longest -= len(block)
        if longest < 0:
            return
        yield block


def _batched(rows: Iterable[tuple[int, Row]]) -> Iterator[Batch]:
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


# ---- the readers

STATE_FILE = "trainer_state.json"

# Arguments that trainer_state.json keeps.
_STATE_SETTINGS = {
    "train_batch_size": "per_device_train_batch_size",
    **{name: name for name in ("max_steps", "num_train_epochs", "logging_steps", "save_steps", "eval_steps")},
}


def _read_with(rows_of: Callable[[Path, Tally], Iterator[Batch]]) -> Callable[[LogFile, Tally], list[Raw]]:
    """A reader of files whose rows `rows_of` gives."""

    def read(file: LogFile, tally: Tally) -> list[Raw]:
        framed = read_rows(rows_of(file.path, tally), tally)
        if framed is None:
            return []
        frame, columns = framed
        return [Raw(frame.format, frame.host, file.name, columns, _settings(file.settings, tally))]

    return read


def _read_state(file: LogFile, tally: Tally) -> list[Raw]:
    state = read_state(file.path, tally)
    if state is None:
        return []
    frame, columns, rest = state
    known = {ours: rest[theirs] for theirs, ours in _STATE_SETTINGS.items() if rest.get(theirs) is not None}
    return [Raw(frame.format, frame.host, file.name, columns, known)]


def _settings(path: Path | None, tally: Tally) -> dict[str, object]:
    if path is None:
        return {}
    try:
        return dotted(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        tally.add(f"the settings are unknown: {path.name} cannot be read")
        return {}


def _has_objects(path: Path, start: str) -> bool:
    first, *others = start.split("\n", 20)
    whole = [line for line in (first, *others[:-1]) if line.strip()]
    objects = sum(map(_is_object, whole))
    if 2 * objects < len(whole) and ("{'" in start or " - " in start):
        return False  # a console log that printed an object
    return objects > 0 or (not others and start.startswith('{"'))


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


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
LINES = Reader(
    recognises=_has_objects,
    read=_read_with(line_rows),
    lacks="has no row of metrics with a step",
    suffixes=(".jsonl", ".jsonl.gz"),
)
