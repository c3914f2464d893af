"""Atomic writes of files and folders, file locks, and reasons why a write failed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from time import time

UNWRITABLE = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EIO: "the disk reports an error",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ENOTDIR: "a file is where a folder should be",
    errno.EEXIST: "a file is where a folder should be",
}
"""errno -> reason, for failures of the disk or the permissions, which are not bugs."""


_NEW = 60.0
"""Seconds in which an empty folder may be new, and not be locked yet."""


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: after a crash or a failure it is the old one or the new one.

    A lone surrogate, which UTF-8 cannot hold, becomes its `\\ud…` escape: valid inside a JSON text.
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file next to `path`, which replaces it at the end of the block. After a failure `path` is as it was."""
    # In the same folder, because a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def partial_folder(folder: Path) -> Iterator[Path]:
    """A new folder next to `folder`, to be filled and renamed to it. What is not renamed is deleted at the end, and
    what killed processes have left there at the beginning."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    delete_left_partial(folder.parent)
    partial = folder.with_name(f".{folder.name}.{token_hex(4)}.partial")
    try:
        partial.mkdir()
        with locked(partial):
            yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk needs the room


def delete_left_partial(parent: Path) -> None:
    """Delete what killed processes have left of a `partial_folder`. A living one has locked it."""
    for partial in parent.glob(f".*.{'[0-9a-f]' * 8}.partial"):
        with suppress(OSError):
            if any(partial.iterdir()) or partial.stat().st_mtime < time() - _NEW:
                with locked(partial) as could_be:
                    if could_be:
                        shutil.rmtree(partial)


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Lock a file or folder until the block or the process ends. False where they cannot be locked.

    Raises `BlockingIOError` while another process holds it.
    """
    handle = os.open(path, os.O_RDONLY)
    could_be = True
    try:
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except (ImportError, OSError):  # Windows; some network drives
            could_be = False
        yield could_be
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process has locked this file."""
    try:
        with locked(path):
            return False
    except BlockingIOError:
        return True
    except OSError:  # the file does not exist
        return False


def is_pipe(path: str | Path) -> bool:
    """Whether this is a named pipe, which can be read only once."""
    try:
        return Path(path).is_fifo()
    except (OSError, ValueError):  # reading the path reports why
        return False


def size_text(count: float) -> str:
    """A number of bytes for people.

    >>> [size_text(n) for n in (200, 5e6, 34e9)]
    ['0.2 KiB', '4.8 MiB', '31.7 GiB']
    """
    unit, name = next((u for u in ((2**30, "GiB"), (2**20, "MiB")) if count >= u[0]), (2**10, "KiB"))
    return f"{count / unit:.1f} {name}"
