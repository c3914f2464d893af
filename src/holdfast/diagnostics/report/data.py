"""Runs as the JSON object that page.js draws. Nothing here is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.report.charts import Chart, Line, Row, charts_for
from holdfast.diagnostics.report.curves import curve, share_of_samples, smoothed
from holdfast.diagnostics.report.episodes import shown_episodes
from holdfast.diagnostics.report.phases import phases_of
from holdfast.diagnostics.report.values import ReportedRun, SampleChanges

RUN_COLORS = 7
"""Colours of page.css that tell runs apart; from the eighth run on they come again with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
WINDOWS = 5
"""Stretches of the run in the chart of single samples."""
_POINTS = 12_000
_MOST, _FEWEST = 800, 120


def page_data(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """`runs`, `charts`, `episodes`: all that is drawn, with at most some hundred points a curve."""
    named = [name for run in runs for finding in run.diagnosis.findings for name in finding.series]
    charts = charts_for((name for run in runs for name in run.log.series), named)
    most = max(_FEWEST, min(_MOST, _POINTS // len(runs)))
    drawn = [_chart(chart, runs, most) for chart in charts]
    drawn.insert(2, _samples_chart(runs))
    return {
        "runs": [_run(run, i) for i, run in enumerate(runs)],
        "charts": [chart for chart in drawn if chart["rows"]],
        "episodes": shown_episodes([run.episodes for run in runs]),
    }


def missing_series(runs: Sequence[ReportedRun]) -> list[str]:
    """Names of the charts' series that no run has."""
    had = {name for run in runs for name, series in run.log.series.items() if len(series)}
    lines = [line.series for chart in charts_for(had) for row in chart.rows for line in row.lines]
    absent = [name for name in lines if name not in had]
    # verl's own names stand beside ours; where one of the two is there, nothing is missing.
    twins = {
        "likelihood/positive": "likelihood/correct",
        "likelihood/negative": "likelihood/incorrect",
        "drift/positive": "displacement/correct",
        "drift/negative": "displacement/incorrect",
    }
    back = {ours: verl for verl, ours in twins.items()}
    return [name for name in absent if name not in twins and back.get(name) not in had]


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
        "findings": [{"code": f.code, "step": f.step} for f in run.diagnosis.findings],
    }


def _chart(chart: Chart, runs: Sequence[ReportedRun], most: int) -> dict[str, Any]:
    several = len(runs) > 1
    rows = [part for row in chart.rows for part in (_apart(row) if several else [row])]
    drawn = [row for row in (_row(row, runs, most) for row in rows) if row["traces"]]
    series = {trace["series"] for row in drawn for trace in row["traces"]}
    pins = [
        {"run": i, "code": f.code, "step": f.step}
        for i, run in enumerate(runs)
        for f in run.diagnosis.findings
        if chart.id == "reward" or series & set(f.series)
    ]
    return {"id": chart.id, "title": chart.title, "caption": chart.caption, "rows": drawn, "pins": pins, "x": "step"}


def _apart(row: Row) -> list[Row]:
    """The row with each of its lines in a row of its own, for several runs to share."""
    return [
        Row(
            row.title if line.label in row.title else f"{row.title}: {line.label}",
            (line,),
            row.log,
            row.mark,
            row.nonzero,
        )
        for line in row.lines
        if not line.minor
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


def _samples_chart(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Changes of correct rollouts, sorted: a curve for each stretch of a run, or for the last stretch of each run."""
    several = len(runs) > 1
    traces = []
    for i, run in enumerate(runs):
        windows = _windows(run.changes)[-1:] if several else _windows(run.changes)
        for k, part in enumerate(windows):
            found = share_of_samples([change for row in part for change in row.correct])
            if found["x"]:
                span = f"steps {part[0].step} to {part[-1].step}" if len(part) > 1 else f"step {part[0].step}"
                traces.append(
                    {
                        "run": i,
                        "series": "samples",
                        "label": f"{run.log.name}, {span}" if several else span,
                        "color": f"time-{k + WINDOWS - len(windows) + 1}",
                        "dash": DASHES[(WINDOWS - len(windows) + k) % len(DASHES)] if not several else "solid",
                        "points": False,
                        "raw": found | {"bad": []},
                    }
                )
    return {
        "id": "samples",
        "title": "Displacement of single rollouts, sorted",
        "caption": "Correct rollouts by what the update did to their likelihood, from the most displaced to the most "
        "strengthened"
        + ("; the last fifth of each run." if several else ". Curves that sink below 0 as the run goes on are decay."),
        "rows": [{"title": "change, nats per token", "log": False, "mark": 0.0, "traces": traces}] if traces else [],
        "pins": [],
        "x": "share",
    }


def _windows(changes: Sequence[SampleChanges]) -> list[Sequence[SampleChanges]]:
    """At most `WINDOWS` stretches of equal length in steps that were measured."""
    bounds = np.linspace(0, len(changes), min(WINDOWS, len(changes)) + 1).astype(int).tolist()
    return [changes[a:b] for a, b in pairwise(bounds)]


def reward_story(log: Log) -> tuple[float, float, int, float, int] | None:
    """(first, peak, its step, last, its step) of the reward's running mean; None without enough of it."""
    series = log.series.get("reward/mean")
    if series is None or not np.isfinite(series.values).any():
        return None
    finite = np.isfinite(series.values)
    mean = smoothed(series) or Series(series.steps[finite], series.values[finite])
    top = int(mean.values.argmax())
    return (
        float(mean.values[0]),
        float(mean.values[top]),
        int(mean.steps[top]),
        float(mean.values[-1]),
        int(mean.steps[-1]),
    )
