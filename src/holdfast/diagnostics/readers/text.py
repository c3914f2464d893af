"""Files as text, a block at a time: never the whole file, and never a line longer than memory allows."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holdfast.diagnostics.readers.tally import Tally
from holdfast.errors import DataError

BLOCK = 1 << 20
LONGEST = 1 << 24
"""Characters of the longest line, or row, that is read: a step of a log is a few kilobytes."""

_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_GZIP = b"\x1f\x8b"
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\ufffd]")


def blocks(path: Path, tally: Tally) -> Iterator[str]:
    """The text of a file (UTF-8, UTF-16 with its mark, gzip of either) in blocks of about a million characters.

    Bytes that are no text become U+FFFD. A compressed file that ends early is noted. Raises `DataError` for a file
    that cannot be opened or read.
    """
    try:
        with _open(path) as file:
            start = file.read(4)
            encoding = next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")
            decode = codecs.getincrementaldecoder(encoding)(errors="replace").decode
            block = start
            while block:
                yield decode(block)
                try:
                    block = file.read(BLOCK)
                except (EOFError, zlib.error, gzip.BadGzipFile):
                    tally.add("the compressed file is damaged or was cut off; what came before was read")
                    break
            yield decode(b"", final=True)
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read: {reason}; check its permissions, or copy it again") from None


def head(path: Path) -> str:
    """The first block or so, to see what the file is; "" when it is empty."""
    text = ""
    for block in blocks(path, Tally()):
        text += block
        if len(text) > 4096:
            break
    return text


def is_binary(text: str) -> bool:
    """Whether what was decoded is no text: control characters and undecodable bytes."""
    sample = text[:65536]
    return len(_CONTROL.findall(sample)) > len(sample) // 20


def lines(path: Path, tally: Tally) -> Iterator[tuple[int, list[str]]]:
    """(number of the first, lines without their ends), many at a time. A line over `LONGEST` is noted, and "" here."""
    rest, number, skipping = "", 1, False
    for block in blocks(path, tally):
        first, *others = block.split("\n")
        if skipping:
            if not others:
                continue
            skipping, rest = False, ""
            first = ""
        rest += first
        if not others:
            if len(rest) > LONGEST:
                tally.add(f"skipped {{n}} lines of more than {LONGEST >> 20} million characters", number)
                rest, skipping = "", True
            continue
        complete = [rest, *others[:-1]]
        yield number, complete
        number += len(complete)
        rest = others[-1]
    if rest:
        yield number, [rest]


def _open(path: Path) -> BinaryIO:
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    packed = file.read(2) == _GZIP
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if packed else file  # type: ignore[return-value]
