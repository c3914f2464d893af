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
from typing import IO

import numpy as np

from holdfast.base.files import locked
from holdfast.retrieval.types import Ranked

_log = logging.getLogger("holdfast")

MOST_BYTES = 256 * 2**20
"""The most bytes of all entries, in memory and in the file together: about 1 KB per entry of 10 passages."""
_OVERHEAD = 500  # bytes in memory that an entry takes besides its text and its numbers

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    result: Ranked
    bytes: int


class QueryCache:
    """An LRU cache (query, k) → rows and scores, and a file to which every new entry is appended.

    It has at most `size` entries and `MOST_BYTES` bytes. The file begins with the fingerprint of the index; entries of
    another index are not used. A last line that a kill cut off is skipped. A file with another line that cannot be read
    is not used. The file is rewritten on opening, and when it has twice the lines or bytes it needs. If the file cannot
    be written, or another server holds it, the cache is in memory only. All of this is logged.
    """

    def __init__(self, size: int, path: Path | None = None, fingerprint: str = "") -> None:
        self._size, self._path, self._fingerprint = size, path, fingerprint
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
                for entry in list(_read(path, self._fingerprint)):
                    self._remember(*entry)
            except (ValueError, KeyError, TypeError) as error:
                _log.warning("%s is damaged (%s): the cache starts empty", path, error)
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


def _read(path: Path, fingerprint: str) -> Iterator[tuple[Key, Ranked, int]]:
    """Entries of this index, and the bytes of their lines."""
    with open(path, "rb") as file:
        if json.loads(file.readline())["index"] != fingerprint:
            return
        for line in file:
            if not line.endswith(b"\n"):
                return  # cut off by a kill
            entry = json.loads(line)
            result = Ranked(np.array(entry["rows"], np.int64), np.array(entry["scores"], np.float32))
            yield (entry["query"], entry["k"]), result, len(line)
