"""TensorBoard's event files, `events.out.tfevents.*`: one file, or a folder of files that one run wrote.

A record is a length (8 bytes), its checksum, an `Event` (event.proto), and its checksum: masked CRC-32C, as in every
TFRecord. An event's step and the numbers of its summary are read. Written and checked with tensorboard 2.21.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.readers.binary import fields, opened, signed
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.points import Points
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.text import Tally

_MARK = "tfevents"
_FLOAT = struct.Struct("<f")
_HEAD, _TAIL = 12, 4  # bytes before and after an event
_LONGEST = 1 << 16  # a longer event is an image, a histogram or a graph
_MANY = 20_000
_FEW = 8

# wall_time, step, summary { value { tag, simple_value } }: nearly every event of a run
_SCALAR = re.compile(rb"\x09.{8}(?:\x10([\x80-\xff]{0,9}[\x00-\x7f]))?\x2a.\x0a.\x0a(.)(.*)\x15(.{4})", re.DOTALL)
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_DTYPE, _SHAPE, _CONTENT = 1, 2, 4
_TENSOR_VALUES = {5: "<f", 6: "<d"}
_CONTENTS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}  # DataType -> a number of it
_UNREADABLE = (ValueError, struct.error, TypeError, AttributeError)


def _table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ 0x82F63B78, table >> 1).astype(np.uint32)
    return table


_CRC = _table()
_CRC_LIST: list[int] = _CRC.tolist()


def checksum(data: bytes) -> int:
    """The masked CRC-32C of a TFRecord.

    >>> hex(checksum(b"123456789"))
    '0xc78ab0e5'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC_LIST[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def are_sound(records: Sequence[bytes]) -> list[bool]:
    """Whether each record's last four bytes are the checksum of the others. Those of one length are checked together.

    >>> are_sound([b"123456789" + bytes.fromhex("e5b08ac7"), b"12345678-" + bytes.fromhex("e5b08ac7")])
    [True, False]
    """
    result = [False] * len(records)
    of_length: dict[int, list[int]] = {}
    for i, record in enumerate(records):
        of_length.setdefault(len(record), []).append(i)
    for length, members in of_length.items():
        if len(members) < _FEW:
            for i in members:
                result[i] = checksum(records[i][:-_TAIL]) == int.from_bytes(records[i][-_TAIL:], "little")
            continue
        table = np.frombuffer(b"".join([records[i] for i in members]), np.uint8).reshape(-1, length)
        crc = np.full(len(members), 0xFFFFFFFF, np.uint32)
        for column in np.ascontiguousarray(table[:, :-_TAIL].T):
            crc = _CRC[(crc ^ column) & 255] ^ (crc >> 8)
        crc = ~crc
        masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
        written = np.ascontiguousarray(table[:, -_TAIL:]).view("<u4")[:, 0]
        for i, same in zip(members, (masked == written).tolist(), strict=True):
            result[i] = same
    return result


@lru_cache(1000)
def _length(head: bytes) -> int | None:
    """The length of an event from the bytes before it; None if its checksum is wrong."""
    sound = checksum(head[:8]) == int.from_bytes(head[8:], "little")
    return int.from_bytes(head[:8], "little") if sound else None


def _records(path: Path, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """(number, event and its checksum) of every event that can be a number."""
    number = 0
    with opened(path) as file:
        while head := file.read(_HEAD):
            number += 1
            length = _length(head) if len(head) == _HEAD else 0
            if length is None:
                tally.add("the length of a record is damaged: only the part of the file before it was read", number)
                return
            if length > _LONGEST:
                file.seek(length + _TAIL, 1)
                continue
            record = file.read(length + _TAIL)
            if len(head) < _HEAD or len(record) < length + _TAIL:
                tally.add("the file ends within a record: it was cut off, or is still being written", number)
                return
            yield number, record


def _points(records: Sequence[tuple[int, bytes]], tally: Tally) -> Iterator[tuple[int, str, int, float]]:
    """(place, tag, step, number) of some records."""
    match = _SCALAR.fullmatch
    for (place, record), sound in zip(records, are_sound([record for _, record in records]), strict=True):
        if not sound:
            tally.add("skipped {n records} with a bad checksum", place)
            continue
        scalar = match(record, 0, len(record) - _TAIL)
        if scalar is not None:
            step, length, tag, number = scalar.groups()
            if len(tag) == length[0]:
                yield place, _tag(tag), _step(step), _FLOAT.unpack(number)[0]
                continue
        try:
            yield from ((place, tag, step, number) for step, tag, number in _event(record[:-_TAIL]))
        except _UNREADABLE:
            tally.add("skipped {n records} that cannot be read", place)


@lru_cache(10_000)
def _tag(tag: bytes) -> str:
    return tag.decode("utf-8", "replace")


@lru_cache(10)
def _step(varint: bytes | None) -> int:
    """A step from its bytes; protobuf leaves out a number that is 0."""
    return signed(int(next(fields(b"\x08" + varint))[1])) if varint else 0


def _event(event: bytes) -> list[tuple[int, str, float]]:
    """(step, tag, number) of an event's values. What is not a single number is left out."""
    step, values = 0, []
    for number, part in fields(event):
        if number == _STEP and isinstance(part, int):
            step = signed(part)
        elif number == _SUMMARY and isinstance(part, bytes):
            values += [_value(value) for kind, value in fields(part) if kind == _VALUE and isinstance(value, bytes)]
    return [(step, tag, value) for tag, value in values if value is not None]


def _value(message: bytes) -> tuple[str, float | None]:
    tag, result = "", None
    for number, part in fields(message):
        if number == _TAG and isinstance(part, bytes):
            tag = part.decode("utf-8", "replace")
        elif number == _SIMPLE_VALUE and isinstance(part, bytes):
            result = _FLOAT.unpack(part)[0]
        elif number == _TENSOR and isinstance(part, bytes):
            result = _scalar(part)
    return tag, result


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
    points = Points(tally)
    for path in _files(file.path) if file.path.is_dir() else [file.path]:
        batch: list[tuple[int, bytes]] = []
        for record in _records(path, tally):
            batch.append(record)
            if len(batch) == _MANY:
                points.add(_points(batch, tally))
                batch = []
        points.add(_points(batch, tally))
    columns = points.columns()
    name = file.name if file.path.is_dir() else file.path.resolve().parent.name
    return [Raw("tensorboard", host_of(columns.names()), name, columns, {})]


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
