"""`report.html` of a run while it trains, rewritten for at most a hundredth of the time of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.run_folder import METRICS, REPORT
from holdfast.train.listener import Listener, StepResult

SHARE = 0.01
"""Largest fraction of the time of a run that its reports take."""
_FIRST = 0.5
"""Seconds that the first report is assumed to take: it loads the rules."""


class LiveReport(Listener):
    """Rewrites the report when the time since the last one is a hundred times its duration."""

    def __init__(self, run_dir: Path, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._note, self._clock = run_dir, note, clock
        self._due = clock() + _FIRST / SHARE
        self._noted: set[str] = set()

    def step(self, result: StepResult) -> None:
        """Write the report if it is due."""
        if self._clock() >= self._due:
            self.write(live=True)

    def close(self) -> None:
        """Write the report of the whole run."""
        self.write(live=False)

    def write(self, *, live: bool) -> None:
        """Write the report now. An error is noted once: a report must not end a run.

        An open page that is `live` shows what is written later.
        """
        if not (self._run_dir / METRICS).is_file():
            return  # stopped before anything happened
        started = self._clock()
        try:
            _write(self._run_dir, live)
        except Exception as error:
            if (message := f"{REPORT} was not written: {error}") not in self._noted:
                self._noted.add(message)
                self._note(message)
        finished = self._clock()
        self._due = finished + (finished - started) / SHARE


def _write(run_dir: Path, live: bool) -> None:
    # Loaded when there is something to report: a short run never needs it before its end.
    from holdfast.diagnose.diagnose import diagnose
    from holdfast.diagnose.readers import read_log
    from holdfast.diagnose.report import reported, write_report

    log = read_log(run_dir)
    write_report(run_dir / REPORT, [reported(log, diagnose(log), run_dir)], live=live)
