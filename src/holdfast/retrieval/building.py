"""What both kinds of index share when they are built: passages are read once, and the folder is renamed at the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from holdfast.base.errors import DataError
from holdfast.base.files import UNWRITABLE, locked, partial_folder
from holdfast.base.progress import Progress
from holdfast.base.rows import count_rows
from holdfast.retrieval.corpus import Reading, passages
from holdfast.retrieval.types import Document


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
