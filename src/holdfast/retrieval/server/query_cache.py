"""The server's cache of query results, kept over restarts."""

from __future__ import annotations

import json
import logging
import os
import sys
import zlib
from collections import OrderedDict
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
_OVERHEAD = 500  # bytes in memory that an entry takes besides its text and its numbers

_LONGEST = 2**20  # bytes of the longest line that is read

Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Entry:
    result: Ranked
    bytes: int


class QueryCache:
    """An LRU cache (query, k) → rows and scores, and a file to which every new entry is appended.

    It has at most `size` entries and `MOST_BYTES` bytes. The file begins with the fingerprint of the index; entries of
    another index are not used. Each line begins with its checksum; one that is damaged or cut off is skipped. The file
    is rewritten on opening, and when it has twice the lines or bytes it needs. If the file cannot be written, or
    another server holds it, the cache is in memory only. All of this is logged.
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
            with path.open("rb") as file:
                self._read(file)
        self._rewrite()

    def _read(self, file: IO[bytes]) -> None:
        """Remember the entries of this index."""
        head, damaged = _row(file.readline(_LONGEST)), 0
        if head is None:
            _log.warning("%s is damaged, or of an older version: the cache starts empty", self._path)
        elif head["index"] == self._fingerprint:
            while line := file.readline(_LONGEST):
                if (row := _row(line)) is None:
                    damaged += 1
                else:
                    result = Ranked(np.array(row["rows"], np.int64), np.array(row["scores"], np.float32))
                    self._remember((row["query"], row["k"]), result, len(line))
        if damaged:
            _log.warning("%s: %d line(s) are damaged or cut off, and are skipped", self._path, damaged)

    def _rewrite(self) -> None:
        assert self._path is not None
        if self._file is not None:
            self._file.close()
        fresh = self._path.with_name(f".{self._path.name}.new")
        self._file = open(fresh, "w", encoding="ascii")  # noqa: SIM115 (closed by `close`)
        self._lines = self._written = 0
        self._file.write(_summed({"index": self._fingerprint}))
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
    return _summed({"query": key[0], "k": key[1], "rows": result.rows.tolist(), "scores": result.scores.tolist()})


def _summed(row: dict[str, Any]) -> str:
    """A line of the file: the CRC-32 of a row, and the row."""
    text = json.dumps(row)
    return f"{zlib.crc32(text.encode()):08x} {text}\n"


def _row(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None where the line is not whole."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
