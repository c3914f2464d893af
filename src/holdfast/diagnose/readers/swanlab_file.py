"""SwanLab's own file of a run, `run-<id>.swanlab`. Written and checked with SwanLab 0.10.

Records are protobuf messages of type `Record` (swanlab/record/v1) in LevelDB's log format; read here are `start` and
`scalar`. `files/config.yaml` in the same folder has the settings.
"""

from __future__ import annotations

import struct

from holdfast.diagnose.readers.binary import UNREADABLE, fields, reader_of_records, records, signed
from holdfast.diagnose.readers.columns import Point, columns_of
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw
from holdfast.diagnose.readers.settings import read_yaml
from holdfast.diagnose.readers.text import Tally

_START, _SCALAR = 10, 13
_NAME = 4
_KEY, _STEP, _VALUE = 1, 2, 5
_VALUE_OF_SETTING = ".value"


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    points: list[Point] = []
    name = ""
    for place, record in records(file.path, tally):
        try:
            for kind, part in fields(record):
                if kind == _SCALAR and isinstance(part, bytes):
                    points.append((place, *_scalar(part)))
                elif kind == _START and isinstance(part, bytes):
                    name = _text(dict(fields(part)).get(_NAME)) or name
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
    step, value = parts.get(_STEP, 0), parts.get(_VALUE, b"")
    if not isinstance(step, int) or not isinstance(value, bytes):
        raise ValueError("not a scalar")
    number = dict(fields(value)).get(1, bytes(8))
    return _text(parts.get(_KEY)), signed(step), struct.unpack("<d", number)[0]  # type: ignore[arg-type]


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


SWANLAB = reader_of_records(b":SWL", ".swanlab", _read, "has no number that SwanLab logged")
