"""W&B's own file of a run, `run-<id>.wandb`: what `wandb` writes during a run, offline or online.

Records are protobuf messages of type `Record` (wandb_internal.proto) in LevelDB's log format; read here are `history`,
`config` and `run`. Written and checked with wandb 0.31.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.binary import UNREADABLE, fields, reader_of_records, records, signed
from holdfast.diagnose.readers.reader import LogFile, Raw, Row, dotted
from holdfast.diagnose.readers.rows import read_rows
from holdfast.diagnose.readers.text import Tally

_HISTORY, _CONFIG, _RUN = 2, 5, 17
_RUN_ID, _RUN_CONFIG, _RUN_NAME = 1, 4, 8
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
_TYPED = range(3, 9)


class _File:
    """Reads a file once. `settings` and `name` are known after that."""

    def __init__(self, path: Path, tally: Tally) -> None:
        self.path, self.tally = path, tally
        self.settings: dict[str, object] = {}
        self.name = ""

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Rows of the history, with W&B's `_step`."""
        for place, record in records(self.path, self.tally):
            try:
                for kind, value in fields(record):
                    if kind == _HISTORY and isinstance(value, bytes):
                        yield place, _row(value)
                    elif kind == _CONFIG and isinstance(value, bytes):
                        self.settings |= _settings(value)
                    elif kind == _RUN and isinstance(value, bytes):
                        self._run(value)
            except UNREADABLE:
                self.tally.add("skipped {n records} that cannot be read", place)

    def _run(self, message: bytes) -> None:
        run = dict(fields(message))
        name = run.get(_RUN_NAME) or run.get(_RUN_ID)
        self.name = name.decode("utf-8", "replace") if isinstance(name, bytes) else self.name
        config = run.get(_RUN_CONFIG)
        if isinstance(config, bytes):
            self.settings |= _settings(config)


def _row(message: bytes) -> Row:
    """A row by names, those of nested values joined by dots. What has a `_type` is a table, an image or a histogram."""
    row: Row = {}
    step: int | None = None
    for number, item in fields(message):
        if number == 1 and isinstance(item, bytes):
            name, value = _item(item, _number)
            row[name] = value
        elif number == 2 and isinstance(item, bytes):
            step = next((signed(value) for _, value in fields(item) if isinstance(value, int)), 0)
    _leave_out_media(row)
    if step is not None:
        row.setdefault("_step", step)
    return {name: value for name, value in row.items() if not (isinstance(value, dict) and "_type" in value)}


def _leave_out_media(row: Row) -> None:
    """Take out all below a name with a `_type`. These names follow each other when sorted."""
    media = {name.removesuffix("_type") for name in row if name.endswith("._type")}
    inside = ""
    for name in sorted(media.union(row)) if media else ():
        if not inside or not name.startswith(inside):
            inside = name if name in media else ""
        if inside:
            row.pop(name, None)


def _number(text: bytes) -> Any:
    """The value of a JSON text, most of which are numbers."""
    try:
        return float(text)
    except ValueError:
        return bounded_json(text)


def _item(message: bytes, read: Callable[[bytes], Any]) -> tuple[str, Any]:
    names: list[str] = []
    value: Any = None
    for number, part in fields(message):
        if number == _VALUE_JSON and isinstance(part, bytes):
            value = read(part)
        elif number in (_KEY, _NESTED_KEY) and isinstance(part, bytes):
            names.append(part.decode("utf-8", "replace"))
        elif number in _TYPED:
            value = _typed(number, part)
    return ".".join(names), value


def _typed(number: int, part: int | bytes) -> Any:
    """A value that is not written as JSON."""
    if isinstance(part, int):
        return {4: bool(part), 5: (part >> 1) ^ -(part & 1)}.get(number)
    return struct.unpack("<d", part)[0] if number == 6 else bounded_json(part) if number == 8 else part.decode()


def _settings(message: bytes) -> dict[str, object]:
    items = dict(
        _item(part, bounded_json) for number, part in fields(message) if number == 1 and isinstance(part, bytes)
    )
    return dotted({name: value for name, value in items.items() if not name.startswith("_")})


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    run = _File(file.path, tally)
    read = read_rows(run.rows(), tally)
    return [
        Raw("wandb", frame.host, frame.named(run.name or file.name), columns, run.settings) for frame, columns in read
    ]


WANDB = reader_of_records(b":W&B", ".wandb", _read, "has no row of a history")
