"""Writes rows in the trackers' own formats, for benchmarks/reading.py."""

from __future__ import annotations

import json
import sqlite3
import struct
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from holdfast.diagnose.readers.event_file import checksum

Row = dict[str, float]


def varint(value: int) -> bytes:
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    return bytes([*result, value])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def parts_of(record: bytes, size: int) -> bytes:
    """A record in LevelDB's log format, after `size` bytes of the file: in parts, where a block ends within it."""
    result = b""
    begun = False
    while record or not begun:
        left = 32768 - (size + len(result)) % 32768
        if left < 7:
            result += bytes(left)
            continue
        part, record = record[: left - 7], record[left - 7 :]
        kind = (3 if begun else 2) if record else (4 if begun else 1)
        result += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        begun = True
    return result


def write_wandb(path: Path, rows: Iterable[tuple[int, Row]]) -> None:
    """A history record a row, and the summary record that W&B writes beside it."""
    with path.open("wb") as file:
        size = file.write(b":W&B\xe1\xbe\x00")
        for step, row in rows:
            items = {**row, "_step": step, "_timestamp": 1.7e9 + step, "_runtime": float(step)}
            row_items = b"".join(
                field(1, field(2, name.encode()) + field(16, repr(value).encode())) for name, value in items.items()
            )
            for record in (field(3, row_items), field(2, row_items)):
                size += file.write(parts_of(record, size))


head_checksum = lru_cache(checksum)


def write_events(path: Path, rows: Iterable[tuple[int, Row]]) -> None:
    """An event a number."""
    with path.open("wb") as file:
        for step, row in rows:
            for name, value in row.items():
                one = field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", value))
                body = b"\x09" + struct.pack("<d", 1.7e9 + step) + b"\x10" + varint(step) + field(5, one)
                head = struct.pack("<Q", len(body))
                file.write(head + struct.pack("<I", head_checksum(head)) + body + struct.pack("<I", checksum(body)))


def write_trackio(path: Path, rows: Iterable[tuple[int, Row]]) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        columns = "id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT"
        database.execute(f"CREATE TABLE metrics ({columns})")
        database.execute("CREATE INDEX by_run ON metrics(run_id, step)")
        database.executemany(
            "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES ('a', '', 'run', ?, ?)",
            ((step, json.dumps(row)) for step, row in rows),
        )


def write_mlflow(path: Path, rows: Iterable[tuple[int, Row]]) -> None:
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, lifecycle_stage TEXT, start_time INTEGER)")
        database.execute("CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT)")
        columns = "key TEXT, value FLOAT, timestamp INTEGER, run_uuid TEXT, step INTEGER, is_nan BOOLEAN"
        database.execute(f"CREATE TABLE metrics ({columns})")
        database.execute("INSERT INTO runs VALUES ('a', 'run', 'active', 0)")
        database.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, 'a', ?, 0)",
            ((name, value, 1_700_000_000_000 + step, step) for step, row in rows for name, value in row.items()),
        )
        database.execute("CREATE INDEX by_run ON metrics(run_uuid)")
