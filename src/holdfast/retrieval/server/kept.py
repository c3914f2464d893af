"""What queries found, kept over restarts: the least recently used go first."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from holdfast.retrieval.locks import locked
from holdfast.retrieval.postings import Ranked

_log = logging.getLogger("holdfast")

MOST_BYTES = 256 * 2**20
"""Of all entries, counting what each takes in memory and in the file: about 1 KB with 10 passages, 45 KB with 1000."""
_OVERHEAD = 500  # bytes in memory that an entry takes besides its text and its numbers

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    found: Ranked
    bytes: int


class KeptQueries:
    """An LRU of (query, k) → rows and scores, and a file that every new entry is appended to.

    At most `size` entries and `MOST_BYTES` bytes. The file begins with the fingerprint of the index; entries of another
    index are not used. A last line that a kill cut off is not read. A file with any other line that cannot be an entry
    of an index of `passages` passages is put aside, all of it: nothing says which of its lines are right. The file is
    written anew when it is opened and when it has twice the lines or bytes it needs. A file that cannot be written, or
    that another server holds, is done without. All of this is logged.
    """

    def __init__(self, size: int, path: Path | None = None, fingerprint: str = "", passages: int = 0) -> None:
        self._size, self._path, self._fingerprint, self._passages = size, path, fingerprint, passages
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._bytes = 0  # of the entries
        self._file: IO[str] | None = None
        self._lock: Any = None
        self._lines = self._written = 0  # of the file
        if path is not None and size:
            try:
                self._open(path)
            except OSError as error:
                self._give_up(error)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Ranked | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.found

    def put(self, key: Key, found: Ranked) -> None:
        if not self._size:
            return
        line = _line(key, found)
        self._remember(key, found, len(line))
        if self._file is not None:
            try:
                self._file.write(line)
                self._lines += 1
                self._written += len(line)
            except OSError as error:
                self._give_up(error)

    def _remember(self, key: Key, found: Ranked, line: int) -> None:
        """`line`: bytes in the file."""
        if key in self._entries:
            self._bytes -= self._entries.pop(key).bytes
        size = sys.getsizeof(key[0]) + found.rows.nbytes + found.scores.nbytes + line + _OVERHEAD
        self._entries[key] = _Entry(found, size)
        self._bytes += size
        while len(self._entries) > self._size or self._bytes > MOST_BYTES:
            self._bytes -= self._entries.popitem(last=False)[1].bytes

    def flush(self) -> None:
        """Hand what was put since to the system."""
        if self._file is None:
            return
        try:
            self._file.flush()
            if self._lines > 2 * self._size or self._written > 2 * MOST_BYTES:
                self._rewrite()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write the entries in the order of their use."""
        if self._file is not None:
            try:
                self._rewrite()
            except OSError as error:
                self._give_up(error)
        for file in (self._file, self._lock):
            if file is not None:
                file.close()
        self._file = self._lock = None

    def _open(self, path: Path) -> None:
        self._lock = open(path.with_name(f".{path.name}.lock"), "w")  # noqa: SIM115 (closed by `close`)
        if not locked(self._lock):
            _log.warning("%s belongs to another server: this one keeps its queries in memory only", path)
            return
        if path.is_file():
            try:
                for entry in _read(path, self._fingerprint, self._passages):
                    self._remember(*entry)
            except ValueError as error:
                self._entries.clear()
                self._bytes = 0
                aside = path.with_suffix(".damaged.jsonl")
                os.replace(path, aside)
                _log.warning("%s is damaged (%s): it is now %s, and the cache starts empty", path, error, aside.name)
        self._rewrite()

    def _rewrite(self) -> None:
        assert self._path is not None
        if self._file is not None:
            self._file.close()
        fresh = self._path.with_name(f".{self._path.name}.new")
        self._file = open(fresh, "w", encoding="ascii")  # noqa: SIM115 (closed by `close`)
        self._lines = self._written = 0
        self._file.write(json.dumps({"index": self._fingerprint}) + "\n")
        for key, entry in self._entries.items():
            line = _line(key, entry.found)
            self._file.write(line)
            self._lines += 1
            self._written += len(line)
        self._file.flush()
        os.replace(fresh, self._path)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s): queries are kept in memory only", self._path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what it still holds cannot be written either
                file.close()


def _line(key: Key, found: Ranked) -> str:
    row = {"query": key[0], "k": key[1], "rows": found.rows.tolist(), "scores": found.scores.tolist()}
    return json.dumps(row) + "\n"


def _read(path: Path, fingerprint: str, passages: int) -> Iterator[tuple[Key, Ranked, int]]:
    """Entries and the bytes of their lines, if they are of this index. Raises `ValueError` for a damaged line."""
    with open(path, "rb") as file:
        head = _object(file.readline(), 1)
        if head.get("index") != fingerprint:
            return
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return  # cut off by a kill
            yield *_entry(_object(line, number), number, passages), len(line)


def _object(line: bytes, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"line {number} is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"line {number} is not an object")
    return value


def _entry(row: dict[str, Any], number: int, passages: int) -> tuple[Key, Ranked]:
    query, k, rows, scores = (row.get(name) for name in ("query", "k", "rows", "scores"))
    if not (
        isinstance(query, str)
        and type(k) is int
        and isinstance(rows, list)
        and isinstance(scores, list)
        and len(rows) == len(scores) <= k
        and all(type(place) is int and 0 <= place < passages for place in rows)
        and all(type(score) is float for score in scores)
    ):
        raise ValueError(f"line {number} is not a query with passages of this index and their scores")
    return (query, k), Ranked(np.array(rows, np.int64), np.array(scores, np.float32))
