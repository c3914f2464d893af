"""The server's cache of query results, kept over restarts."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from holdfast.base.files import locked
from holdfast.retrieval.types import Ranked

_log = logging.getLogger("holdfast")

MOST_BYTES = 256 * 2**20
"""The most bytes of all entries, in memory and in the file together: about 1 KB per entry of 10 passages."""
_LARGEST = float(np.finfo(np.float32).max)
_OVERHEAD = 500  # bytes in memory that an entry takes besides its text and its numbers

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    result: Ranked
    bytes: int


class QueryCache:
    """An LRU cache (query, k) → rows and scores, and a file to which every new entry is appended.

    It has at most `size` entries and `MOST_BYTES` bytes. The file begins with the fingerprint of the index; entries of
    another index are not used. A last line that a kill cut off is skipped. A file with any other line that cannot be an
    entry of an index of `passages` passages is renamed, and nothing of it is used: nothing says which lines are right.
    The file is rewritten on opening, and when it has twice the lines or bytes it needs. If the file cannot be written,
    or another server holds it, the cache is in memory only. All of this is logged.
    """

    def __init__(self, size: int, path: Path | None = None, fingerprint: str = "", passages: int = 0) -> None:
        self._size, self._path, self._fingerprint, self._passages = size, path, fingerprint, passages
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._bytes = 0  # of the entries
        self._file: IO[str] | None = None
        self._lock = ExitStack()
        self._lines = self._written = 0  # of the file
        if path is not None and size:
            try:
                self._open(path)
            except OSError as error:
                self._give_up(error)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Ranked | None:
        """The cached result, which becomes the last one used; None when there is none."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry.result

    def put(self, key: Key, result: Ranked) -> None:
        """Cache a result, and append it to the file."""
        if not self._size:
            return
        line = _line(key, result)
        self._remember(key, result, len(line))
        if self._file is not None:
            try:
                self._file.write(line)
                self._lines += 1
                self._written += len(line)
            except OSError as error:
                self._give_up(error)

    def _remember(self, key: Key, result: Ranked, line_bytes: int) -> None:
        if key in self._entries:
            self._bytes -= self._entries.pop(key).bytes
        size = sys.getsizeof(key[0]) + result.rows.nbytes + result.scores.nbytes + line_bytes + _OVERHEAD
        self._entries[key] = _Entry(result, size)
        self._bytes += size
        while len(self._entries) > self._size or self._bytes > MOST_BYTES:
            self._bytes -= self._entries.popitem(last=False)[1].bytes

    def flush(self) -> None:
        """Pass new entries to the operating system."""
        if self._file is None:
            return
        try:
            self._file.flush()
            if self._lines > 2 * self._size or self._written > 2 * MOST_BYTES:
                self._rewrite()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Rewrite the file in order of last use, and release it."""
        if self._file is not None:
            try:
                self._rewrite()
            except OSError as error:
                self._give_up(error)
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.close()

    def _open(self, path: Path) -> None:
        lock = path.with_name(f".{path.name}.lock")
        lock.touch()
        try:
            self._lock.enter_context(locked(lock))
        except BlockingIOError:
            _log.warning("%s belongs to another server: the cache of this one is in memory only", path)
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
                _log.warning(
                    "%s is damaged (%s): it was renamed to %s, and the cache starts empty", path, error, aside.name
                )
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
            line = _line(key, entry.result)
            self._file.write(line)
            self._lines += 1
            self._written += len(line)
        self._file.flush()
        os.replace(fresh, self._path)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s): the cache is in memory only", self._path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # its buffer cannot be written either
                file.close()


def _line(key: Key, result: Ranked) -> str:
    row = {"query": key[0], "k": key[1], "rows": result.rows.tolist(), "scores": result.scores.tolist()}
    return json.dumps(row) + "\n"


def _read(path: Path, fingerprint: str, passages: int) -> Iterator[tuple[Key, Ranked, int]]:
    """Entries of this index, and the bytes of their lines. Raises `ValueError` for a damaged line."""
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


def _entry(entry: dict[str, Any], number: int, passages: int) -> tuple[Key, Ranked]:
    query, k, rows, scores = (entry.get(name) for name in ("query", "k", "rows", "scores"))
    if not (
        isinstance(query, str)
        and type(k) is int
        and isinstance(rows, list)
        and isinstance(scores, list)
        and len(rows) == len(scores) <= k
        and all(type(row) is int and 0 <= row < passages for row in rows)
        and all(type(score) is float and abs(score) <= _LARGEST for score in scores)  # JSON has no NaN, no infinity
    ):
        raise ValueError(f"line {number} is not a query with rows of this index and their scores")
    return (query, k), Ranked(np.array(rows, np.int64), np.array(scores, np.float32))
