"""The files of an index folder: a manifest, arrays larger than memory, and passages that are read one at a time."""

from __future__ import annotations

import json
import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.retrieval.corpus import CorpusDigest
from holdfast.retrieval.types import Document

MANIFEST = "manifest.json"
FORMAT = 3
QUERY_CACHE = "queries.jsonl"
"""Written by the server; not part of the index."""
DOCUMENTS, OFFSETS = "documents.jsonl", "offsets.i8"
_REBUILD = "delete the folder and build the index again"


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """Write the last file of an index: its settings, and the size of every other file."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    manifest = {"format": FORMAT, **settings, "files": sizes}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings of an index; only the format is checked. Raises `DataError` when the folder is not an index."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if not folder.exists():
            raise DataError(f"{folder} is not an index: it does not exist") from None
        build = f"holdfast index build {quote(str(folder))} --out {quote(folder.name.split('.')[0] + '-index')}"
        raise DataError(
            f"{folder} is not an index: it has no {MANIFEST}", hint=f"to build one of the passages in it: {build}"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"the index {folder} is damaged ({MANIFEST}: {error}); {_REBUILD}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"the index {folder} was made by another version of holdfast; {_REBUILD}")
    return manifest


def open_manifest(folder: Path, kind: str, expected_hash: str | None) -> dict[str, Any]:
    """The settings of an index of this kind, after the sizes of its files are checked.

    Raises `DataError` for another kind of index, for one of another corpus than `expected_hash` (None: any), and when a
    file is missing or cut off.
    """
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise DataError(f"{folder} is a {manifest['kind']} index; open it with `holdfast.retrieval.open_index`")
    if expected_hash is not None and expected_hash != manifest["corpus_sha256"]:
        raise DataError(f"the index {folder} was built from another corpus, or from an older version; {_REBUILD}")
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(f"the index {folder} is damaged: {name} is missing or has another size; {_REBUILD}")
    return manifest


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array as raw numbers, of the type that the suffix names: `.f4` for float32, `.i8` for int64, …"""
    values.astype(path.suffix[1:]).tofile(path)


def mapped(path: Path) -> NDArray[Any]:
    """A file of raw numbers as a read-only, memory-mapped array."""
    return np.asarray(np.memmap(path, path.suffix[1:], "r"))


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


def write_documents(folder: Path, documents: Iterable[Document]) -> str:
    """Write the passages of an index as they come, and return their fingerprint (`CorpusDigest`)."""
    offsets, digest = array("q", [0]), CorpusDigest()
    with open(folder / DOCUMENTS, "wb") as file:
        for document in documents:
            digest.add(document)
            offsets.append(offsets[-1] + file.write(f"{document_json(document)}\n".encode()))
    write_array(folder / OFFSETS, np.array(offsets))
    return digest.hexdigest()
