"""Build an index in a temporary folder, chunk by chunk, so that a kill costs one chunk."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from holdfast.base.errors import DataError
from holdfast.base.files import locked, write_whole
from holdfast.base.jsonl import Skipped
from holdfast.base.progress import Progress
from holdfast.retrieval.corpus import CorpusDigest, count_rows, passages
from holdfast.retrieval.storage import (
    MANIFEST,
    OFFSETS,
    SCRATCH,
    DocumentWriter,
    build_folder,
    write_manifest,
    write_offsets,
)
from holdfast.retrieval.types import Document

CHUNK = 50_000
"""Passages between two commits: ten seconds of work."""
_SETTINGS, _LOCK = "settings.json", "lock"


class ChunkSink(Protocol):
    """What a kind of index does with passages while they are read."""

    def add(self, document: Document) -> None:
        """Take the next passage of the chunk."""
        ...

    def write(self, number: int, first_row: int) -> None:
        """End chunk `number`, whose first passage is row `first_row`: write its results to the scratch folder."""
        ...

    def recall(self, number: int) -> None:
        """Read the results of chunk `number`, which was written before an interruption."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What was on disk when a chunk was finished."""

    documents: int
    bytes: int
    corpus_sha256: str


def build(
    corpus: Path,
    out: Path,
    settings: dict[str, Any],
    work: Callable[[Path, Progress], dict[str, Any]],
    progress: Progress,
) -> None:
    """Call `work(folder, progress)`, which fills a folder and returns the manifest's settings, and rename the folder.

    `settings` must be the same in every start of one build.

    Raises `DataError` when `out` exists, another process is building it, an interrupted build had other settings, or
    the disk is full.
    """
    folder = build_folder(out)
    if (out / MANIFEST).is_file():
        raise DataError(f"{out} is an index already; name another folder, or delete this one first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an index; name a new folder")
    settings = {**settings, "corpus": str(corpus.resolve())}
    is_new = not folder.exists()
    with _disk_errors(folder):
        (folder / SCRATCH).mkdir(parents=True, exist_ok=True)
        with _only_process(folder):
            _refuse_other_settings(settings, folder, progress)
            try:
                manifest = work(folder, progress)
            except DataError:
                if is_new and not (folder / OFFSETS).exists():  # nothing to continue: the corpus cannot be used
                    shutil.rmtree(folder)
                raise
            progress.stage("checksums")
            write_manifest(folder, manifest)
            if out.exists():
                out.rmdir()  # empty: checked above
            folder.rename(out)
            shutil.rmtree(out / SCRATCH)  # last: a kill before this leaves a complete index


def copy_passages(
    folder: Path, corpus: Path, progress: Progress, *, sink: ChunkSink | None, replace: bool, chunk: int = CHUNK
) -> Commit:
    """Copy the passages of a corpus into an index folder, from where an interrupted build stopped.

    Raises `DataError` when the corpus cannot be used, or has changed since the build began.
    """
    earlier = commits(folder)
    last = earlier[-1] if earlier else Commit(documents=0, bytes=0, corpus_sha256="")
    if sink is not None:
        for number in range(len(earlier)):
            sink.recall(number)
    skipped: list[Skipped] = []
    start_stage(progress, "reading passages", count_rows(corpus))
    if last.documents:
        progress.note(f"continuing after {last.documents:,} passages")
    digest, number, row = CorpusDigest(), len(earlier), 0
    changed = DataError(f"{corpus} has changed since the build in {folder} began; delete that folder and start again")
    writer = DocumentWriter(folder, size=last.bytes)

    def commit(first_row: int) -> None:
        writer.flush()
        if sink is not None:
            sink.write(number, first_row)
        done = Commit(documents=row, bytes=writer.size, corpus_sha256=digest.hexdigest())
        write_whole(_commit_file(folder, number), json.dumps(asdict(done)))

    try:
        for row, document in enumerate(passages(corpus, on_skip=skipped.append, replace=replace), start=1):
            digest.add(document)
            if row == last.documents and digest.hexdigest() != last.corpus_sha256:
                raise changed
            if row > last.documents:
                if last.documents % chunk:  # only the last chunk of a corpus is shorter
                    raise changed
                writer.add(document)
                if sink is not None:
                    sink.add(document)
            if row % 1000 == 0:
                progress.advance(row)
            if row % chunk == 0 and row > last.documents:
                commit(first_row=row - chunk)
                number += 1
        if row < last.documents:
            raise changed
        if row > max(number * chunk, last.documents):
            commit(first_row=number * chunk)
    finally:
        writer.close()
    if skipped:
        progress.note(f"skipped {len(skipped):,} row(s) that cannot be used; the first: {skipped[0]}")
    write_offsets(folder, row)
    return Commit(documents=row, bytes=writer.size, corpus_sha256=digest.hexdigest())


def start_stage(progress: Progress, name: str, total: int, done: int = 0) -> None:
    """Announce a stage with `done` steps already finished; the time left is estimated from those that follow."""
    progress.stage(name, total)
    progress.advance(max(done, 1))


def commits(folder: Path) -> list[Commit]:
    """The finished chunks of a folder, in order."""
    finished: list[Commit] = []
    while (path := _commit_file(folder, len(finished))).is_file():
        finished.append(Commit(**json.loads(path.read_text())))
    return finished


def _commit_file(folder: Path, number: int) -> Path:
    return folder / SCRATCH / f"{number:06d}.json"


def _refuse_other_settings(settings: dict[str, Any], folder: Path, progress: Progress) -> None:
    path = folder / SCRATCH / _SETTINGS
    if not path.is_file():
        write_whole(path, json.dumps(settings, indent=2))
        return
    earlier = json.loads(path.read_text())
    different = sorted(key for key in {*earlier, *settings} if earlier.get(key) != settings.get(key))
    if different:
        values = ", ".join(f"{key} = {earlier.get(key)!r}" for key in different)
        raise DataError(
            f"{folder} is an unfinished index with {values}, and this command has other settings. Give the same "
            "settings to continue it, or delete that folder"
        )
    progress.note(f"continuing {folder}")


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes."""
    lock = folder / SCRATCH / _LOCK
    lock.touch()
    try:
        with locked(lock):
            yield
    except BlockingIOError:
        raise DataError(f"another process is building in {folder}; wait for it, or name another folder") from None


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(
                f"the disk is full ({folder}). Free some space and run the same command again: it continues where it "
                "stopped"
            ) from error
        raise DataError(f"{folder} cannot be written: {error.strerror or error}") from error
