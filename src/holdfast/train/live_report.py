"""`report.html` of a run while it trains, rewritten for at most a hundredth of the time of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.run_folder import METRICS, REPORT
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.follow import KeptPage, Pace
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log
from holdfast.train.listener import Listener, StepResult

SHARE = 0.01
"""Largest fraction of the time of a run that its reports take."""
_FIRST = 0.5
"""Seconds that the first report is assumed to take."""


class LiveReport(Listener):
    """Rewrites the report when the time since the last one is a hundred times its duration."""

    def __init__(self, run_dir: Path, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._page = KeptPage(run_dir / REPORT, note)
        self._pace = Pace(SHARE, first=_FIRST, clock=clock)

    def step(self, result: StepResult) -> None:
        """Write the report if it is due."""
        if not self._pace.seconds_left:
            self.write(live=True)

    def close(self) -> None:
        """Write the report of the whole run."""
        self.write(live=False)

    def write(self, *, live: bool) -> None:
        """Write the report now."""
        if (self._run_dir / METRICS).is_file():  # else it was stopped before anything happened
            with self._pace.working():
                self._page.write(self._read, live=live)

    def _read(self) -> tuple[Log, Diagnosis, Path]:
        log = read_log(self._run_dir)
        return log, diagnose(log), self._run_dir
