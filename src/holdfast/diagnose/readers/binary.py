"""Files as bytes: records in blocks as LevelDB writes them, and the fields of a protobuf message."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.opening import MAX_LINE, opened
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader
from holdfast.diagnose.readers.text import Tally

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
