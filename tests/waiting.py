"""One way to wait for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

PAUSE = 0.05


def wait_for(
    condition: Callable[[], Any], *, minutes: float, process: Popen[Any] | None = None, log: Path | None = None
) -> Any:
    """The first true value of `condition`. An `OSError` of it is a server that does not listen yet.

    Fails with the end of `log` after so many minutes, and at once when `process` has ended: it is dead, or has passed
    by what was waited for.
    """
    end = time.monotonic() + 60 * minutes
    while True:
        ended = None if process is None else process.poll()  # asked first: its last deed may be the answer
        with suppress(OSError):
            if value := condition():
                return value
        if ended is not None or time.monotonic() > end:
            what = f"nothing after {minutes} minutes" if ended is None else f"the process has ended with code {ended}"
            said = log.read_text(errors="replace")[-6000:] if log is not None else ""
            pytest.fail(f"{what}\n{said}")
        time.sleep(PAUSE)
