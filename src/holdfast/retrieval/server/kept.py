"""What queries found, kept over restarts: the least recently used go first."""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from holdfast.retrieval.locks import locked
from holdfast.retrieval.postings import Ranked

_log = logging.getLogger("holdfast")


class KeptQueries:
    """An LRU of (query, k) → rows and scores, and a file that every new entry is appended to.

    The file begins with the fingerprint of the index; entries of another index are not used. A line that a kill cut
    off is not read. The file is written anew when it is opened and when it has twice the lines it needs. A file that
    cannot be written, or that another server holds, is done without, and that is logged.
    """

    def __init__(self, size: int, path: Path | None = None, fingerprint: str = "") -> None:
        self._size, self._path, self._fingerprint = size, path, fingerprint
        self._entries: OrderedDict[tuple[str, int], Ranked] = OrderedDict()
        self._file: IO[str] | None = None
        self._lock: Any = None
        self._lines = 0
        if path is not None and size:
            try:
                self._open(path)
            except OSError as error:
                self._give_up(error)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: tuple[str, int]) -> Ranked | None:
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: tuple[str, int], found: Ranked) -> None:
        if not self._size:
            return
        self._entries[key] = found
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
        if self._file is not None:
            try:
                self._file.write(_line(key, found))
                self._lines += 1
            except OSError as error:
                self._give_up(error)

    def flush(self) -> None:
        """Hand what was put since to the system."""
        if self._file is None:
            return
        try:
            self._file.flush()
            if self._lines > 2 * self._size:
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
            for key, found in _read(path, self._fingerprint):
                self._entries[key] = found
                self._entries.move_to_end(key)
                if len(self._entries) > self._size:
                    self._entries.popitem(last=False)
        self._rewrite()

    def _rewrite(self) -> None:
        assert self._path is not None
        if self._file is not None:
            self._file.close()
        fresh = self._path.with_name(f".{self._path.name}.new")
        self._file = open(fresh, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (closed by `close`)
        self._file.write(json.dumps({"index": self._fingerprint}) + "\n")
        self._file.writelines(_line(key, found) for key, found in self._entries.items())
        self._file.flush()
        os.replace(fresh, self._path)
        self._lines = len(self._entries)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s): queries are kept in memory only", self._path, error.strerror)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # what it still holds cannot be written either
                file.close()


def _line(key: tuple[str, int], found: Ranked) -> str:
    row = {"query": key[0], "k": key[1], "rows": found.rows.tolist(), "scores": found.scores.tolist()}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _read(path: Path, fingerprint: str) -> Iterator[tuple[tuple[str, int], Ranked]]:
    with open(path, "rb") as file:
        try:
            head = json.loads(file.readline())
        except ValueError:
            return
        if not isinstance(head, dict) or head.get("index") != fingerprint:
            return
        for line in file:
            try:
                row = json.loads(line)
                found = Ranked(np.array(row["rows"], np.int64), np.array(row["scores"], np.float32))
                yield (str(row["query"]), int(row["k"])), found
            except (ValueError, KeyError, TypeError):
                continue  # cut off by a kill
