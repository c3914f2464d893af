"""How an index comes to be: in a folder beside its own, chunk by chunk, so that a kill costs a chunk."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.errors import DataError
from holdfast.jsonl import Skipped
from holdfast.listener import Listener
from holdfast.retrieval.corpus import CorpusDigest, count_rows, passages
from holdfast.retrieval.documents import OFFSETS, DocumentWriter, write_offsets
from holdfast.retrieval.locks import locked
from holdfast.retrieval.manifest import MANIFEST, SCRATCH, building, write_manifest
from holdfast.retrieval.types import Document

CHUNK = 50_000
"""Passages between two commits: ten seconds of work."""
_PLAN, _LOCK = "plan.json", "lock"


class ChunkSink(Protocol):
    """What a kind of index does with passages while they are read."""

    def add(self, document: Document) -> None:
        """The next passage of the chunk."""
        ...

    def write(self, number: int, first_row: int) -> None:
        """End chunk `number`, of passages from `first_row` on: put what is kept of it into the chunks' folder."""
        ...

    def recall(self, number: int) -> None:
        """Chunk `number` was written before an interruption."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What stood on disk when a chunk was finished."""

    documents: int
    bytes: int
    corpus_sha256: str


def build(
    corpus: Path,
    out: Path,
    plan: dict[str, Any],
    work: Callable[[Path, Listener], dict[str, Any]],
    listener: Listener,
) -> None:
    """Call `work(folder, listener)`, which fills a folder and returns the manifest's settings, and give the folder its
    name. `plan` holds the settings that must not change between two starts of one building.

    Raises `DataError`: `out` exists, another building is under way, an interrupted one had another plan, the disk is
    full.
    """
    folder = building(out)
    _refuse_existing(out)
    plan = {**plan, "corpus": str(corpus.resolve())}
    began = not folder.exists()
    with _disk_errors(folder):
        (folder / SCRATCH).mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _keep_to(plan, folder, listener)
            try:
                settings = work(folder, listener)
            except DataError:
                if began and not (folder / OFFSETS).exists():  # the corpus is at fault; a better one is another one
                    shutil.rmtree(folder)
                raise
            listener.stage("checksums")
            write_manifest(folder, settings)
            if out.exists():
                out.rmdir()  # empty: `_refuse_existing`
            folder.rename(out)
            shutil.rmtree(out / SCRATCH)  # last: a kill before this leaves an index that is whole


def read_into(
    folder: Path, corpus: Path, listener: Listener, *, sink: ChunkSink | None, replace: bool, chunk: int = CHUNK
) -> Commit:
    """Copy the passages of a corpus into an index folder, from where an interrupted building stopped. Raises
    `DataError` when the corpus cannot be used, or is no longer the one that was begun."""
    before = commits(folder)
    last = before[-1] if before else Commit(documents=0, bytes=0, corpus_sha256="")
    for number in range(len(before)):
        if sink is not None:
            sink.recall(number)
    skipped: list[Skipped] = []
    begin(listener, "reading passages", count_rows(corpus))
    if last.documents:
        listener.note(f"going on after {last.documents:,} passages")
    digest, number, row = CorpusDigest(), len(before), 0
    writer = DocumentWriter(folder, size=last.bytes)
    try:
        for row, document in enumerate(passages(corpus, on_skip=skipped.append, replace=replace), start=1):
            digest.add(document)
            if row == last.documents and digest.hexdigest() != last.corpus_sha256:
                raise _changed(folder, corpus)
            if row > last.documents:
                if last.documents % chunk:  # the last chunk is a short one only at the end of a corpus
                    raise _changed(folder, corpus)
                writer.add(document)
                if sink is not None:
                    sink.add(document)
            if row % 1000 == 0:
                listener.advance(row)
            if row % chunk == 0 and row > last.documents:
                _commit(folder, number, row, digest, writer, sink, first_row=row - chunk)
                number += 1
        if row < last.documents:
            raise _changed(folder, corpus)
        if row > max(number * chunk, last.documents):
            _commit(folder, number, row, digest, writer, sink, first_row=number * chunk)
    finally:
        writer.close()
    if skipped:
        listener.note(f"{len(skipped):,} row(s) cannot be used and were skipped; the first: {skipped[0]}")
    write_offsets(folder, row)
    return Commit(documents=row, bytes=writer.size, corpus_sha256=digest.hexdigest())


def begin(listener: Listener, name: str, total: int, done: int = 0) -> None:
    """Announce a phase, of which `done` steps are done already: time left is told from those that follow."""
    listener.stage(name, total)
    listener.advance(max(done, 1))


def commits(folder: Path) -> list[Commit]:
    """The finished chunks of a folder, in order."""
    found: list[Commit] = []
    while (path := _commit_file(folder, len(found))).is_file():
        found.append(Commit(**json.loads(path.read_text())))
    return found


def write_whole(path: Path, text: str) -> None:
    """Write a file such that it is there whole, or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _commit(
    folder: Path,
    number: int,
    row: int,
    digest: CorpusDigest,
    writer: DocumentWriter,
    sink: ChunkSink | None,
    *,
    first_row: int,
) -> None:
    writer.flush()
    if sink is not None:
        sink.write(number, first_row)
    commit = Commit(documents=row, bytes=writer.size, corpus_sha256=digest.hexdigest())
    write_whole(_commit_file(folder, number), json.dumps(asdict(commit)))


def _commit_file(folder: Path, number: int) -> Path:
    return folder / SCRATCH / f"{number:06d}.json"


def _refuse_existing(out: Path) -> None:
    if (out / MANIFEST).is_file():
        raise DataError(f"{out} holds an index already; name another folder, or delete this one first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an index; name a new folder")


def _keep_to(plan: dict[str, Any], folder: Path, listener: Listener) -> None:
    path = folder / SCRATCH / _PLAN
    if not path.is_file():
        write_whole(path, json.dumps(plan, indent=2))
        return
    begun = json.loads(path.read_text())
    other = sorted(key for key in {*begun, *plan} if begun.get(key) != plan.get(key))
    if other:
        was = ", ".join(f"{key} = {begun.get(key)!r}" for key in other)
        raise DataError(
            f"{folder} holds an unfinished index with {was}, and you now ask for another. Give the same settings to go "
            "on with it, or delete that folder"
        )
    listener.note(f"going on with {folder}")


def _changed(folder: Path, corpus: Path) -> DataError:
    return DataError(f"{corpus} has changed since the building in {folder} began; delete that folder and start again")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the folder against another process."""
    with open(folder / SCRATCH / _LOCK, "w") as file:
        if not locked(file):
            raise DataError(f"another process is building in {folder}; wait for it, or name another folder")
        yield


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"the disk is full ({folder}). Free some space and run the same command again: it goes on where it "
                "stopped"
            ) from error
        raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
