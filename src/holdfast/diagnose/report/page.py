"""`report.html`: one self-contained file, which needs neither a network nor a library."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.base.errors import ConfigError, DataError
from holdfast.base.files import write_whole
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers.rollouts.files import Rollouts, rollouts_beside, run_folder
from holdfast.diagnose.readers.same_run import with_unique_names
from holdfast.diagnose.report import parts
from holdfast.diagnose.report.data import page_data
from holdfast.diagnose.report.samples import ReportedRun, read_changes

LOOK_EVERY = 5.0
"""Seconds between two looks of an open page at its file, while the page is live."""


def reported(
    log: Log, diagnosis: Diagnosis, path: str | Path | None = None, rollouts: Rollouts | None = None
) -> ReportedRun:
    """A run with the samples in its folder.

    `path` is where the log was read from: the folder of the run, a file in it, or a folder of runs. With None, the
    report has no samples. `rollouts` are those of this path, if they have been read.
    """
    if path is None:
        return ReportedRun(log=log, diagnosis=diagnosis)
    path = Path(path)
    read = rollouts_beside()(path, log.name) if rollouts is None else rollouts
    return ReportedRun(
        log=log,
        diagnosis=diagnosis,
        rollouts=read.rollouts,
        changes=read_changes(run_folder(path, log.name)),
    )


def write_report(path: str | Path, runs: Sequence[ReportedRun], *, live: bool = False) -> Path:
    """Write the page and return its path. Several runs are drawn over each other.

    A page that is `live` says so, and an open one shows what is written later, until a page that is not live is
    written. The file is replaced whole.

    Raises `DataError` if no run has a series, and `ConfigError` if the file cannot be written.
    """
    path = Path(path)
    if not any(len(series) for run in runs for series in run.log.series.values()):
        raise DataError(f"{path} is not written: no log has a number at any step, so there is nothing to draw")
    logs = with_unique_names([run.log for run in runs])
    named = [replace(run, log=log) for run, log in zip(runs, logs, strict=True)]
    page = html(named, foot=_foot(), key=_key(path.resolve()), live=live)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page)
    except OSError as error:
        raise ConfigError(
            f"the report {path} cannot be written ({error.strerror}); name a file in a folder that can"
        ) from error
    return path


def is_replaceable(path: Path) -> bool:
    """Whether a page may be written to `path`: the file does not exist, or is an earlier report."""
    try:
        if not path.exists():
            return True
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(HEAD)) == HEAD.encode()
    except OSError:
        return False


@cache
def _key(path: Path) -> str:
    """What only pages know that this process has written to this path. By `file:` any page may put any other into a
    frame, and a report answers only the one that knows its key."""
    return secrets.token_hex(16)


def _foot() -> str:
    """When and by what the page was written. Not the command line: pages are shared, and it may hold a secret."""
    return f"Written {time.strftime('%Y-%m-%d %H:%M')} by holdfast {__version__}, Python {sys.version.split()[0]}."


HEAD = "<!doctype html>\n<!-- holdfast report -->\n"
"""How every report begins. No other file is overwritten."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "frame-src 'self' file:"  # a live page looks at its own file
)
_SCRIPTS = ("state", "shown", "chart", "hover", "rollouts", "live", "page")
_LIVE = '<p class="live">Live: this page updates by itself. <span id="age"></span></p>'
_FINAL = "This page is final and will not change."


def html(runs: Sequence[ReportedRun], *, foot: str, key: str, live: bool = False) -> str:
    """The whole file. `foot` is a closing line, `key` what an earlier page at the same path knows too."""
    title = runs[0].log.name if len(runs) == 1 else f"{len(runs)} runs"
    data = page_data(runs, whole=not live) | {
        "live": LOOK_EVERY if live else None,
        "written": round(time.time(), 3),
        "key": key,
    }
    closing = [foot] if live else [foot, _FINAL]
    if len(runs) == 1:
        top, results = [parts.course(runs[0])], [parts.findings(runs[0], data), parts.remarks(runs)]
    else:
        top, results = [parts.comparison(runs, data["rollouts"])], [parts.remarks(runs)]
    choices = '<div class="bar" id="choices"></div>'
    rest = [
        parts.open_questions(runs),
        parts.notes(runs),
        parts.settings(runs[0]) if len(runs) == 1 else "",
        f"<footer>{''.join(f'<p class=soft>{parts.text(line)}</p>' for line in closing)}</footer>",
    ]
    blocks = [
        _part("top", [f"<h1>{parts.text(title)}</h1>", _LIVE if live else "", *top, parts.legend(runs)]),
        "" if len(runs) > 1 else choices,
        '<div id="main"></div>',
        _part("found", results),
        f"<h2>Curves</h2>\n{choices if len(runs) > 1 else ''}",
        '<div class="bar" id="bar"></div>\n<div class="charts" id="charts"></div>',
        '<details id="more"><summary></summary><div class="charts" id="more-charts"></div></details>',
        f'<section id="rollouts" hidden>{_part("rollouts", [parts.rollouts_head(data["rollouts"], runs)])}</section>',
        _part("rest", rest),
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f"<script>{''.join(_source(f'{name}.js') for name in _SCRIPTS)}</script>",
    ]
    return (
        f'{HEAD}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{parts.text(title)} · holdfast report</title>\n<style>{_source('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(blocks)
        + "\n</body>\n</html>\n"
    )


def _part(name: str, inside: Sequence[str]) -> str:
    """HTML that a live page replaces."""
    return f'<div data-part="{name}">' + "\n".join(filter(None, inside)) + "</div>"


def _json(data: Any) -> str:
    """JSON that cannot end its script element, whatever it contains."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _source(name: str) -> str:
    return (files("holdfast.diagnose.report") / "web" / name).read_text(encoding="utf-8")
