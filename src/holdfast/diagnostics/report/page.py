"""`report.html`: one self-contained file. Its text comes before the plots, which take longer to load."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.diagnostics.finding import Diagnosis, Finding, headline, lead_of, too_short
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.report.cases import cases_html, read_cases
from holdfast.diagnostics.report.data import missing_series, page_data
from holdfast.diagnostics.report.samples import ReportedRun, read_changes, read_rollouts
from holdfast.diagnostics.rules import RULES
from holdfast.errors import ConfigError, DataError


def reported(log: Log, diagnosis: Diagnosis, path: str | Path | None = None) -> ReportedRun:
    """A run with the samples in its folder.

    `path` is where the log was read from: the folder of the run, a file in it, or a folder of runs. With None, the
    report has no samples.
    """
    if path is None:
        return ReportedRun(log=log, diagnosis=diagnosis)
    path = Path(path)
    folder = next((place for place in (path / log.name, path) if place.is_dir()), path.parent)
    return ReportedRun(
        log=log,
        diagnosis=diagnosis,
        rollouts=read_rollouts(folder),
        changes=read_changes(folder),
        cases=read_cases(folder),
    )


def write_report(path: str | Path, runs: Sequence[ReportedRun]) -> Path:
    """Write the page and return its path. Several runs are drawn over each other.

    Without plotly the plots are plainer. Raises `DataError` if no run has a series, and `ConfigError` if the file
    cannot be written.
    """
    path = Path(path)
    if not any(len(series) for run in runs for series in run.log.series.values()):
        raise DataError(f"{path} is not written: no log holds a number at any step, so there is nothing to draw")
    page = html(_with_unique_names(runs), plotly=_plotly(), foot=_foot())
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half a surrogate pair, which UTF-8 cannot encode, is written as its escape.
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


def _with_unique_names(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """The runs, with a number after a name that another run already has."""
    seen: Counter[str] = Counter()
    named = []
    for run in runs:
        seen[run.log.name] += 1
        count = seen[run.log.name]
        named.append(run if count == 1 else replace(run, log=replace(run.log, name=f"{run.log.name} ({count})")))
    return named


@cache
def _plotly() -> str:
    """plotly.js, gzipped: 2 MB of a page instead of 5. Without plotly, plain.js in its place."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        source = _source("plain.js")
    else:
        source = get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), mtime=0)).decode()


def _foot() -> list[str]:
    command = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
    try:
        drawing = f"plotly {version('plotly')}"
    except PackageNotFoundError:
        drawing = "plots without plotly"
    versions = f"holdfast {__version__}, {drawing}, Python {sys.version.split()[0]}"
    return [f"Written {time.strftime('%Y-%m-%d %H:%M')} by {command}", versions]


HEAD = "<!doctype html>\n<!-- holdfast report -->\n"
"""How every report begins. No other file is overwritten."""
_OFFLINE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_LEGEND = (
    '<noscript><p class="problem">The plots need JavaScript.</p></noscript>'
    '<p class="soft">Bold: mean of the last five logged values. Faint: every value.<span class="mouse"> Drag '
    "to zoom in all plots, double-click to reset.</span></p>"
)
_MOST_SETTINGS = 600
_MOST_TEXT = 400


def html(runs: Sequence[ReportedRun], *, plotly: str, foot: Sequence[str]) -> str:
    """The whole file. `plotly` is plotly.js, gzipped, as base64; `foot` are the closing lines."""
    title = runs[0].log.name if len(runs) == 1 else f"{len(runs)} runs"
    data = page_data(runs)
    chart_of = {trace["series"]: c["id"] for c in data["charts"] for row in c["rows"] for trace in row["traces"]}
    parts = [
        f"<h1>{_text(title)}</h1>",
        *(_single_run(runs[0], chart_of) if len(runs) == 1 else _comparison(runs)),
        '<h2>Curves</h2>\n<div class="bar" id="bar"></div>\n<div class="charts" id="charts"></div>',
        _missing(missing_series(runs)),
        _rollouts(data["rollouts"]),
        cases_html(runs[0].cases) if len(runs) == 1 else "",
        _open_questions(runs),
        _notes(runs),
        _settings(runs),
        f"<footer>{''.join(f'<p class=soft>{_text(line)}</p>' for line in foot)}</footer>",
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f'<script type="text/plain" id="plotly">{plotly}</script>',
        f"<script>{_source('page.js')}{_source('rollouts.js')}</script>",
    ]
    return (
        f'{HEAD}<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_OFFLINE}">\n'
        f"<title>{_text(title)} · holdfast report</title>\n<style>{_source('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


# ---- one run


def _single_run(run: ReportedRun, chart_of: Mapping[str, str]) -> list[str]:
    findings = run.diagnosis.findings
    count = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "No findings"
    code_of: dict[str, str] = {}
    rows = "".join(_finding(f, chart_of, code_of) for f in findings)
    return [
        f'<p class="headline">{_text(headline(run.log, run.diagnosis))}</p>',
        _LEGEND,
        '<div id="main"></div>',
        f'<h2>{count}</h2>\n<ul class="findings">{rows or _nothing(run.diagnosis)}</ul>',
        _remarks([run]),
    ]


def _finding(finding: Finding, chart_of: Mapping[str, str], code_of: dict[str, str]) -> str:
    """An item of the list; `code_of` has the remedies so far, and the code each was first given for."""
    chart = next((chart_of[name] for name in finding.series if name in chart_of), "reward")
    evidence = ", ".join(f"{name} {value:.3g}" for name, value in finding.evidence.items())
    lead = lead_of(finding.lead)
    seen = "; ".join(part for part in (lead[:1].upper() + lead[1:], evidence) if part)
    return (
        f'<li><div><a class="code" href="#chart-{chart}">{_text(finding.code)}</a> '
        f'<span class="when">step {finding.step:,}</span></div>\n'
        f"<div>{_name(finding.code)}<p>{_text(finding.summary)}</p>"
        + _change(finding, code_of)
        + (f'<p class="soft">{_text(seen)}</p>' if seen else "")
        + "</div></li>\n"
    )


def _nothing(diagnosis: Diagnosis) -> str:
    if too_short(diagnosis):
        return '<li class="none"><div class="code">–</div><div>The log has too few rows to judge.</div></li>'
    text = "The rules find no problem in this log."
    if diagnosis.cannot_tell:
        text += f" {len(diagnosis.cannot_tell)} of the codes could not be checked because the log lacks series: see "
        text += "the end of the page."
    return f'<li class="none"><div class="code">✓</div><div>{text}</div></li>'


def _remarks(runs: Sequence[ReportedRun]) -> str:
    """The notes of the rules: worth knowing, and no reason to act."""
    items = "".join(
        f"<li><b>{_text(run.log.name + ', ' if len(runs) > 1 else '')}{_text(note.code)}</b> "
        f'<span class="when">step {note.step:,}</span> {_text(note.summary)} {_marked(note.remedy)}</li>'
        for run in runs
        for note in run.diagnosis.notes
    )
    return (
        f'<h2>Notes</h2>\n<p class="soft">Worth knowing, and no reason to act.</p>\n<ul>{items}</ul>' if items else ""
    )


def _name(code: str) -> str:
    return f"<h3>{_text(RULES[code].title)}</h3>" if code in RULES else ""


def _change(finding: Finding, code_of: dict[str, str]) -> str:
    if not finding.remedy:
        return ""
    before = code_of.setdefault(finding.remedy, finding.code)
    text = _marked(finding.remedy) if before == finding.code else f"as for {_text(before)}"
    return f"<p><b>Change:</b> {text}</p>"


def _marked(text: str) -> str:
    """The text, with the parts in backticks as code."""
    parts = _text(text).split("`")
    return "".join(f"<code>{part}</code>" if k % 2 else part for k, part in enumerate(parts))


# ---- several runs


def _comparison(runs: Sequence[ReportedRun]) -> list[str]:
    rows = []
    for run in runs:
        facts, half = run.diagnosis.facts, run.diagnosis.halved
        codes = "; ".join(f"{f.code} at {f.step:,}" for f in run.diagnosis.findings) or "none"
        reward = [_number(facts.get(name)) for name in ("first reward", "peak reward", "last reward")]
        rows.append([run.log.name, f"{run.log.last_step:,}", *reward, "–" if half is None else f"{half.step:,}", codes])
    columns = ["run", "steps", "first reward", "peak reward", "last reward", "half lost at", "findings"]
    explained: dict[str, Finding] = {f.code: f for run in runs for f in run.diagnosis.findings}
    code_of: dict[str, str] = {}
    items = "".join(
        f'<li><div><span class="code">{_text(code)}</span></div><div>{_name(code)}'
        + (f"<p>{_text(RULES[code].meaning)}</p>" if code in RULES else "")
        + f"{_change(finding, code_of)}</div></li>"
        for code, finding in sorted(explained.items())
    )
    return [
        _table(columns, rows),
        _LEGEND,
        _folded("What the codes mean", f'<ul class="findings">{items}</ul>') if items else "",
        _remarks(runs),
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


# ---- what follows the curves


def _missing(names: Sequence[str]) -> str:
    if not names:
        return ""
    listed = ", ".join(f"<code>{_text(name)}</code>" for name in names)
    return _folded(f"Series that are not logged, so not drawn ({len(names)})", f'<p class="soft">{listed}</p>')


def _rollouts(rollouts: Sequence[Mapping[str, Any]]) -> str:
    if not rollouts:
        return ""
    measured = any("changes" in turn for rollout in rollouts for turn in rollout["turns"])
    text = (
        "The colour of a token shows how much more or less likely the update made it. Observations are grey."
        if measured
        else "The file has no log-probs of single tokens, so tokens are not coloured. Observations are grey."
    )
    return f'<section id="rollouts"><h2>Sampled rollouts</h2>\n<p class="soft">{text}</p></section>'


def _open_questions(runs: Sequence[ReportedRun]) -> str:
    """A row for each set of missing series, with the codes that need it and the runs that lack it."""
    groups: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for run in runs:
        for undecided in run.diagnosis.cannot_tell:
            key = ", ".join(undecided.missing), undecided.remedy.replace("`", "")
            codes, names = groups.setdefault(key, ({}, {}))
            codes[undecided.code] = names[run.log.name] = None
    if not groups:
        return ""
    several = len(runs) > 1
    columns = ["codes", "missing series", "how to log them", *(["runs"] if several else [])]
    rows = []
    for (missing, remedy), (codes, names) in groups.items():
        where = "all" if len(names) == len(runs) else ", ".join(names)
        rows.append([", ".join(codes), missing, remedy, *([where] if several else [])])
    count = len({code for codes, _ in groups.values() for code in codes})
    advice = dict.fromkeys(run.diagnosis.what_to_log for run in runs if run.diagnosis.what_to_log)
    first = "".join(f"<p>{_marked(sentence)}</p>\n" for sentence in advice)
    title = f"Codes that could not be checked because the log lacks series ({count})"
    return _folded(title, first + _table(columns, rows))


def _notes(runs: Sequence[ReportedRun]) -> str:
    notes = [f"{run.log.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.log.notes]
    if not notes:
        return ""
    return "<h2>Notes on reading the log</h2>\n<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>"


def _settings(runs: Sequence[ReportedRun]) -> str:
    flat = [dict(_flat(run.log.settings)) for run in runs]
    names = sorted({name for settings in flat for name in settings})
    if len(runs) > 1:  # only settings that differ
        names = [name for name in names if len({settings.get(name, "–") for settings in flat}) > 1]
    if not names:
        return ""
    rows = [[name, *(settings.get(name, "–") for settings in flat)] for name in names[:_MOST_SETTINGS]]
    title = "Settings" if len(runs) == 1 else "Settings that differ"
    return _folded(f"{title} ({len(names)})", _table(["setting", *(run.log.name for run in runs)], rows))


def _flat(settings: Mapping[str, object], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value, default=str)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{_text(title)}</summary>\n{inside}</details>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(text: str) -> str:
    """Escaped, cut if it is very long, and isolated if it may run from right to left."""
    cut = text if len(text) <= _MOST_TEXT * 4 else f"{text[: _MOST_TEXT * 4]} …"
    escaped = escape(cut)
    return escaped if text.isascii() else f"<bdi>{escaped}</bdi>"


def _json(data: Any) -> str:
    """JSON that cannot end its script element, whatever it contains."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _source(name: str) -> str:
    return (files("holdfast.diagnostics.report") / name).read_text(encoding="utf-8")
