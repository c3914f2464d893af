"""`holdfast watch`: the newest rows and findings of a log that is still being written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.terminal import is_live, out
from holdfast.errors import ConfigError, DataError
from holdfast.listener import Listener, StepResult
from holdfast.run_folder import is_finished, is_run

if TYPE_CHECKING:
    from holdfast.diagnostics.log import Log

_ROWS = 12
"""Rows of a live table that are shown at the start; plain lines start with the last row."""


def watch(
    path: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or any log that [cyan]holdfast diagnose[/cyan] reads.")
    ],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Read the log every so many seconds.")] = 5.0,
) -> None:
    """Follow a run while it trains.

    Reads the log every few seconds. Prints each new row, and each finding as soon
    as the log shows it. Writes nothing, so it can also follow the run of another
    trainer or of another user.

    [cyan]holdfast watch runs/quickstart[/cyan]

    [cyan]holdfast watch output/verl.log --every 60[/cyan]

    Ends when a run of holdfast has finished, or with Ctrl-C. Exit codes: 0 no
    findings, 1 findings, 2 the path cannot be read.
    """
    from holdfast.cli.console import open_console

    console = out()
    with open_console(console, path) as listener:
        follower = _Follower(path, listener, rows=_ROWS if is_live(console) else 1)
        listener.stage("waiting for the first row")
        try:
            while True:
                finished = path.is_dir() and is_run(path) and is_finished(path)
                follower.look()
                if finished:
                    break
                time.sleep(every)
        except KeyboardInterrupt:
            pass
    if follower.findings:
        raise typer.Exit(1)


class _Follower:
    """Passes new rows and findings of a log to a listener."""

    def __init__(self, path: Path, listener: Listener, *, rows: int) -> None:
        self._path, self._listener, self._rows = path, listener, rows
        self._step: int | None = None
        self.findings: set[str] = set()
        """The codes found so far."""

    def look(self) -> None:
        """Read the log. Raises `DataError` if it cannot be read, unless it is still empty or being replaced."""
        log = self._read()
        if log is None or not len(log.steps):
            return
        from holdfast.diagnostics.diagnose import diagnose

        steps = [int(step) for step in log.steps]
        if self._step is None:
            total = log.settings.get("train.steps")
            self._listener.stage("watching", total if isinstance(total, int) else None)
            new = steps[-self._rows :]
        elif steps[-1] < self._step:  # a resumed run, whose log was cut back
            new = steps[-1:]
        else:
            new = [step for step in steps if step > self._step]
        self._step = steps[-1]
        for step in new:
            metrics = {
                name: float(series.values[at])
                for name, series in log.series.items()
                if (at := int(series.steps.searchsorted(step))) < len(series) and series.steps[at] == step
            }
            self._listener.step(StepResult(step=step, metrics=metrics))
        for finding in diagnose(log).findings if new else ():
            if finding.code not in self.findings:
                self.findings.add(finding.code)
                self._listener.finding(finding)

    def _read(self) -> Log | None:
        from holdfast.diagnostics.readers import read_logs

        try:
            logs = read_logs(self._path)
        except DataError:
            has_begun = self._step is not None  # then the file is being replaced right now
            if has_begun or is_run(self._path) or (self._path.is_file() and not self._path.stat().st_size):
                return None
            raise
        if len(logs) > 1:
            names = ", ".join(log.name for log in logs[:5])
            raise ConfigError(f"{self._path} holds {len(logs)} runs; watch one of them: {names}")
        return logs[0]
