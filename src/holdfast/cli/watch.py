"""`holdfast watch`: findings in a log that is still being written, or that comes through a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Annotated

import typer

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.run_folder import is_finished, is_run
from holdfast.cli.console import open_console
from holdfast.cli.findings import show
from holdfast.cli.sources import STDIN, NameOption, check_page, given_names, is_stream, path_of, stdin
from holdfast.cli.terminal import err, is_live, out, program
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, Finding, finding_json, to_text
from holdfast.diagnose.follow import KeptPage, News, Pace
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_logs
from holdfast.train.listener import Listener, StepResult

_ROWS = 12
"""Rows of a live table that are shown at the start; plain lines start with the last row."""
_SHARE = 0.05
"""Largest fraction of the time that reading a log takes."""
_SERVICE = 30.0
"""Fewest seconds between two requests to a service."""
_COMMAND_SECONDS = 60.0
"""Seconds that the command of --exec may take."""

OnFinding = Callable[[Finding, Log], None]
Given = Mapping[str, str]
"""What `--name` gives: ours -> the log's."""


def watch(
    source: Annotated[
        str | None,
        typer.Argument(metavar="LOG", help="Any log that [cyan]holdfast diagnose[/cyan] reads; `-` is standard input."),
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often to read the log again.")] = 5.0,
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="COMMAND", help="Run this shell command on each new finding."),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Also write a page with curves and findings, and keep it up to date."
        ),
    ] = None,
    name: NameOption = None,
) -> None:
    """Follow a run while it trains, and report findings as they come.

    [cyan]holdfast watch runs/quickstart[/cyan]

    [cyan]holdfast watch output/verl.log --every 60[/cyan]

    [cyan]python train.py 2>&1 | holdfast watch -[/cyan]

    [cyan]holdfast watch train.log --exec 'notify-send "$HOLDFAST_SUMMARY"'[/cyan]

    [cyan]holdfast watch train.log --html page.html[/cyan]     curves that grow in a browser

    Reads the log again whenever it changes, and prints new rows and findings.
    Writes nothing unless --html names a page, so it can also follow the run of
    another user.

    The page of --html is the page of [cyan]holdfast report[/cyan]. While it is open, it shows
    new rows by itself, without a server. When watch ends, the page is final.

    With a pipe, watch copies its input to standard output unchanged, like `tee`,
    and prints findings and the final diagnosis on standard error. Ctrl-C stops
    the trainer; watch ends after its last output.

    The command of --exec gets the finding as JSON on standard input, and in the
    environment variables HOLDFAST_CODE, HOLDFAST_STEP, HOLDFAST_SUMMARY and
    HOLDFAST_RUN. docs/reference/diagnose.md has commands for Slack, Discord
    and mail.

    Ends when the pipe ends, when a run of holdfast is finished, or with Ctrl-C.

    Exit codes: as for [cyan]holdfast diagnose[/cyan]; findings that have passed count too.
    """
    if source is None and stdin().isatty():
        raise ConfigError("no log is given", hint=f"python train.py 2>&1 | {program()} watch -")
    source = source or STDIN
    on_finding: OnFinding = _runner(command) if command else lambda finding, log: None
    live = None if page is None else LivePage(page, source)
    follow = _watch_pipe if is_stream(source) else _watch_log
    try:
        is_ok = follow(source, every, on_finding, live, given_names(name))
    finally:
        if live is not None:
            live.finish()
    if not is_ok:
        raise typer.Exit(1)


# ---- a log that grows


def _watch_log(source: str, every: float, on_finding: OnFinding, live: LivePage | None, given: Given) -> bool:
    """Follow a file, a folder or a service until Ctrl-C, or the end of a run of holdfast. Returns whether all
    is well."""
    path = path_of(source)
    pause = every if path else max(every, _SERVICE)
    console = out()
    with open_console(console, path or source) as listener, suppress(KeyboardInterrupt):
        rows, in_folder = _ROWS if is_live(console) else 1, path is None or path.is_dir()
        follower = Follower(listener, on_finding, rows=rows, several=in_folder, live=live)
        pace, waiting, seen = Pace(_SHARE), "", None
        finished = False
        while not finished:
            finished = path is not None and is_run(path) and is_finished(path)
            size = _size(path)
            try:
                if size is None or size != seen:
                    with pace.working():
                        follower.take(read_logs(path or source, given))
                    seen = size
                reason = "" if follower.has_begun else "there is no row yet"
            except DataError as error:
                if not follower.has_begun and (path is None or not path.exists()):
                    raise
                reason = str(error).partition(". ")[0]
            if reason not in ("", waiting):
                listener.note(f"{reason}; waiting")
            waiting = reason
            if not finished:
                sleep(max(pause, pace.seconds_left))
    if not follower.is_ok:
        console.print(f"To read more: {program()} diagnose {path or source}", soft_wrap=True)
    return follower.is_ok


def _size(path: Path | None) -> tuple[int, int] | None:
    """Size and time of change of a file; None for anything else, which is read at each look."""
    if path is None or not path.is_file() or path.with_name(f"{path.name}-wal").exists():  # SQLite writes there first
        return None
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class Follower:
    """Passes new rows and findings of a log to a listener.

    Args:
        listener: gets new rows and findings.
        on_finding: is called with each new finding and the log.
        rows: how many rows it passes on at the first look, the last ones.
        several: whether several runs are an error. In a file the last run is followed instead.
        live: a page that is kept up to date.
    """

    def __init__(
        self, listener: Listener, on_finding: OnFinding, *, rows: int = 1, several: bool = False, live: LivePage | None
    ) -> None:
        self._listener, self._on_finding = listener, on_finding
        self._rows, self._several, self._live = rows, several, live
        self._step: int | None = None
        self._name = ""
        self._news, self._has_findings = News(), False
        self.is_ok = True
        """Whether there was no finding, and the run is neither flat nor broken, nor did it fall."""

    @property
    def has_begun(self) -> bool:
        """Whether a row was read."""
        return self._step is not None

    def take(self, logs: tuple[Log, ...]) -> None:
        """Pass on what is new in the log, as it was read. Raises `ConfigError` for several runs."""
        log = self._run_of(logs)
        if not len(log.steps):
            return
        if log.name != self._name:
            self._name, self._step, self._news = log.name, None, News()
        new = self._new_steps([int(step) for step in log.steps], log)
        self._step = log.last_step
        for step in new:
            self._listener.step(StepResult(step=step, metrics=_metrics_at(log, step)))
        diagnosis = diagnose(log)
        if self._live is not None and new:
            self._live.show(log, diagnosis)
        for finding in self._news.of(diagnosis.findings):
            self._has_findings = True
            self._listener.finding(finding)
            self._on_finding(finding, log)
        self.is_ok = diagnosis.is_ok and not self._has_findings

    def _new_steps(self, steps: list[int], log: Log) -> list[int]:
        if self._step is None:
            total = log.settings.get("train.steps")
            self._listener.stage("watching", total if isinstance(total, int) else None)
            return steps[-self._rows :]
        if steps[-1] < self._step:
            self._listener.note(f"the log jumped back from step {self._step} to step {steps[-1]}")
            self._news.forget_from(steps[-1] + 1)
            return steps[-1:]
        return steps[bisect_right(steps, self._step) :]

    def _run_of(self, logs: tuple[Log, ...]) -> Log:
        """The run to follow: the last one of a file, in which a later run may begin; otherwise the same as before."""
        if not self._several:
            return logs[-1]
        same = [log for log in logs if log.name == self._name] or list(logs)
        if len(same) > 1:
            names = ", ".join(log.name for log in logs[:5])
            raise ConfigError(f"there are {len(logs)} runs here; watch one of them: {names}")
        return same[0]


def _metrics_at(log: Log, step: int) -> dict[str, float]:
    return {
        name: float(series.values[at])
        for name, series in log.series.items()
        if (at := int(series.steps.searchsorted(step))) < len(series) and series.steps[at] == step
    }


# ---- a pipe


def _watch_pipe(source: str, every: float, on_finding: OnFinding, live: LivePage | None, given: Given) -> bool:
    """Pass a pipe on until it ends, and report what its log shows. Returns whether all is well."""
    # Opened here, where a pipe that cannot be read is an error at once.
    with nullcontext(stdin()) if source == STDIN else open(source, "rb") as stream, TemporaryDirectory() as folder:
        path = Path(folder) / "pipe"  # a file, because a log is read more than once
        path.touch()
        # Ctrl-C reaches the trainer too, whose last output ends the pipe. If nothing reads the output, or the disk is
        # full, `tee` goes on, because Python ignores SIGPIPE and hands that down: the trainer must not stop for it.
        before = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            pace, seen = Pace(_SHARE), _size(path)  # of the empty file: `tee` may be done before the first look
            tee = subprocess.Popen(["tee", "-i", path], stdin=stream, restore_signals=False)
            follower = Follower(_Alarms(), on_finding, live=live)
            while _still_runs(tee, max(every, pace.seconds_left)):
                size = _size(path)
                if size != seen:
                    with pace.working(), suppress(DataError):  # nothing to read yet
                        follower.take(_read_piped(path, given))
                    seen = size
            logs = _read_piped(path, given)
        finally:
            signal.signal(signal.SIGINT, before)
    follower.take(logs)
    for log in logs:
        err().print()
        show(err(), log, diagnose(log), verbose=False)
    return follower.is_ok


def _still_runs(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process. Returns whether it still runs after `seconds`."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _read_piped(path: Path, given: Given) -> tuple[Log, ...]:
    """The logs in what came through the pipe so far. Errors name the pipe, not the file."""
    try:
        return read_logs(path, given)
    except DataError as error:
        raise DataError(str(error).replace(str(path), "the pipe")) from None


class _Alarms(Listener):
    """Prints each finding to standard error, on a line of its own."""

    def finding(self, finding: Finding) -> None:
        """Print code, step, what happened and what to change."""
        if sys.stderr.isatty():
            err().print()  # a progress bar leaves its line open
        change = finding.remedy.replace("`", "")
        text = f"holdfast: {finding.code} at step {finding.step}: {finding.summary} {change}"
        err().print(text.rstrip(), soft_wrap=True)


# ---- a page, and a command on a finding


class LivePage:
    """A report that is written again at every look at a log, and a last time as final.

    Args:
        page: the file. Raises `ConfigError` if the log or another file is there.
        source: the log, as the user named it.
    """

    def __init__(self, page: Path, source: str) -> None:
        check_page(page, [source], "--html")
        self._page = KeptPage(page, lambda said: err().print(f"holdfast: {said}", soft_wrap=True))
        self._folder = path_of(source)
        self._last: tuple[Log, Diagnosis, Path | None] | None = None

    def show(self, log: Log, diagnosis: Diagnosis) -> None:
        """Write the page."""
        last = self._last = log, diagnosis, self._folder
        self._page.write(lambda: last, live=True)

    def finish(self) -> None:
        """Write the page as final. Without a row there is none."""
        if (last := self._last) is not None:
            self._page.write(lambda: last, live=False)


def _runner(command: str) -> OnFinding:
    """A function that runs a shell command on a finding. A command that fails gives a warning."""

    def run(finding: Finding, log: Log) -> None:
        variables = {
            "HOLDFAST_CODE": finding.code,
            "HOLDFAST_STEP": str(finding.step),
            "HOLDFAST_SUMMARY": finding.summary,
            "HOLDFAST_RUN": log.name,
        }
        text, stderr = to_text({"name": log.name} | finding_json(finding)), 2  # a log is on standard output
        try:
            subprocess.run(
                command,
                shell=True,
                input=text.encode(),
                stdout=stderr,
                env=os.environ | variables,
                timeout=_COMMAND_SECONDS,
                check=True,
            )
        except subprocess.SubprocessError as error:
            err().print(f"holdfast: --exec, on {finding.code}: {error}", soft_wrap=True)

    return run
