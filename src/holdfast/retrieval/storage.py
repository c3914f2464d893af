"""The files of an index folder: a manifest, arrays larger than memory, and passages that are read one at a time."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from holdfast.base.errors import DataError
from holdfast.retrieval.types import Document

MANIFEST = "manifest.json"
FORMAT = 2
QUERY_CACHE = "queries.jsonl"
"""Written by the server; not part of the index."""
SCRATCH = "scratch"
"""Subfolder with what only the build needs."""
DOCUMENTS, OFFSETS = "documents.jsonl", "offsets.npy"
_REBUILD = "delete the folder and build the index again"
_WHOLE = 256 * 2**20  # bytes; of a larger file, samples are hashed
_SAMPLES, _SAMPLE = 64, 2**20
_BLOCK = 1 << 24


# The manifest: what an index was built from, and what its files must look like.


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """Write the last file of an index. A folder without it is not an index."""
    manifest = {"format": FORMAT, **settings, "files": fingerprints(folder)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings of an index; only the format is checked. Raises `DataError` when the folder is not an index."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if build_folder(folder).is_dir():
            raise DataError(
                f"{folder} is not an index yet: its build was interrupted. Run the same `holdfast index build` command "
                "again to continue it"
            ) from None
        raise DataError(f"{folder} is not an index: it has no {MANIFEST}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"the index {folder} is damaged ({MANIFEST}: {error}); {_REBUILD}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"the index {folder} was made by another version of holdfast; {_REBUILD}")
    return manifest


def open_manifest(folder: Path, kind: str, expected_hash: str | None) -> dict[str, Any]:
    """The settings of an index of this kind, after all its files are checked.

    Raises `DataError` for another kind of index, for one of another corpus than `expected_hash` (None: any), and when a
    file is missing or has changed.
    """
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise DataError(f"{folder} is a {manifest['kind']} index; open it with `holdfast.retrieval.open_index`")
    if expected_hash is not None and expected_hash != manifest["corpus_sha256"]:
        raise DataError(f"the index {folder} was built from another corpus, or from an older version; {_REBUILD}")
    actual = fingerprints(folder)
    for name, expected in manifest["files"].items():
        if actual.get(name) != expected:
            state = "has changed" if name in actual else "is missing"
            raise DataError(f"the index {folder} is damaged: {name} {state} since it was saved; {_REBUILD}")
    return manifest


def fingerprints(folder: Path) -> dict[str, str]:
    """A hash of every file of an index except its manifest, by path relative to `folder`."""
    return {
        path.relative_to(folder).as_posix(): _fingerprint(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (MANIFEST, QUERY_CACHE) and SCRATCH not in path.relative_to(folder).parts
    }


def build_folder(folder: Path) -> Path:
    """Where an index is built before the folder gets its name."""
    return folder.with_name(f"{folder.name}.building")


def _fingerprint(path: Path) -> str:
    """SHA-256 of the file's size and bytes. In a file above 256 MiB, 64 places are hashed, so that an index of a
    hundred gigabytes is checked in a second."""
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "big"))
    with open(path, "rb") as file:
        if size <= _WHOLE:
            while block := file.read(_SAMPLE):
                digest.update(block)
        else:
            for i in range(_SAMPLES):
                file.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE))
    return digest.hexdigest()


# Arrays.


class NpyWriter:
    """Writes a `.npy` file from front to back.

    The writes are plain: a full disk raises `OSError`, where a memory map would end the process.
    """

    def __init__(self, path: Path, dtype: DTypeLike, shape: int | tuple[int, int], *, rows: int = 0) -> None:
        """`shape` is that of the finished array. With `rows`, continue a file after that many rows, and drop the
        rest of it."""
        self.dtype = np.dtype(dtype)
        full_shape: tuple[int, ...] = shape if isinstance(shape, tuple) else (shape,)
        self._file = open(path, "r+b" if rows else "w+b")  # noqa: SIM115 (closed by `__exit__`)
        header = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": full_shape}
        np.lib.format.write_array_header_1_0(self._file, header)  # type: ignore[arg-type]
        row_bytes = self.dtype.itemsize * int(np.prod(full_shape[1:], dtype=np.int64))
        self._file.seek(rows * row_bytes, 1)
        self._file.truncate()

    def write(self, part: NDArray[Any]) -> None:
        """Append the next elements."""
        self._file.write(np.ascontiguousarray(part, self.dtype).data)

    def flush(self) -> None:
        """Pass what was written to the operating system."""
        self._file.flush()

    def fileno(self) -> int:
        """The file descriptor, for `os.fsync`."""
        return self._file.fileno()

    def __enter__(self) -> NpyWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def mapped(path: Path) -> NDArray[Any]:
    """A `.npy` file as a read-only, memory-mapped array."""
    return np.asarray(np.load(path, mmap_mode="r"))


def blocks(path: Path, rows: int) -> Iterator[NDArray[Any]]:
    """Read a `.npy` file `rows` rows at a time, without a memory map, whose pages would count as memory in use."""
    array = np.load(path, mmap_mode="r")
    row_items = int(np.prod(array.shape[1:], dtype=np.int64))
    with open(path, "rb") as file:
        file.seek(array.offset)
        for first in range(0, len(array), rows):
            count = min(rows, len(array) - first)
            yield np.fromfile(file, array.dtype, count * row_items).reshape(count, *array.shape[1:])


# Passages.


class StoredDocuments(Sequence[Document]):
    """The passages of an index folder, in corpus order, each read from disk on access. Threads may share it.

    In memory is only where each line begins: 8 bytes per passage, mapped like the passages themselves.
    """

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
            raise IndexError(f"there is no passage {row}; the index has {len(self)}")
        return Document(**json.loads(self.line(row % len(self))))

    def line(self, row: int) -> bytes:
        """A passage as JSON, as it is stored."""
        return self._text[int(self._offsets[row]) : int(self._offsets[row + 1]) - 1]

    def __iter__(self) -> Iterator[Document]:
        return (self[row] for row in range(len(self)))


def as_json(documents: Sequence[Document], row: int) -> bytes:
    """A passage as a JSON object."""
    return documents.line(row) if isinstance(documents, StoredDocuments) else document_json(documents[row]).encode()


def document_json(document: Document) -> str:
    """A passage as a JSON object in one line."""
    return json.dumps({"id": document.id, "contents": document.contents}, ensure_ascii=False)


class DocumentWriter:
    """Appends passages to an index that is being built. The next start drops what was written after `flush`."""

    def __init__(self, folder: Path, *, size: int = 0) -> None:
        """`size`: bytes of an interrupted build's file to keep."""
        self._file: BinaryIO = open(folder / DOCUMENTS, "r+b" if size else "wb")  # noqa: SIM115 (closed by `close`)
        self._file.truncate(size)
        self._file.seek(size)
        self.size = size

    def add(self, document: Document) -> None:
        """Append a passage."""
        self.size += self._file.write(f"{document_json(document)}\n".encode())

    def flush(self) -> None:
        """Pass what was written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._file.close()


def write_offsets(folder: Path, count: int) -> None:
    """Write where each of the `count` lines of `documents.jsonl` begins, and where the last one ends."""
    with NpyWriter(folder / OFFSETS, np.int64, count + 1) as out, open(folder / DOCUMENTS, "rb") as file:
        out.write(np.zeros(1, np.int64))
        position = 0
        while data := file.read(_BLOCK):
            ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A)
            out.write(ends + position + 1)
            position += len(data)
