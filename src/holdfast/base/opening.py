"""The one door for files of rows and logs: a regular file, unpacked, in bounded memory; or a pipe, copied to a file.

Whatever reads questions, passages, rollouts or logs takes its bytes from here, so that a device, a pipe without a
writer, a small archive of gigabytes or a line without an end is one error, and not a full memory.
"""

from __future__ import annotations

import codecs
import gzip
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, BinaryIO

from holdfast.base.errors import DataError, HoldfastError
from holdfast.base.files import UNWRITABLE, size_text

BLOCK = 1 << 17
"""Bytes read at a time."""
MAX_LINE = 1 << 24
"""Bytes of the longest line or record that is read. A row of questions or of a log has some kilobytes."""
MAX_UNPACKED = 200
"""How many times its own size a file may unpack to. Logs and texts reach 5 to 50."""
_FREE = 1 << 24
"""Bytes that any file may unpack to."""
_MAX_PIPED = 1 << 31
"""Bytes of a pipe that are copied to the folder of temporary files."""
_NO_WRITER = 5.0
"""Seconds in which a program must open a pipe for writing."""
_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_regular(path: Path) -> None:
    """Raises `DataError` for what is not a regular file: it is missing, or a device, which may have no end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:  # a loop of links, a NUL in the name
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        raise DataError(f"{path} is a folder; name a file in it")
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
        raise DataError(
            f"{path} is {kind}, not a regular file, but has to be read more than once: save it as a file first"
        )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file as it is stored. Raises `DataError` for what cannot be opened or read, also while it is read."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{path} cannot be read: {reason}. Check its permissions, or copy it again")


@contextmanager
def left_out(path: Path) -> Iterator[None]:
    """Whatever a reader raises for one file of a folder is a `DataError`: it must not end the reading of the others."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


class Unpacked:
    """Counts what a file unpacks to, and refuses more than a text would."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._count = path, path.stat().st_size, 0

    def add(self, count: int) -> None:
        """Count some more bytes. Raises `DataError` as `check`."""
        self._count += count
        self.check(self._count)

    def check(self, count: int) -> None:
        """Raises `DataError` where the file unpacks to so many bytes, and they are too many."""
        if count > max(_FREE, MAX_UNPACKED * self._size):
            raise DataError(
                f"{self._path} has {size_text(self._size)} and unpacks to {size_text(count)} or more: over "
                f"{MAX_UNPACKED} times its size. No text compresses so well, so it is not read. If you made it, save "
                "it unpacked, as .jsonl"
            )


def blocks(path: Path, on_damage: Callable[[], None] | None = None) -> Iterator[bytes]:
    """The bytes of a file, unpacked if it is gzip, and as UTF-8 if a mark says that it is UTF-16; without the mark.

    Raises `DataError` as `opened`, and for an archive that is damaged or cut off. With `on_damage`, that is called
    instead, after the part before the damage.
    """
    with opened(path) as stored:
        parts = _unpacked(stored, path, on_damage) if stored.read(2) == _GZIP else iter(lambda: stored.read(BLOCK), b"")
        stored.seek(0)
        first = next(parts, b"")
        if first.startswith(_UTF16):
            texts = codecs.iterdecode(_chained(first, parts), "utf-16", "replace")
            yield from (text.encode("utf-8", "replace") for text in texts)
        else:
            yield from _chained(first.removeprefix(codecs.BOM_UTF8), parts)


def _chained(first: bytes, others: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _unpacked(stored: IO[bytes], path: Path, on_damage: Callable[[], None] | None) -> Iterator[bytes]:
    unpacked, file, block = Unpacked(path), gzip.GzipFile(fileobj=stored), b""
    while True:
        try:
            block = file.read(BLOCK)
        except (OSError, EOFError, zlib.error) as error:  # gzip raises all three for a damaged file
            if on_damage is None or not block:  # the one before
                raise _unreadable(path, error) from None
            on_damage()
            return
        if not block:
            return
        unpacked.add(len(block))
        yield block


def beginning(path: Path, size: int) -> bytes:
    """The first bytes of `blocks`, about `size`; b"" of an empty file."""
    parts, count = list[bytes](), 0
    for part in blocks(path):
        parts.append(part)
        count += len(part)
        if count >= size:
            break
    return b"".join(parts)


def lines(
    path: Path, on_long: Callable[[int], None], on_damage: Callable[[], None] | None = None
) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line with its end) of `blocks`. A line of more than `MAX_LINE` bytes goes to `on_long` by its
    number, and is b"" here."""
    number, size = 1, 0
    parts: list[bytes] = []  # joined once: a line of many blocks would be copied for each
    for block in blocks(path, on_damage):
        for part in BytesIO(block):
            size += len(part)
            parts.append(part)
            if size > MAX_LINE:
                parts.clear()
            if part.endswith(b"\n"):
                if size > MAX_LINE:
                    on_long(number)
                yield number, b"".join(parts)
                number, size, parts = number + 1, 0, []
    if size > MAX_LINE:
        on_long(number)
    elif size:
        yield number, b"".join(parts)


# ---- pipes


@contextmanager
def spooled(parts: Iterable[bytes], name: str, shown: str = "") -> Iterator[Path]:
    """A temporary file `name` with all of what can be read once only. What came before the reading failed is kept.

    Raises `DataError` if the file cannot be written, or what is `shown` to the user as this has no end.
    """
    with TemporaryDirectory() as folder:
        path, count = Path(folder) / name, 0
        try:
            with path.open("wb") as file:
                for part in _until_it_fails(parts):
                    count += file.write(part)
                    if count > _MAX_PIPED:
                        raise DataError(
                            f"{shown or name} has more than {size_text(_MAX_PIPED)}, the limit for a pipe; save it as "
                            "a file, or pipe a part of it"
                        )
        except OSError as error:
            raise DataError(
                f"{name} cannot be stored in {folder}: {UNWRITABLE.get(error.errno or 0, error.strerror)}",
                hint="set TMPDIR to a folder with more space",
            ) from None
        yield path


def _until_it_fails(parts: Iterable[bytes]) -> Iterator[bytes]:
    with suppress(OSError):
        yield from parts


def piped(path: Path) -> Iterator[bytes]:
    """What is written to a named pipe. Raises `DataError` when no program writes to it: it would be waited for without
    an end."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        give_up = time.monotonic() + _NO_WRITER
        while (first := pipe.read(BLOCK)) == b"":  # None: a program has opened it, and has written nothing yet
            if time.monotonic() > give_up:
                raise DataError(
                    f"{path} is a pipe to which no program writes; start the program that does, or name a file"
                )
            time.sleep(0.05)
        os.set_blocking(pipe.fileno(), True)
        yield first or b""
        yield from iter(lambda: pipe.read(BLOCK), b"")
