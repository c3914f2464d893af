"""Runs as the JSON object that page.js draws. Nothing here is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.report.charts import TWINS, Chart, Line, Row, charts_for
from holdfast.diagnostics.report.curves import curve, smoothed
from holdfast.diagnostics.report.episodes import shown_episodes
from holdfast.diagnostics.report.phases import phases_of
from holdfast.diagnostics.report.sorted_samples import samples_chart
from holdfast.diagnostics.report.values import ReportedRun

RUN_COLORS = 6
"""Colours of page.css that tell runs apart; from the seventh run on they come again with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_POINTS = 6_000
_MOST, _FEWEST = 800, 120


def page_data(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """`runs`, `charts`, `episodes`: all that is drawn, with at most some hundred points a curve."""
    named = [name for run in runs for finding in run.diagnosis.findings for name in finding.series]
    charts = charts_for((name for run in runs for name in run.log.series), named)
    most = max(_FEWEST, min(_MOST, _POINTS // len(runs)))
    drawn = [_chart(chart, runs, most) for chart in charts]
    drawn.insert(2, samples_chart(runs))
    return {
        "runs": [_run(run, i) for i, run in enumerate(runs)],
        "charts": [chart for chart in drawn if chart["rows"]],
        "episodes": shown_episodes([run.episodes for run in runs]),
    }


def missing_series(runs: Sequence[ReportedRun]) -> list[str]:
    """Names of the charts' series that no run has."""
    had = {name for run in runs for name, series in run.log.series.items() if len(series)}
    lines = [line.series for chart in charts_for(had) for row in chart.rows if not row.optional for line in row.lines]
    absent = [name for name in lines if name not in had]
    return [
        name
        for name in absent
        if name not in TWINS and not had & {twin for twin, ours in TWINS.items() if ours == name}
    ]


def last_step(log: Log) -> int:
    """The newest step of any series; 0 for an empty log."""
    return max((int(series.steps[-1]) for series in log.series.values() if len(series)), default=0)


def first_step(log: Log) -> int:
    return min((int(series.steps[0]) for series in log.series.values() if len(series)), default=0)


def _run(run: ReportedRun, index: int) -> dict[str, Any]:
    first, last = first_step(run.log), last_step(run.log)
    return {
        "name": run.log.name,
        "color": f"run-{index % RUN_COLORS + 1}",
        "dash": DASHES[index // RUN_COLORS % len(DASHES)],
        "phases": [{"name": p.name, "start": p.start, "end": p.end} for p in phases_of(run.diagnosis, first, last)],
    }


def _chart(chart: Chart, runs: Sequence[ReportedRun], most: int) -> dict[str, Any]:
    several = len(runs) > 1
    names = {name for run in runs for name in run.log.series}
    rows = [part for row in chart.rows for part in (_apart(row, names) if several else [row])]
    drawn = [row for row in (_row(row, runs, most) for row in rows) if row["traces"]]
    series = {trace["series"] for row in drawn for trace in row["traces"]}
    pins = [
        {"run": i, "code": f.code, "step": f.step}
        for i, run in enumerate(runs)
        for f in run.diagnosis.findings
        if chart.id == "reward" or series & set(f.series)
    ]
    return {"id": chart.id, "title": chart.title, "caption": chart.caption, "rows": drawn, "pins": pins, "x": "step"}


def _apart(row: Row, names: set[str]) -> list[Row]:
    """The row with each of its lines in a row of its own, for several runs to share."""
    lines = [line for line in row.lines if not line.minor and line.series in names]
    return [
        replace(row, title=f"{row.title}: {line.label}" if len(lines) > 1 else row.title, lines=(line,))
        for line in lines
    ]


def _row(row: Row, runs: Sequence[ReportedRun], most: int) -> dict[str, Any]:
    several = len(runs) > 1
    traces = [
        _trace(line, series, i, most, several=several)
        for line in row.lines
        for i, run in enumerate(runs)
        if (series := run.log.series.get(line.series)) is not None
        and len(series)
        and not (row.nonzero and not np.nan_to_num(series.values).any())
        and not (not several and _repeats(line, row, run.log))
    ]
    return {"title": row.title, "log": row.log, "mark": row.mark, "traces": traces}


def _repeats(line: Line, row: Row, log: Log) -> bool:
    """Whether a minor line only hides the first one: exact match where it is the reward."""
    first, own = log.series.get(row.lines[0].series), log.series[line.series]
    return (
        line.minor
        and first is not None
        and line is not row.lines[0]
        and np.array_equal(own.steps, first.steps)
        and np.array_equal(own.values, first.values, equal_nan=True)
    )


def _trace(line: Line, series: Series, run: int, most: int, *, several: bool) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "run": run,
        "series": line.series,
        "label": line.label,
        "color": line.color,
        "dash": line.dash,
        "points": line.points,
        "raw": curve(series, most),
    }
    mean = None if line.points else smoothed(series)
    if mean is not None:
        thinned = curve(mean, most)
        trace["mean"] = {"x": thinned["x"], "y": thinned["y"]}
        if several:  # the single values of many runs are a cloud
            trace["raw"] |= {"x": [], "y": []}
    return trace
