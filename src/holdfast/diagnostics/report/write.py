"""Writing the report: plotly.js inside, one copy a file; the old file or the new one is there, never half of one."""

from __future__ import annotations

import base64
import gzip
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

from holdfast import __version__
from holdfast.diagnostics.finding import Diagnosis
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.report.page import HEAD, html
from holdfast.diagnostics.report.samples import read_changes, read_episodes
from holdfast.diagnostics.report.values import ReportedRun
from holdfast.errors import ConfigError, DataError, MissingExtra


def reported(log: Log, diagnosis: Diagnosis, path: str | Path | None = None) -> ReportedRun:
    """A run with the samples its folder holds.

    `path` is what the log was read from: the run's folder, a file in it, or a folder of runs; None is for a log
    that has no samples beside it.
    """
    if path is None:
        return ReportedRun(log=log, diagnosis=diagnosis)
    path = Path(path)
    folder = next((place for place in (path / log.name, path) if place.is_dir()), path.parent)
    return ReportedRun(log=log, diagnosis=diagnosis, episodes=read_episodes(folder), changes=read_changes(folder))


def write_report(path: str | Path, runs: Sequence[ReportedRun]) -> Path:
    """Write the page; several runs are overlaid. Returns its path.

    Raises `MissingExtra` without plotly, `DataError` without a run that has a series, and `ConfigError` when the file
    cannot be written.
    """
    path = Path(path)
    if not any(len(series) for run in runs for series in run.log.series.values()):
        raise DataError(f"{path} is not written: no log holds a number at any step, so there is nothing to draw")
    page = html(_told_apart(runs), plotly=_plotly(), foot=_foot())
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half a surrogate pair, which UTF-8 cannot hold, becomes its escape.
        temporary.write_text(page, encoding="utf-8", errors="backslashreplace", newline="\n")
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ConfigError(
            f"the report {path} cannot be written ({error.strerror}); name a file in a folder that can"
        ) from error
    return path


def is_replaceable(path: Path) -> bool:
    """Whether a page may be written at `path`: nothing is there, or another report. Anything else is somebody's."""
    try:
        if not path.exists():
            return True
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(HEAD)) == HEAD.encode()
    except OSError:
        return False


def _told_apart(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs with a number behind a name that came before."""
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.log.name] += 1
        count = seen[run.log.name]
        named.append(run if count == 1 else replace(run, log=replace(run.log, name=f"{run.log.name} ({count})")))
    return named


@cache
def _plotly() -> str:
    """plotly.js as the package ships it, gzipped: 2 MB of a page instead of 5."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise MissingExtra("plotly", "report") from None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def _foot() -> list[str]:
    command = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
    versions = f"holdfast {__version__}, plotly {version('plotly')}, Python {sys.version.split()[0]}"
    return [f"Written {time.strftime('%Y-%m-%d %H:%M')} by {command}", versions]
