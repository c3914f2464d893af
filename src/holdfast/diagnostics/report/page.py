"""The page's HTML: words first, so that they are read before a plot is drawn. All text of a run is escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from holdfast.diagnostics.finding import Finding
from holdfast.diagnostics.report.curves import short
from holdfast.diagnostics.report.data import last_step, missing_series, page_data, reward_story
from holdfast.diagnostics.report.values import ReportedRun

_OFFLINE = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)
_LEGEND = (
    '<noscript><p class="problem">The plots need JavaScript.</p></noscript>'
    '<p class="soft">Bold: the mean of the last five logged values; faint: every value. Drag to zoom in all plots, '
    "double-click to see everything again.</p>"
)
_MOST_SETTINGS = 600
_MOST_TEXT = 400


def html(runs: Sequence[ReportedRun], *, plotly: str, foot: Sequence[str]) -> str:
    """The whole file. `plotly` is plotly.js, gzipped, as base64; `foot` are the closing lines."""
    title = runs[0].log.name if len(runs) == 1 else f"{len(runs)} runs"
    data = page_data(runs)
    chart_of = {
        series: c["id"] for c in data["charts"] for r in c["rows"] for t in r["traces"] for series in [t["series"]]
    }
    parts = [
        f"<h1>{_text(title)}</h1>",
        *(_one(runs[0], chart_of) if len(runs) == 1 else _several(runs)),
        '<h2>Curves</h2>\n<div class="bar" id="bar"></div>\n<div class="charts" id="charts"></div>',
        _missing(missing_series(runs)),
        _episodes(data["episodes"]),
        _open_questions(runs),
        _notes(runs),
        _settings(runs),
        f"<footer>{''.join(f'<p class=soft>{_text(line)}</p>' for line in foot)}</footer>",
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f'<script type="text/plain" id="plotly">{plotly}</script>',
        f"<script>{_source('page.js')}{_source('episodes.js')}</script>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_OFFLINE}">\n'
        f"<title>{_text(title)} · holdfast report</title>\n<style>{_source('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


# ---- one run


def _one(run: ReportedRun, chart_of: Mapping[str, str]) -> list[str]:
    findings = run.diagnosis.findings
    count = f"{len(findings)} finding{'s' * (len(findings) != 1)}" if findings else "No findings"
    rows = "".join(_finding(f, chart_of) for f in findings)
    none = '<li class="none"><div class="code">✓</div><div>The rules find nothing wrong in this log.</div></li>'
    return [
        f'<p class="headline">{_text(_headline(run))}</p>',
        _LEGEND,
        '<div id="main"></div>',
        f'<h2>{count}</h2>\n<ul class="findings">{rows or none}</ul>',
    ]


def _headline(run: ReportedRun) -> str:
    """What the reward did, in a sentence or two."""
    story = reward_story(run.log)
    if story is None:
        return f"{last_step(run.log):,} steps; the log has no reward/mean."
    first, peak, peak_step, last, step = story
    half = run.diagnosis.half_step
    if half is not None:
        return (
            f"The reward rose from {first:.3g} to {peak:.3g} at step {peak_step:,} and had lost half of its peak by "
            f"step {half:,}; at step {step:,} it is {last:.3g}."
        )
    if peak - first < 0.05 * max(abs(peak), abs(first), 1e-9):
        return f"The reward began at {first:.3g}, never rose much above that, and is {last:.3g} at step {step:,}."
    if peak - last > 0.1 * (peak - first):
        return (
            f"The reward rose from {first:.3g} to {peak:.3g} at step {peak_step:,}; at step {step:,} it is {last:.3g}."
        )
    return f"The reward rose from {first:.3g} to {last:.3g} at step {step:,}, and has not fallen."


def _finding(finding: Finding, chart_of: Mapping[str, str]) -> str:
    chart = next((chart_of[name] for name in finding.series if name in chart_of), "reward")
    evidence = ", ".join(f"{name} {short(value, 3)}" for name, value in finding.evidence.items())
    lead = _lead(finding.lead)
    seen = "; ".join(part for part in (lead[:1].upper() + lead[1:], evidence) if part)
    return (
        f'<li><div><a class="code" href="#chart-{chart}">{_text(finding.code)}</a> '
        f'<span class="when">step {finding.step:,}</span></div>\n<div><p>{_text(finding.summary)}</p>'
        + (f"<p><b>Change:</b> {_text(finding.remedy)}</p>" if finding.remedy else "")
        + (f'<p class="soft">{_text(seen)}.</p>' if seen else "")
        + "</div></li>\n"
    )


def _lead(lead: int | None) -> str:
    if lead is None:
        return ""
    steps = f"{abs(lead):,} step{'s' * (abs(lead) != 1)}"
    if lead == 0:
        return "when the reward had lost half of its peak"
    return f"{steps} {'before' if lead > 0 else 'after'} the reward had lost half of its peak"


# ---- several runs


def _several(runs: Sequence[ReportedRun]) -> list[str]:
    rows = []
    for run in runs:
        story = reward_story(run.log)
        found = "; ".join(f"{f.code} at {f.step:,}" for f in run.diagnosis.findings) or "none"
        numbers = [f"{story[0]:.3g}", f"{story[1]:.3g} ({story[2]:,})", f"{story[3]:.3g}"] if story else ["–"] * 3
        half = run.diagnosis.half_step
        rows.append([run.log.name, f"{last_step(run.log):,}", *numbers, "–" if half is None else f"{half:,}", found])
    columns = ["run", "steps", "reward, first", "peak (step)", "last", "half lost at", "findings"]
    explained: dict[str, Finding] = {f.code: f for run in runs for f in run.diagnosis.findings}
    items = "".join(
        f'<li><div><span class="code">{_text(code)}</span></div><div><p>{_text(f.summary)}</p>'
        + (f"<p><b>Change:</b> {_text(f.remedy)}</p>" if f.remedy else "")
        + "</div></li>"
        for code, f in sorted(explained.items())
    )
    return [
        "<h2>Runs</h2>",
        _table(columns, rows),
        _LEGEND,
        _folded("What the codes mean", f'<ul class="findings">{items}</ul>') if items else "",
    ]


# ---- what follows the curves


def _missing(names: Sequence[str]) -> str:
    if not names:
        return ""
    return (
        f'<p class="soft">Not logged, so not drawn: {", ".join(f"<code>{_text(name)}</code>" for name in names)}.</p>'
    )


def _episodes(episodes: Sequence[Mapping[str, Any]]) -> str:
    if not episodes:
        return ""
    measured = any("changes" in turn for episode in episodes for turn in episode["turns"])
    says = (
        "A token is coloured by how much more or less likely the step's update made it; feedback is grey."
        if measured
        else "The file has no log-probs of single tokens, so nothing is coloured; feedback is grey."
    )
    return f'<section id="episodes"><h2>Sampled episodes</h2>\n<p class="soft">{says}</p></section>'


def _open_questions(runs: Sequence[ReportedRun]) -> str:
    rows = [
        [*([run.log.name] if len(runs) > 1 else []), c.code, ", ".join(c.missing), c.remedy]
        for run in runs
        for c in run.diagnosis.cannot_tell
    ]
    if not rows:
        return ""
    columns = [*(["run"] if len(runs) > 1 else []), "code", "would need", "how to log it"]
    return _folded(f"Questions this log leaves open ({len(rows)})", _table(columns, rows))


def _notes(runs: Sequence[ReportedRun]) -> str:
    notes = [f"{run.log.name}: {note}" if len(runs) > 1 else note for run in runs for note in run.log.notes]
    if not notes:
        return ""
    return "<h2>Notes of the reader</h2>\n<ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>"


def _settings(runs: Sequence[ReportedRun]) -> str:
    flat = [dict(_flat(run.log.settings)) for run in runs]
    names = sorted({name for own in flat for name in own})
    if len(runs) > 1:  # only what tells the runs apart
        names = [name for name in names if len({own.get(name, "–") for own in flat}) > 1]
    if not names:
        return ""
    rows = [[name, *(own.get(name, "–") for own in flat)] for name in names[:_MOST_SETTINGS]]
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
    """Escaped, cut where nobody reads on, and apart from its neighbours should it run from right to left."""
    cut = text if len(text) <= _MOST_TEXT * 4 else f"{text[: _MOST_TEXT * 4]} …"
    escaped = escape(cut)
    return escaped if text.isascii() else f"<bdi>{escaped}</bdi>"


def _json(data: Any) -> str:
    """JSON that cannot end its script element, whatever stands in it."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _source(name: str) -> str:
    return (files("holdfast.diagnostics.report") / name).read_text(encoding="utf-8")
