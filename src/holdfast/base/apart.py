"""Work on what others wrote, in a copy of this process that the system bounds: neither C nor Jinja does itself."""

from __future__ import annotations

import faulthandler
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

_NO_MEMORY, _RAISED = 3, 4


class TooCostly(Exception):
    """The work took more than it may, or crashed."""

    def __init__(self, is_time: bool) -> None:
        super().__init__(is_time)
        self.is_time = is_time
        """Too much time; otherwise too much memory, or it broke what it runs in."""


def apart(work: Callable[[], bytes], cpu_seconds: int, more_bytes: int) -> bytes:
    """What `work` returns, computed within the limits. Raises `TooCostly`, and `RuntimeError` for what `work` raises.

    `more_bytes` come on top of what this process has, where the system says how much (Linux). Without copies of
    processes (Windows) the work is done here, without limits.
    """
    if not hasattr(os, "fork"):
        return work()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, for none of which the copy waits
        child = os.fork()
    if child == 0:
        code = _NO_MEMORY
        try:
            os.close(reading)
            faulthandler.disable()  # a crash here is an answer
            _limit(cpu_seconds, more_bytes)
            try:
                result, ended = work(), 0
            except Exception as error:
                if isinstance(error, MemoryError):
                    raise
                result, ended = f"{type(error).__name__}: {error}".encode(errors="replace"), _RAISED
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(result)
            code = ended
        finally:
            os._exit(code)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as pipe:
            result = pipe.read()
    finally:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended == _RAISED:
        raise RuntimeError(result.decode())
    if ended:
        raise TooCostly(ended in (-signal.SIGXCPU, -signal.SIGKILL))
    return result


def _limit(cpu_seconds: int, more_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if (pages := Path("/proc/self/statm")).exists():
        used = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes,) * 2)
