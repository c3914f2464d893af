"""Following a run while it trains: which findings are new, how often to look, and a page that is kept up to date.

The monitor, `holdfast watch` and the guard and the page of a run all follow like this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.report import reported, write_report


class News:
    """Which findings of a run that continues have not been reported yet."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, int]] = set()  # code, and the step from which on it is certain

    def of(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """The new ones, which are reported from now on. A note is none, and neither is what the newest row decides."""
        new = tuple(
            finding
            for finding in findings
            if finding.level == "finding"
            and not finding.by_verdict
            and (finding.code, finding.certain) not in self._reported
        )
        self._reported |= {(finding.code, finding.certain) for finding in new}
        return new

    def forget_from(self, step: int) -> None:
        """A resumed run makes this step and later ones again: what was certain from them on is found again."""
        self._reported = {(code, certain) for code, certain in self._reported if certain < step}


class Pace:
    """When to work next, so that work takes at most a share of the time, however long the log is.

    Args:
        share: of the time.
        first: seconds that the first work is assumed to take.
        clock: seconds.
    """

    def __init__(self, share: float, *, first: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._share, self._clock = share, clock
        self._due = clock() + first / share

    @property
    def seconds_left(self) -> float:
        """Until the next work is due; 0 if it is."""
        return max(self._due - self._clock(), 0.0)

    @contextmanager
    def working(self) -> Iterator[None]:
        """The work itself."""
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._due = ended + (ended - began) / self._share


class KeptPage:
    """A report that is written again while its run continues.

    An error is noted once: a page must stop neither a run nor the pipe that a trainer writes to.

    Args:
        path: the file.
        note: gets an error as a sentence.
    """

    def __init__(self, path: Path, note: Callable[[str], None]) -> None:
        self.path, self._note = path, note
        self._noted: set[str] = set()

    def write(self, read: Callable[[], tuple[Log, Diagnosis, str | Path | None]], *, live: bool) -> None:
        """Write the page of what `read` returns: a log, its diagnosis, and where it is. An open page that is `live`
        shows what is written later."""
        try:
            write_report(self.path, [reported(*read())], live=live)
        except Exception as error:
            if (message := f"{self.path.name} was not written: {error}") not in self._noted:
                self._noted.add(message)
                self._note(message)
