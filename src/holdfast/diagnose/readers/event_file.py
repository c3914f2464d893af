"""TensorBoard's event files, `events.out.tfevents.*`: one file, or a folder of files that one run wrote.

A record is a length (8 bytes), its checksum, an `Event` (event.proto), and its checksum: masked CRC-32C, as in every
TFRecord. An event's step and the numbers of its summary are read. Written and checked with tensorboard 2.21.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

from holdfast.base.opening import opened
from holdfast.diagnose.readers.columns import Point, columns_of
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.records import UNREADABLE, fields, signed, text_of
from holdfast.diagnose.readers.text import Tally

_MARK = "tfevents"
_FLOAT = struct.Struct("<f")
_HEAD, _TAIL = 12, 4  # bytes before and after an event
_FIRST = 200  # numbers of a file that show how it begins
_MAX_EVENT = 1 << 16  # a longer event is an image, a histogram or a graph
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _SHAPE, _CONTENT = 1, 2, 4
_TENSOR_VALUES = {5: "<f", 6: "<d"}
_CONTENTS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}  # DataType -> a number of it


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [entry >> 1 ^ 0x82F63B78 * (entry & 1) for entry in table]
    return table


_CRC = _table()


def checksum(data: bytes) -> int:
    """The masked CRC-32C of a TFRecord.

    >>> hex(checksum(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_sound(data: bytes, written: bytes) -> bool:
    return checksum(data) == int.from_bytes(written, "little")


@lru_cache
def _length(head: bytes) -> int | None:
    """The length of an event from the bytes before it; None if its checksum is wrong."""
    return int.from_bytes(head[:8], "little") if _is_sound(head[:8], head[8:]) else None


def _records(path: Path, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """(number, event) of every sound event that can be a number."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        for number in count(1):
            head = file.read(_HEAD)
            if not head:
                return
            length = _length(head) if len(head) == _HEAD else 0
            if length is None:
                tally.add("the length of a record is damaged: only the part of the file before it was read", number)
                return
            if len(head) < _HEAD or length + _TAIL > size - file.tell():
                tally.add("the file ends within a record: it was cut off, or is still being written", number)
                return
            if length > _MAX_EVENT:
                file.seek(length + _TAIL, 1)
                continue
            record = file.read(length + _TAIL)
            if _is_sound(record[:-_TAIL], record[-_TAIL:]):
                yield number, record[:-_TAIL]
            else:
                tally.add("skipped {n records} with a bad checksum", number)


def _points(paths: Iterable[Path], tally: Tally) -> Iterator[Point]:
    """The numbers of all events. What is not a single number is left out."""
    for path in paths:
        for place, event in _records(path, tally):
            try:
                step, values = _event(event)
            except UNREADABLE:
                tally.add("skipped {n records} that cannot be read", place)
            else:
                yield from ((place, tag, step, value) for tag, value in values if value is not None)


def _event(event: bytes) -> tuple[int, list[tuple[str, float | None]]]:
    """An event's step and its values by tag. Protobuf leaves out a step that is 0."""
    step, values = 0, []
    for number, part in fields(event):
        if number == _STEP and isinstance(part, int):
            step = signed(part)
        elif number == _SUMMARY and isinstance(part, bytes):
            values += [_value(value) for kind, value in fields(part) if kind == _VALUE and isinstance(value, bytes)]
    return step, values


def _value(message: bytes) -> tuple[str, float | None]:
    parts = dict(fields(message))
    simple, tensor = parts.get(_SIMPLE_VALUE), parts.get(_TENSOR)
    number = _FLOAT.unpack(simple)[0] if isinstance(simple, bytes) else None
    return text_of(parts.get(_TAG)), _scalar(tensor) if isinstance(tensor, bytes) else number


def _scalar(tensor: bytes) -> float | None:
    """The number of a tensor without dimensions; None for any other."""
    parts = dict(fields(tensor))
    if parts.get(_SHAPE):
        return None
    content, kind = parts.get(_CONTENT), parts.get(_DTYPE)
    form = _CONTENTS.get(kind) if isinstance(kind, int) else None
    if form and isinstance(content, bytes) and content:
        return float(struct.unpack(form, content)[0])
    for number, form in _TENSOR_VALUES.items():
        if isinstance(value := parts.get(number), bytes):
            return float(struct.unpack(form, value)[0])
    return None


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    """The events of a file; those of a folder in the order of their names, which begin with the time."""
    tally.unit = "record"
    is_folder = file.path.is_dir()
    folder = file.path.resolve().parent
    alone = len([*islice(folder.glob(f"*{_MARK}*"), 2)]) < 2  # then the folder has the run's name
    name = folder.name if alone and not is_folder else file.name
    attempts = _attempts(_files(file.path)) if is_folder else [[file.path]]
    read = [columns_of(_points(paths, tally), tally) for paths in attempts]
    return [Raw("tensorboard", host_of(columns.names()), name, columns, {}) for columns in read]


def _attempts(paths: Iterable[Path]) -> list[list[Path]]:
    """The files of a folder by run: one that begins with the series of the run before it, where that began, is of
    another attempt."""
    attempts: list[list[Path]] = []
    begun, known = 0, set[str]()
    for path in paths:
        first = list(islice(_points([path], Tally(path)), _FIRST))
        tags = {tag for _, tag, _, _ in first}
        if not attempts or (tags & known and first[0][2] <= begun):
            attempts.append([])
            known = set()
        if first and not known:
            begun = first[0][2]
        attempts[-1].append(path)
        known |= tags
    return attempts


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _MARK in path.name and path.is_file())


def _begins(start: bytes) -> bool:
    return len(start) > _HEAD and start[_HEAD] == 9 and _length(start[:_HEAD]) is not None


TENSORBOARD: Reader[bytes] = Reader(
    recognises=lambda path, start: _begins(start) or (_MARK in path.name and b"\0" in start),
    read=_read,
    lacks="has no event with a number",
    suffixes=(),
    of_run=lambda folder: folder if _files(folder) else None,
)
