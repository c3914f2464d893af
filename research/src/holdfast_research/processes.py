"""Commands as processes, some at a time, each with a log of its own and one thread; none is left behind."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Hashable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

Work = TypeVar("Work", bound=Hashable)


class Processes(Generic[Work]):
    """A context: however it ends, what still runs is told to stop, and waited for.

    >>> import sys, tempfile, time
    >>> log = Path(tempfile.mkdtemp()) / "one.log"
    >>> with Processes() as at_work:
    ...     at_work.start("one", [sys.executable, "-c", "print('error: no disk'); exit(2)"], log)
    ...     while not (ended := at_work.ended()):
    ...         time.sleep(0.01)
    >>> ended, reason(log, 2)
    ([('one', 2)], 'no disk')
    """

    def __init__(self) -> None:
        self._running: dict[Work, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()

    def __len__(self) -> int:
        return len(self._running)

    @property
    def running(self) -> tuple[Work, ...]:
        return tuple(self._running)

    def start(self, work: Work, command: Sequence[str], log: Path) -> None:
        """What it says goes to `log`, which begins anew."""
        log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            self._running[work] = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=environment)

    def ended(self) -> list[tuple[Work, int]]:
        """What has ended since the last look, with its exit code."""
        codes = [(work, process.poll()) for work, process in self._running.items()]
        done = [(work, code) for work, code in codes if code is not None]
        for work, _ in done:
            del self._running[work]
        return done


def reason(log: Path, code: int) -> str:
    """The error a process ended with, or the last line of its traceback."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = next((line.removeprefix("error: ") for line in reversed(lines) if line.startswith("error: ")), "")
    if said:
        return said
    ending = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    return f"{ending}; its last line: {lines[-1]}" if lines else ending
