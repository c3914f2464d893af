"""Passages on disk, each read when it is asked for."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np

from holdfast.retrieval.arrays import NpyWriter, mapped
from holdfast.retrieval.types import Document

DOCUMENTS, OFFSETS = "documents.jsonl", "offsets.npy"
_BLOCK = 1 << 24


class StoredDocuments(Sequence[Document]):
    """The passages of an index folder, in corpus order. In memory is where each line begins: 8 bytes a passage, mapped
    like the passages themselves. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self._offsets = mapped(folder / OFFSETS)
        with open(folder / DOCUMENTS, "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, row: int) -> Document: ...

    @overload
    def __getitem__(self, row: slice) -> tuple[Document, ...]: ...

    def __getitem__(self, row: int | slice) -> Document | tuple[Document, ...]:
        if isinstance(row, slice):
            return tuple(self[i] for i in range(*row.indices(len(self))))
        if not -len(self) <= row < len(self):
            raise IndexError(f"there is no passage {row}; the index holds {len(self)}")
        return Document(**json.loads(self.line(row % len(self))))

    def line(self, row: int) -> bytes:
        """A passage as JSON, as it is stored."""
        return self._text[int(self._offsets[row]) : int(self._offsets[row + 1]) - 1]

    def __iter__(self) -> Iterator[Document]:
        return (self[row] for row in range(len(self)))


def as_json(documents: Sequence[Document], row: int) -> bytes:
    """A passage as a JSON object."""
    return documents.line(row) if isinstance(documents, StoredDocuments) else _line(documents[row]).encode()


class DocumentWriter:
    """Appends passages to an index that is being built. What was written after `flush` is cut off on the next start."""

    def __init__(self, folder: Path, *, size: int = 0) -> None:
        self._path = folder / DOCUMENTS
        self._file: BinaryIO = open(self._path, "r+b" if size else "wb")  # noqa: SIM115 (closed by `close`)
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def add(self, document: Document) -> None:
        self.size += self._file.write(f"{_line(document)}\n".encode())

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def write_offsets(folder: Path, count: int) -> None:
    """Where each of the `count` lines of `documents.jsonl` begins, and where the last one ends."""
    with NpyWriter(folder / OFFSETS, np.int64, count + 1) as out, open(folder / DOCUMENTS, "rb") as file:
        out.write(np.zeros(1, np.int64))
        position = 0
        while data := file.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A)
            out.write(ends + position + 1)
            position += len(data)


def _line(document: Document) -> str:
    return json.dumps({"id": document.id, "contents": document.contents}, ensure_ascii=False)
