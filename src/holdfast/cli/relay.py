"""A pipe that is read while its bytes pass on to standard output, as `tee` does."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import IO, Any

from holdfast.base.files import UNWRITABLE
from holdfast.cli.terminal import discard_stdout

_MOST = 1 << 16


class Relay(threading.Thread):
    """Copies a stream to standard output and to a file, at once and byte by byte, until it ends.

    Never stops the process that writes into the pipe: if standard output or the file can take no more, the stream is
    read all the same.

    Args:
        stream: what is piped in.
        path: the file to write.
    """

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        super().__init__(daemon=True)
        # Without the buffer, whose lock a waiting thread would hold when the program ends.
        self._stream: Any = getattr(stream, "raw", stream)
        self._path = path
        self.ended = threading.Event()
        self.problem: str | None = None
        """Why the file is not complete; None if it is."""
        self.size = 0
        """Bytes read so far."""
        self.in_line = False
        """Whether the last line that was passed on is not complete."""
        path.touch()

    def run(self) -> None:
        """Copy until the stream ends."""
        try:
            with self._path.open("wb", buffering=0) as file:
                passing = True
                while chunk := self._read():
                    passing = passing and _pass_on(chunk)
                    self.in_line = passing and not chunk.endswith(b"\n")
                    self._keep(file, chunk)
        finally:
            self.ended.set()

    def _read(self) -> bytes:
        try:
            return self._stream.read(_MOST) or b""
        except (OSError, ValueError):  # the other end is gone
            return b""

    def _keep(self, file: Any, chunk: bytes) -> None:
        if self.problem is None:
            try:
                file.write(chunk)
                self.size += len(chunk)
            except OSError as error:
                self.problem = UNWRITABLE.get(error.errno or 0, str(error))


def _pass_on(chunk: bytes) -> bool:
    """Write to standard output; False once nothing reads it any more."""
    try:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return True
    except OSError:
        discard_stdout()
        return False
