"""`holdfast watch`: findings in a log that is still being written, or that comes through a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import IO, TYPE_CHECKING, Annotated

import typer

from holdfast.base.errors import ConfigError, DataError
from holdfast.base.run_folder import is_finished, is_run
from holdfast.cli.findings import show
from holdfast.cli.pages import LivePage
from holdfast.cli.relay import Relay
from holdfast.cli.sources import STDIN, is_stream, path_of
from holdfast.cli.terminal import err, is_live, out, program
from holdfast.train.listener import Listener, StepResult

if TYPE_CHECKING:
    from holdfast.diagnose.finding import Finding
    from holdfast.diagnose.log import Log

_ROWS = 12
"""Rows of a live table that are shown at the start; plain lines start with the last row."""
_REST = 20
"""Reading a log takes at most one part in this many of the time, however long the log is."""
_SERVICE = 30.0
"""Fewest seconds between two requests to a service."""
_COMMAND_SECONDS = 60.0
"""Seconds that the command of --exec may take."""
_DEPTH, _MOST_FILES = 3, 10_000

OnFinding = Callable[["Finding", "Log"], None]


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

    The page of --html is that of [cyan]holdfast report[/cyan]. While it is open, it shows
    new rows by itself, without a server. When watch ends, the page is final.

    With a pipe, watch copies its input to standard output unchanged, like `tee`,
    and prints findings and the final diagnosis on standard error. Ctrl-C stops
    the trainer; watch then waits for its last output. Ctrl-C again stops watch.

    The command of --exec gets the finding as JSON on standard input, and in the
    environment variables HOLDFAST_CODE, HOLDFAST_STEP, HOLDFAST_SUMMARY and
    HOLDFAST_RUN.

    Ends when the pipe ends, when a run of holdfast is finished, or with Ctrl-C.

    Exit codes: 0 no findings, 1 findings, 2 the log cannot be read.
    """
    if source is None and sys.stdin.isatty():
        raise ConfigError("no log is given", hint=f"python train.py 2>&1 | {program()} watch -")
    source = source or STDIN
    on_finding = _ignore if command is None else _runner(command)
    live = None if page is None else LivePage(page, source)
    follow = _watch_stream if is_stream(source) else _watch_log
    try:
        has_findings = follow(source, every, on_finding, live)
    finally:
        if live is not None:
            live.finish()
    if has_findings:
        raise typer.Exit(1)


# ---- a log that grows


def _watch_log(source: str, every: float, on_finding: OnFinding, live: LivePage | None) -> bool:
    """Follow a file, a folder or a service until Ctrl-C, or the end of a run of holdfast. Returns whether there are
    findings."""
    from holdfast.cli.console import open_console
    from holdfast.diagnose.readers import read_logs

    path = path_of(source)
    console = out()
    with open_console(console, path or source) as listener:
        follower = Follower(
            lambda: read_logs(path or source),
            listener,
            on_finding,
            rows=_ROWS if is_live(console) else 1,
            several=path is None or path.is_dir(),
            live=live,
        )
        notice = _WaitNotice(path, listener)
        page = None if live is None else live.path.resolve()
        before: object = None
        try:
            while True:
                finished = path is not None and path.is_dir() and is_run(path) and is_finished(path)
                state = None if path is None else tuple(_state_of(path, page))
                began = perf_counter()
                if finished or path is None or state != before:
                    before = state
                    try:
                        follower.look()
                    except DataError as error:
                        notice.explain(error, has_begun=follower.has_begun)
                    if not follower.has_begun:
                        notice.for_a_row()
                if finished:
                    break
                pause = every if path else max(every, _SERVICE)
                sleep(max(pause, _REST * (perf_counter() - began)))
        except KeyboardInterrupt:
            pass
    if follower.has_findings:
        console.print(f"To read more: {program()} diagnose {path or source}", soft_wrap=True)
    return follower.has_findings


def _state_of(path: Path, page: Path | None, depth: int = _DEPTH) -> Iterator[tuple[str, int, int, int]]:
    """(name, size, time of change, inode) of a log's files: a change of one means that the log has changed. Our own
    page may be among them, and is left out."""
    try:
        if page is not None and path.name == page.name and path.resolve() == page:
            return
        if path.is_dir():
            for inner in sorted(path.iterdir())[:_MOST_FILES] if depth else ():
                yield from _state_of(inner, page, depth - 1)
            return
        for file in (path, path.with_name(path.name + "-wal")):  # where SQLite writes first
            if file.exists():
                status = file.stat()
                yield file.name, status.st_size, status.st_mtime_ns, status.st_ino
    except OSError:  # it is being replaced right now
        return


class _WaitNotice:
    """Says once why there is nothing to show yet, or any more. Raises for a log that will never come."""

    def __init__(self, path: Path | None, listener: Listener) -> None:
        self._path, self._listener, self._reason = path, listener, ""
        self._said = False

    def for_a_row(self) -> None:
        if not self._said:
            self._listener.stage("waiting for the first row")
        self._said = True

    def explain(self, error: DataError, *, has_begun: bool) -> None:
        gone = self._path is not None and not self._path.exists()
        if not has_begun and (self._path is None or gone or not _may_grow(self._path)):
            raise error
        is_new = self._path is not None and (is_run(self._path) or _is_empty(self._path))
        reason = f"{self._path} is gone" if gone else "" if is_new else str(error).partition(". ")[0]
        if reason and reason != self._reason:
            self._listener.note(f"{reason}; waiting")
        self._reason = reason


def _may_grow(path: Path) -> bool:
    """Whether a log may still appear in a path that cannot be read now: a folder, or a file of text."""
    from holdfast.diagnose.readers.text import head, is_binary

    try:
        return path.is_dir() or not is_binary(head(path))
    except DataError:
        return False


def _is_empty(path: Path) -> bool:
    return path.is_file() and not path.stat().st_size


class Follower:
    """Passes new rows and findings of a log to a listener.

    Args:
        read: reads the log. The last of its runs is followed.
        listener: gets new rows and findings.
        on_finding: is called with each new finding and the log.
        rows: how many rows it passes on at the first look, the last ones.
        several: whether several runs are an error. In a file the last run is followed instead.
        live: a page that is kept up to date.
    """

    def __init__(
        self,
        read: Callable[[], tuple[Log, ...]],
        listener: Listener,
        on_finding: OnFinding,
        *,
        rows: int = 1,
        several: bool = False,
        live: LivePage | None = None,
    ) -> None:
        self._read, self._listener, self._on_finding = read, listener, on_finding
        self._rows, self._several, self._live = rows, several, live
        self._step: int | None = None
        self._name = ""
        self._known: dict[str, int] = {}  # code -> step
        self.has_findings = False
        """Whether there was a finding."""

    @property
    def has_begun(self) -> bool:
        """Whether a row was read."""
        return self._step is not None

    def look(self) -> None:
        """Read the log. Raises `DataError` if it cannot be read."""
        self.take(self._read())

    def take(self, logs: tuple[Log, ...]) -> None:
        """Pass on what is new in the log, as it was read."""
        log = self._run_of(logs)
        if not len(log.steps):
            return
        from holdfast.diagnose.diagnose import diagnose

        if log.name != self._name:
            self._name, self._step, self._known = log.name, None, {}
        new = self._new_steps([int(step) for step in log.steps], log)
        self._step = log.last_step
        for step in new:
            self._listener.step(StepResult(step=step, metrics=_metrics_at(log, step)))
        diagnosis = diagnose(log)
        if self._live is not None:
            self._live.show(log, diagnosis)
        for finding in diagnosis.findings:
            if finding.code not in self._known:
                self._known[finding.code] = finding.step
                self.has_findings = True
                self._listener.finding(finding)
                self._on_finding(finding, log)

    def _new_steps(self, steps: list[int], log: Log) -> list[int]:
        if self._step is None:
            total = log.settings.get("train.steps")
            self._listener.stage("watching", total if isinstance(total, int) else None)
            return steps[-self._rows :]
        if steps[-1] < self._step:
            self._listener.note(f"the log went back from step {self._step} to step {steps[-1]}")
            self._known = {code: step for code, step in self._known.items() if step <= steps[-1]}
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


def _watch_stream(source: str, every: float, on_finding: OnFinding, live: LivePage | None) -> bool:
    """Pass a pipe on until it ends, and report what its log shows. Returns whether there are findings."""
    from holdfast.diagnose.diagnose import diagnose

    with _stream_of(source) as stream, TemporaryDirectory(prefix="holdfast-") as folder:
        path = Path(folder) / "stdin"  # a log is read more than once
        relay = Relay(stream, path)
        follower = Follower(lambda: _read_piped(path), _Alarms(relay), on_finding, live=live)
        _until_the_end(relay, follower, every)
        if relay.problem:
            raise ConfigError(
                f"all output was passed on, but only a part of it could be stored for the diagnosis: {relay.problem}",
                hint="set TMPDIR to a folder with more space",
            )
        logs = _read_piped(path)
        follower.take(logs)
        for log in logs:
            err().print()
            show(err(), log, diagnose(log), verbose=False)
        return follower.has_findings


@contextmanager
def _stream_of(source: str) -> Iterator[IO[bytes]]:
    if source == STDIN:
        yield sys.stdin.buffer
    else:
        with Path(source).open("rb", buffering=0) as stream:
            yield stream


def _read_piped(path: Path) -> tuple[Log, ...]:
    """The logs in what came through the pipe so far. Errors name the pipe, not the file."""
    from holdfast.diagnose.readers import read_logs

    try:
        return read_logs(path)
    except DataError as error:
        raise DataError(str(error).replace(str(path), "the pipe")) from None


def _until_the_end(relay: Relay, follower: Follower, every: float) -> None:
    """Pass on what comes and look at it every so often, until the pipe ends or Ctrl-C was pressed twice."""
    seen, pause = 0, every
    with _second_ctrl_c_stops():
        relay.start()
        while not relay.ended.wait(pause):
            if relay.size == seen:
                continue
            began, seen = perf_counter(), relay.size
            with suppress(DataError):  # nothing to read yet
                follower.look()
            pause = max(every, _REST * (perf_counter() - began))


@contextmanager
def _second_ctrl_c_stops() -> Iterator[None]:
    """The first Ctrl-C, which the trainer gets too, only prints that a second one ends the block."""
    count = 0

    def interrupt(*_: object) -> None:
        nonlocal count
        count += 1
        if count > 1:
            raise KeyboardInterrupt
        os.write(2, b"holdfast: waiting for the end of the pipe; Ctrl-C again stops now\n")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Alarms(Listener):
    """Prints each finding to standard error, on a line of its own."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def finding(self, finding: Finding) -> None:
        """Print the finding and what to change."""
        start = "\n" if self._relay.in_line and sys.stdout.isatty() and sys.stderr.isatty() else ""
        err().print(f"{start}holdfast: {in_a_line(finding)}", soft_wrap=True)


# ---- findings


def in_a_line(finding: Finding) -> str:
    """Code, step, what happened and what to change."""
    change = finding.remedy.replace("`", "")
    return f"{finding.code} at step {finding.step}: {finding.summary} {change}".rstrip()


def _ignore(finding: Finding, log: Log) -> None:
    """Do nothing with a finding."""


def _runner(command: str) -> OnFinding:
    """A function that runs a shell command on a finding. A command that fails gives a warning."""

    def run(finding: Finding, log: Log) -> None:
        from holdfast.diagnose.finding import finding_json, to_text

        variables = {
            "HOLDFAST_CODE": finding.code,
            "HOLDFAST_STEP": str(finding.step),
            "HOLDFAST_SUMMARY": finding.summary,
            "HOLDFAST_RUN": log.name,
        }
        text = to_text({"name": log.name} | finding_json(finding))
        try:
            # Its output must not mix with a log that is passed on.
            done = subprocess.run(
                command,
                shell=True,
                input=text.encode("utf-8", errors="backslashreplace"),
                stdout=2,
                env=os.environ | variables,
                timeout=_COMMAND_SECONDS,
                check=False,
            )
            problem = f"ended with exit code {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"did not end within {_COMMAND_SECONDS:.0f} s"
        except OSError as error:
            problem = f"could not be run: {error.strerror}"
        if problem:
            err().print(f"holdfast: the command of --exec {problem}, on {finding.code}: {command}", soft_wrap=True)

    return run
