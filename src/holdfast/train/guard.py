"""`holdfast diagnose` on a run while it trains: findings.json, new findings, whether to stop, and report.html."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast.base.run_folder import METRICS, REPORT, step_folder
from holdfast.diagnose.codes import chosen
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, Finding, write_findings
from holdfast.diagnose.follow import KeptPage, Pace
from holdfast.diagnose.log import Log
from holdfast.diagnose.monitor import Monitor, metrics_rows, raise_alerts
from holdfast.diagnose.readers import read_log
from holdfast.recipe import Config
from holdfast.recipe import Guard as GuardSettings
from holdfast.recipe.code import trusting
from holdfast.train.listener import Listener, StepResult
from holdfast.train.start_cache import from_model
from holdfast.train.tracking import MetricsFile


class Guard(Listener):
    """Reports new findings in the log of a run, also as alerts of its trackers, and whether the run must stop.

    Args:
        settings: which findings it acts on, and how.
        run_dir: of the run. Its metrics.jsonl, if any, has the steps before a resume.
        recipe: every setting of the run by its dotted name, for the texts of remedies.
        on_finding: is called with each new finding that the settings choose.
    """

    def __init__(
        self,
        settings: GuardSettings,
        run_dir: Path,
        *,
        recipe: dict[str, object],
        on_finding: Callable[[Finding], None],
    ) -> None:
        self.stop: Finding | None = None
        """The finding that the run must stop for; None while it may continue."""
        self._run_dir, self._on_finding = run_dir, on_finding
        self._codes = chosen(settings.codes, where="guard.codes")
        self._may_stop = settings.action == "stop"
        self._monitor = Monitor(name=run_dir.name, settings=recipe)
        # Findings before a resume were reported then.
        self._monitor.replay(metrics_rows(MetricsFile(run_dir / METRICS).read()))
        self._write()

    def step(self, result: StepResult) -> None:
        """Check the log with this step in it; report and write what is new."""
        new = self._monitor.observe(result.step, result.metrics)
        if new:
            self._write()
        for finding in new:
            if finding.code in self._codes:
                self._on_finding(finding)
                raise_alerts(finding)
                if self._may_stop and result.step:  # an evaluation before the first step has nothing to save
                    self.stop = self.stop or finding

    def close(self) -> None:
        """Write findings.json with the leads and facts of the whole run."""
        self._write()

    def _write(self) -> None:
        write_findings(self._run_dir, self._monitor.log(), self._monitor.diagnosis())


def why_stopped(finding: Finding, step: int, run_dir: Path, config: Config) -> str:
    """The message of a run that its guard has stopped after `step`. In a long log the finding's step may be earlier."""
    checkpoint = step_folder(run_dir, step)
    change = finding.remedy.replace("`", "")
    return (
        f"stopped by guard.codes after step {step}: {finding.code}. {finding.summary} The run is saved in "
        f"{checkpoint}. {change} To start a new run from its model: {from_model(config, checkpoint / 'model')}. To "
        f"continue it as before: holdfast resume {run_dir}{trusting(config)}"
    )


# ---- report.html

REPORT_SHARE = 0.01
"""Largest fraction of the time of a run that its reports take."""
_FIRST = 0.5
"""Seconds that the first report is assumed to take."""


class LiveReport(Listener):
    """Rewrites the report when the time since the last one is a hundred times its duration."""

    def __init__(self, run_dir: Path, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._page = KeptPage(run_dir / REPORT, note)
        self._pace = Pace(REPORT_SHARE, first=_FIRST, clock=clock)

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
