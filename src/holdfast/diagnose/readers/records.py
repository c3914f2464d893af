"""What W&B and SwanLab leave of a run: `run-<id>.wandb`, which `wandb` writes during a run, offline or online, and
`run-<id>.swanlab`. Both are records in LevelDB's blocks. Written and checked with wandb 0.31 and SwanLab 0.10.

Records are protobuf messages of type `Record`. Read here are W&B's `history`, `config` and `run`
(wandb_internal.proto), and SwanLab's `start` and `scalar` (swanlab/record/v1), whose settings are in
`files/config.yaml` in the same folder.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.base.opening import MAX_LINE, opened
from holdfast.base.stored import bounded_json
from holdfast.diagnose.readers.axes import axis_of
from holdfast.diagnose.readers.columns import Point, columns_of, number_in
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, dotted, history_frame, read_rows, stepless_frame
from holdfast.diagnose.readers.settings import read_yaml
from holdfast.diagnose.readers.text import COLOUR, Tally, lines

_BLOCK = 1 << 15
_HEADER = struct.Struct("<IHB")  # checksum, length, type
_WHOLE, _BEGIN, _MIDDLE, _END = 1, 2, 3, 4


def records(path: Path, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """(number of its block, record) of a file in LevelDB's log format, after 7 bytes that name the writer.

    A block has 32,768 bytes. A checksum is the CRC-32 of a record's type and bytes. The rest of a block with a damaged
    record is passed over and noted, and so is a record that the end of the file cuts.
    """
    tally.unit = "block"
    record: bytearray | None = None  # of a record in parts, the parts so far; the first may be empty
    number, skip = 0, len(b":W&B") + 3
    with opened(path) as file:
        while block := file.read(_BLOCK):
            number += 1
            at, end = skip, len(block)
            skip = 0
            while at + _HEADER.size <= end:
                checksum, length, kind = _HEADER.unpack_from(block, at)
                if kind == length == 0:  # the rest was never written
                    break
                part = block[at + _HEADER.size : at + _HEADER.size + length]
                last = end < _BLOCK and at + _HEADER.size + length > end
                if last or zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
                    cut = "the file ends within a record: it was cut off, or is still being written"
                    tally.add(cut if last else "{n blocks} with a damaged record: the rest of it was skipped", number)
                    record = None
                    break
                at += _HEADER.size + length
                if kind == _WHOLE:
                    yield number, part
                elif kind == _BEGIN:
                    record = bytearray(part)
                elif kind in (_MIDDLE, _END) and record is not None:
                    record += part
                    if kind == _END:
                        yield number, bytes(record)
                        record = None
                    elif len(record) > MAX_LINE:
                        tally.add(f"skipped {{n records}} of more than {MAX_LINE:,} bytes", number)
                        record = None
    if record is not None:
        tally.add("the file ends within a record: it was cut off, or is still being written", number)


def reader_of_records(
    mark: bytes, suffix: str, read: Callable[[LogFile, Tally], list[Raw]], lacks: str
) -> Reader[bytes]:
    """A reader of files of `records` that begin with a mark. A run's folder has one."""

    def of_run(folder: Path) -> Path | None:
        files = list(folder.glob(f"*{suffix}"))
        return files[0] if len(files) == 1 and files[0].is_file() else None

    return Reader(
        recognises=lambda path, start: start.startswith(mark) or path.name.endswith(suffix),
        read=read,
        lacks=lacks,
        suffixes=(suffix,),
        of_run=of_run,
    )


UNREADABLE = (ValueError, struct.error, TypeError, AttributeError)
"""What a damaged message raises when it is read."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a protobuf message: a varint as a number from 0 on, anything else as its bytes.

    Raises `ValueError` for bytes that are not a message.

    >>> list(fields(bytes([8, 150, 1, 18, 2, 104, 105])))
    [(1, 150), (2, b'hi')]
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field is cut")
        yield tag >> 3, message[at : at + size]
        at += size


def text_of(value: int | bytes | None) -> str:
    """A field as text; "" for one that is absent or a number."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def signed(varint: int) -> int:
    """An int64 from its varint.

    >>> signed(7), signed((1 << 64) - 2)
    (7, -2)
    """
    varint &= (1 << 64) - 1
    return varint - (1 << 64) if varint >> 63 else varint


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends)."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        if byte < 128:
            return value | byte << shift, at
        value |= (byte & 127) << shift
        shift += 7
    raise ValueError("a number is cut")


# ---- W&B's `run-<id>.wandb`

_HISTORY, _CONFIG, _RUN_RECORD = 2, 5, 17
_RUN_ID, _RUN_CONFIG, _RUN_NAME = 1, 4, 8
_ITEM_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16
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
                        yield place, _history_row(value)
                    elif kind == _CONFIG and isinstance(value, bytes):
                        self.settings |= _wandb_settings(value)
                    elif kind == _RUN_RECORD and isinstance(value, bytes):
                        self._run(value)
            except UNREADABLE:
                self.tally.add("skipped {n records} that cannot be read", place)

    def _run(self, message: bytes) -> None:
        run = dict(fields(message))
        self.name = text_of(run.get(_RUN_NAME) or run.get(_RUN_ID)) or self.name
        config = run.get(_RUN_CONFIG)
        if isinstance(config, bytes):
            self.settings |= _wandb_settings(config)


def _history_row(message: bytes) -> Row:
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
        elif number in (_ITEM_KEY, _NESTED_KEY) and isinstance(part, bytes):
            names.append(part.decode("utf-8", "replace"))
        elif number in _TYPED:
            value = _typed(number, part)
    return ".".join(names), value


def _typed(number: int, part: int | bytes) -> Any:
    """A value that is not written as JSON."""
    if isinstance(part, int):
        return {4: bool(part), 5: (part >> 1) ^ -(part & 1)}.get(number)
    return struct.unpack("<d", part)[0] if number == 6 else bounded_json(part) if number == 8 else part.decode()


def _wandb_settings(message: bytes) -> dict[str, object]:
    items = dict(
        _item(part, bounded_json) for number, part in fields(message) if number == 1 and isinstance(part, bytes)
    )
    return dotted({name: value for name, value in items.items() if not name.startswith("_")})


def _read_wandb(file: LogFile, tally: Tally) -> list[Raw]:
    run = _File(file.path, tally)
    read = read_rows(run.rows(), tally, "", form="wandb", settings=run.settings)
    return [replace(raw, name=f"{run.name or file.name}{raw.name}") for raw in read]  # its label, of several


WANDB = reader_of_records(b":W&B", ".wandb", _read_wandb, "has no row of a history")


# ---- SwanLab's `run-<id>.swanlab`

_START, _SCALAR = 10, 13
_START_NAME = 4
_SCALAR_KEY, _SCALAR_STEP, _SCALAR_VALUE = 1, 2, 5
_VALUE_OF_SETTING = ".value"


def _read_swanlab(file: LogFile, tally: Tally) -> list[Raw]:
    points: list[Point] = []
    name = ""
    for place, record in records(file.path, tally):
        try:
            for kind, part in fields(record):
                if kind == _SCALAR and isinstance(part, bytes):
                    points.append((place, *_scalar(part)))
                elif kind == _START and isinstance(part, bytes):
                    name = text_of(dict(fields(part)).get(_START_NAME)) or name
        except UNREADABLE:
            tally.add("skipped {n records} that cannot be read", place)
    columns = columns_of(points, tally)
    written = read_yaml(file.path.parent / "files" / "config.yaml")
    settings = {
        key.removesuffix(_VALUE_OF_SETTING): value for key, value in written.items() if key.endswith(_VALUE_OF_SETTING)
    }
    return [Raw("swanlab", host_of(columns.names()), name or file.name, columns, settings)]


def _scalar(message: bytes) -> tuple[str, int, float]:
    """(name, step, number). Protobuf leaves out a number that is 0."""
    parts = dict(fields(message))
    step, value = parts.get(_SCALAR_STEP, 0), parts.get(_SCALAR_VALUE, b"")
    if not isinstance(step, int) or not isinstance(value, bytes):
        raise ValueError("not a scalar")
    number = dict(fields(value)).get(1, bytes(8))
    return text_of(parts.get(_SCALAR_KEY)), signed(step), struct.unpack("<d", number)[0]  # type: ignore[arg-type]


SWANLAB = reader_of_records(b":SWL", ".swanlab", _read_swanlab, "has no number that SwanLab logged")


# ---- what W&B prints at the end of a run: the last values; its sparklines contain no numbers


_LINE = re.compile(r"(?:.*?wandb:)?\s+(\S+)\s+(\S+)\s*")
_SPARKLINES, _VALUES = "Run history:", "Run summary:"


def _read_printed(file: LogFile, tally: Tally) -> list[Raw]:
    row: Row = {}
    place, inside = 0, False
    for number, line in lines(file.path, tally):
        line = COLOUR.sub("", line)
        if _VALUES in line:
            place, inside, row = number, True, {}
        elif inside and (match := _LINE.fullmatch(line)) and (value := number_in(match[2])) is not None:
            row[match[1]] = value
    if not row:
        return []
    tally.add("the log has only W&B's summary: the last value of every metric")
    axis = axis_of(row)
    frame = stepless_frame(row) if axis is None else history_frame(row, axis)
    return read_rows([(place, row)], tally, file.name, frame, form="console")


def _has_summary(path: Path, start: str) -> bool:
    return any(_SPARKLINES in line or _VALUES in line for _, line in lines(path, Tally(path)))


SUMMARY = Reader(
    recognises=_has_summary,
    read=_read_printed,
    lacks="has only W&B's sparklines, which contain no numbers: export the run's history with "
    "`run.history().to_csv(…)`, or give its folder wandb/run-…",
    suffixes=(),
)
