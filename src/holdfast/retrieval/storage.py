"""The files of an index folder: a manifest, arrays larger than memory, and passages that are read one at a time."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from os.path import exists
from pathlib import Path
from shlex import quote
from shutil import rmtree
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.base.environment import cache_dir
from holdfast.base.errors import DataError, HoldfastError
from holdfast.base.files import UNWRITABLE, locked, partial_folder, write_whole
from holdfast.base.progress import Progress
from holdfast.base.rows import count_rows
from holdfast.base.stored import read_object
from holdfast.retrieval.corpus import CorpusDigest, Reading, passages
from holdfast.retrieval.types import Document

MANIFEST = "manifest.json"
FORMAT = 3
DOCUMENTS, OFFSETS = "documents.jsonl", "offsets.i8"
REBUILD = "delete the folder and build the index again"
_ALWAYS = 2**30
"""Bytes of an index that is read at every opening, in about a third of a second. A larger one is read once here."""
_PART = 2**22


def write_manifest(folder: Path, settings: dict[str, Any]) -> None:
    """Write the last file of an index: its settings, size and checksum of every other file, and its own checksum."""
    paths = [path for path in sorted(folder.iterdir()) if path.name != MANIFEST]
    sizes, sums = {path.name: path.stat().st_size for path in paths}, {path.name: _checksum(path) for path in paths}
    manifest = {"format": FORMAT, **settings, "files": sizes, "checksums": sums}
    manifest |= {"checksum": _own_checksum(manifest)}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The settings of an index; the manifest alone is checked. Raises `DataError` when the folder is not an index."""
    if not exists(folder):
        raise DataError(f"{folder} is not an index: it does not exist")
    if not exists(folder / MANIFEST):
        build = f"holdfast index build {quote(str(folder))} --out {quote(folder.name.split('.')[0] + '-index')}"
        raise DataError(
            f"{folder} is not an index: it has no {MANIFEST}", hint=f"to build one of the passages in it: {build}"
        )
    manifest = read_object(
        folder / MANIFEST, DataError, REBUILD, kind=str, corpus_sha256=str, files=dict, checksums=dict
    )
    if manifest.get("format") != FORMAT:
        raise DataError(f"the index {folder} was made by another version of holdfast; {REBUILD}")
    if manifest.get("checksum") != _own_checksum(manifest):
        raise DataError(f"the index {folder} is damaged: {MANIFEST} does not match its checksum; {REBUILD}")
    return manifest


@contextmanager
def intact(folder: Path) -> Iterator[None]:
    """Whatever is wrong in the files of an index is a `DataError`: somebody else may have written them, with checksums
    that fit."""
    try:
        yield
    except HoldfastError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise DataError(f"the index {folder} is damaged ({type(error).__name__}: {error}); {REBUILD}") from error


def open_manifest(folder: Path, kind: str, expected_hash: str | None) -> dict[str, Any]:
    """The settings of an index of this kind, after its files are checked.

    Raises `DataError` for another kind of index, for one of another corpus than `expected_hash` (None: any), and when a
    file is missing, cut off or changed.
    """
    manifest = read_manifest(folder)
    if manifest["kind"] != kind:
        raise DataError(f"{folder} is a {manifest['kind']} index; open it with `holdfast.retrieval.open_index`")
    if expected_hash is not None and expected_hash != manifest["corpus_sha256"]:
        raise DataError(f"the index {folder} was built from another corpus, or from an older version; {REBUILD}")
    for name, size in manifest["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(f"the index {folder} is damaged: {name} is missing or has another size; {REBUILD}")
    _compare(folder, manifest["checksums"])
    return manifest


def _compare(folder: Path, checksums: Mapping[str, int]) -> None:
    """Raise `DataError` where a file has another checksum.

    Files of more than `_ALWAYS` bytes together are compared once, and again after any of them has changed in size,
    times or place, or was copied. What was compared is noted in the cache, because the index may be read-only.
    """
    paths = [folder.resolve() / name for name in checksums]
    files = [path.stat() for path in paths]
    seen = [(file.st_dev, file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns) for file in files]
    compared = json.dumps([checksums, seen])
    note = cache_dir() / "compared" / f"{zlib.crc32(str(folder.resolve()).encode()):08x}.json"
    is_large = sum(file.st_size for file in files) > _ALWAYS
    if is_large and note.is_file() and note.read_bytes() == compared.encode():
        return
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        for path, found in zip(paths, threads.map(_checksum, paths), strict=True):
            if found != checksums[path.name]:
                raise DataError(f"the index {folder} is damaged: {path.name} does not match its checksum; {REBUILD}")
    if is_large:
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_whole(note, compared)


def _checksum(path: Path) -> int:
    """CRC-32 of a file: it finds damage, at 4 GB a second."""
    total = 0
    with path.open("rb") as file:
        while part := file.read(_PART):
            total = zlib.crc32(part, total)
    return total


def _own_checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of a manifest without the checksum itself."""
    settings = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(settings, sort_keys=True).encode())


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write an array as raw numbers, of the type that the suffix names: `.f4` for float32, `.i8` for int64, …"""
    # Not `tofile`, which does not say why it failed.
    path.write_bytes(np.ascontiguousarray(values, path.suffix[1:]).data)


def mapped(path: Path) -> NDArray[Any]:
    """A file of raw numbers as a read-only, memory-mapped array."""
    return np.asarray(np.memmap(path, path.suffix[1:], "r"))


class StoredDocuments(Sequence[Document]):
    """The passages of an index folder, in corpus order, each read from disk on access. Threads may share it.

    In memory is only where each line begins: 8 bytes per passage, mapped like the passages themselves.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._offsets = folder, mapped(folder / OFFSETS)
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
        with intact(self._folder):
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


# ---- a new index: passages are read once, and the folder is renamed at the end


@contextmanager
def new_index(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` at the end of the block and is deleted after a failure. Its parent is for
    files that only the build needs.

    Raises `DataError` when `out` exists, and when the disk is full or cannot be written.
    """
    with _sentences(out), partial_folder(out) as temporary:
        folder = temporary / "index"
        folder.mkdir()
        yield folder
        _publish(folder, out)


@contextmanager
def resumable_index(out: Path) -> Iterator[Path]:
    """As `new_index`, but a failure leaves the folder, in `NAME.building`, and the next call gets it back.

    Raises `DataError` when another process has it, too.
    """
    parent = out.with_name(f"{out.name}.building")
    folder, lock = parent / "index", parent / "lock"
    with _sentences(out):
        folder.mkdir(parents=True, exist_ok=True)
        lock.touch()
        with locked(lock):
            yield folder
            _publish(folder, out)
            rmtree(parent)


def read_passages(
    corpus: Path, reading: Reading, progress: Progress, *, replace: bool, fields: Mapping[str, str]
) -> Iterator[Document]:
    """The passages of a corpus, counted in `reading`; says how far it is. Raises `DataError`."""
    start_stage(progress, "reading passages", None if corpus.is_dir() else count_rows(corpus))
    for document in reading.counted(passages(corpus, on_skip=reading.skips, replace=replace, fields=fields)):
        if reading.passages % 1000 == 0:
            progress.advance(reading.passages)
        yield document


def start_stage(progress: Progress, name: str, total: int | None, done: int = 0) -> None:
    """Announce a stage with `done` steps already finished; the time left is estimated from those that follow."""
    progress.stage(name, total)
    progress.advance(max(done, 1))


def _publish(folder: Path, out: Path) -> None:
    if out.exists():
        out.rmdir()  # empty: `_sentences` checked
    folder.rename(out)


@contextmanager
def _sentences(out: Path) -> Iterator[None]:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists already; name a new folder, or delete this one first")
    try:
        yield
    except BlockingIOError:
        raise DataError(f"another process is building {out}; wait for it, or name another folder") from None
    except OSError as error:
        raise DataError(f"{out} cannot be written: {UNWRITABLE.get(error.errno or 0, error)}") from error
