"""JSON Lines: `metrics.jsonl`, verl's file log, W&B's history; and `trainer_state.json`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from holdfast.base.errors import DataError
from holdfast.base.jsonl import objects
from holdfast.base.stored import read_toml
from holdfast.diagnose.readers.inside import unwrapped_lines
from holdfast.diagnose.readers.objects import elements, numbered_objects, read_whole, value_of
from holdfast.diagnose.readers.reader import STATE_FRAME, LogFile, Raw, Reader, Row, dotted, read_rows
from holdfast.diagnose.readers.text import Tally, lines, whole_text

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')


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


# ---- the readers

STATE_FILE = "trainer_state.json"

# Arguments that trainer_state.json keeps.
_STATE_SETTINGS = {
    "train_batch_size": "per_device_train_batch_size",
    **{name: name for name in ("max_steps", "num_train_epochs", "logging_steps", "save_steps", "eval_steps")},
}


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    settings = _settings(file.settings, tally)
    read = read_rows(line_rows(file.path, tally), tally, file.name, settings=settings)
    if read or _is_one(file.path):
        return read or read_whole(file, tally)
    return unwrapped_lines(line_rows(file.path, Tally(file.path)), file)


def _is_one(path: Path) -> bool:
    """Whether a file is one object, which may hold several runs."""
    return sum(1 for _, line in islice(lines(path, Tally(path)), 2) if line.strip()) == 1


def _read_state(file: LogFile, tally: Tally) -> list[Raw]:
    text = whole_text(file.path, tally)
    begin = _HISTORY.search(text)
    if begin is None:
        return []
    state = value_of(text)
    if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
        state = {"log_history": elements(text, begin.end(), tally)}
    known = {ours: state[theirs] for theirs, ours in _STATE_SETTINGS.items() if state.get(theirs) is not None}
    rows = numbered_objects(state["log_history"], tally)
    return read_rows(rows, tally, file.name, STATE_FRAME, settings=known)


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
LINES = Reader(
    recognises=_has_objects,
    read=_read,
    lacks="has no row of metrics with a step",
    suffixes=(".jsonl", ".jsonl.gz"),
)
