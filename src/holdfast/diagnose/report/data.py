"""Runs as the JSON object that the page draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log, Series, finite, has
from holdfast.diagnose.log.smoothed import WINDOW
from holdfast.diagnose.log.trailing import Values, spread, trailing_mean
from holdfast.diagnose.outlook import OTHER, seconds_of
from holdfast.diagnose.report.charts import Chart, Line, Row, charts_for, more_charts
from holdfast.diagnose.report.samples import ReportedRun, SampleChanges, packed, rollouts_json, short
from holdfast.diagnose.rules import RULES
from holdfast.hosts.host import PARTS

RUN_COLORS = 6
"""Colours of runs in page.css."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
"""A second cue next to the colour. 6 and 5 have no common factor, so 30 runs differ, and neighbours differ in both."""
_POINTS = 6_000
_MAX_POINTS, _MIN_POINTS = 1_200, 120
_MAX_DOTS = 200
"""Values of a series logged rarely that are all drawn. If there are more, it was not logged rarely."""
_MAX_WITH_VALUES = 6
"""Runs of a page that holds every value of each. Those of more runs are a cloud, and it has their means alone."""
_POINTS_MORE = 1_200
_MAX_MORE, _MIN_MORE = 200, 60
"""Points of a series that no chart of `charts.py` shows."""


def page_data(runs: Sequence[ReportedRun], *, whole: bool = False) -> dict[str, Any]:
    """`runs`, `charts`, `more`, `rollouts`, `packs`: everything that is drawn, with at most a few hundred points per
    curve.

    `rows` are those of the longest series that has a mean, `window` those of its mean; `values` says whether every
    value is there, as well as means. `more` are charts of the series that no other chart shows. `packs` have the texts
    of the rollouts that a page holds beyond the first ones, if it has the `whole` of them.
    """
    named = [name for run in runs for finding in run.diagnosis.findings for name in finding.series]
    names = {name for run in runs for name, series in run.log.series.items() if len(series)}
    charts = charts_for(names, named)
    most = max(_MIN_POINTS, min(_MAX_POINTS, _POINTS // len(runs)))
    most_more = max(_MIN_MORE, min(_MAX_MORE, _POINTS_MORE // len(runs)))
    steps = [sorted({finding.step for finding in run.diagnosis.findings}) for run in runs]
    rollouts = rollouts_json([run.rollouts for run in runs], steps, whole=whole)
    drawn = [_chart(chart, runs, most) for chart in charts]
    drawn.insert([chart.id for chart in charts].index("displacement") + 1, samples_chart(runs))
    drawn.append(seconds_chart(runs, most))
    longest = max((len(series) for run in runs for series in run.log.series.values()), default=0)
    return {
        "rows": longest if longest >= SMOOTHED_FROM else 0,
        "window": window_of(longest),
        "values": len(runs) <= _MAX_WITH_VALUES,
        "runs": [_run(run, i) for i, run in enumerate(runs)],
        "charts": [chart for chart in drawn if chart["rows"]],
        "more": [_chart(chart, runs, most_more) for chart in more_charts(names, charts)],
        "packs": packed(rollouts),
        "rollouts": rollouts,
    }


def _run(run: ReportedRun, index: int) -> dict[str, Any]:
    first, last = int(min(run.log.steps, default=0)), run.log.last_step
    return {
        "name": run.log.name,
        "color": f"run-{index % RUN_COLORS + 1}",
        "dash": DASHES[index % len(DASHES)],
        "phases": [{"name": n, "start": a, "end": b} for n, a, b in phases_of(run.diagnosis, first, last)],
        "axes": axes_of(run.log),
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
    return _plots(chart.id, chart.title, chart.caption, drawn, pins)


def _plots(
    id: str, title: str, caption: str, rows: list[dict[str, Any]], pins: Sequence[dict[str, Any]] = (), x: str = "step"
) -> dict[str, Any]:
    """A chart, as the page draws it."""
    return {"id": id, "title": title, "caption": caption, "rows": rows, "pins": list(pins), "x": x}


def _apart(row: Row, names: set[str]) -> list[Row]:
    """The row, split into one row per line, for several runs."""
    lines = [line for line in row.lines if not line.minor and line.series in names]
    return [
        replace(row, title=f"{row.title}: {line.label}" if len(lines) > 1 else row.title, lines=(line,))
        for line in lines
    ]


def _row(row: Row, runs: Sequence[ReportedRun], most: int) -> dict[str, Any]:
    several = len(runs) > 1
    traces = [
        _trace(line, series, i, most, questions_of(run.log, line.series), with_values=len(runs) <= _MAX_WITH_VALUES)
        for line in row.lines
        for i, run in enumerate(runs)
        if (series := run.log.series.get(line.series)) is not None
        and len(series)
        and not (row.nonzero and not np.nan_to_num(series.values).any())
        and not (not several and _repeats(line, row, run.log))
    ]
    return {"title": row.title, "log": row.log, "mark": row.mark, "traces": traces}


def _repeats(line: Line, row: Row, log: Log) -> bool:
    """Whether a minor line would hide the first one, because they are equal: exact match can be the whole reward."""
    first, minor = log.series.get(row.lines[0].series), log.series[line.series]
    return (
        line.minor
        and first is not None
        and line is not row.lines[0]
        and np.array_equal(minor.steps, first.steps)
        and np.array_equal(minor.values, first.values, equal_nan=True)
    )


def _trace(
    line: Line, series: Series, run: int, most: int, questions: int | None = None, *, with_values: bool
) -> dict[str, Any]:
    trace = _line(line, run, curve(series, most))
    if questions is not None:
        trace["raw"]["ends"] = [[short(end, 3) for end in ends_of(y, questions)] for y in trace["raw"]["y"]]
        trace["label"] += f" ({questions:,} questions, 95 % interval)"
    mean = None if line.points and len(series) <= _MAX_DOTS else smoothed(series)
    if mean is not None:
        thinned = curve(mean, most)
        rows = np.diff(mean.steps[[0, -1]])[0] / max(len(mean) - 1, 1)
        trace["mean"] = {"x": thinned["x"], "y": thinned["y"], "span": short(rows * window_of(len(finite(series))))}
        if not with_values:
            trace["raw"] |= {"x": [], "y": []}
    return trace


def questions_of(log: Log, name: str) -> int | None:
    """The questions that a share of correct answers is over, if the log says so and asked each once."""
    asked, samples = (log.settings.get(f"eval.{setting}") for setting in ("questions", "samples"))
    return asked if name in ("eval/em", "eval/em_greedy") and isinstance(asked, int) and samples == 1 else None


def ends_of(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` (Wilson 1927, doi:10.2307/2276774).

    >>> low, high = ends_of(0.5, 100)
    >>> round(low, 3), round(high, 3), ends_of(0.0, 10)[1] > 0.25
    (0.404, 0.596, True)
    """
    z = 1.959964
    middle, whole = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(max(share * (1 - share), 0.0) / count + z * z / (4 * count * count))
    return (middle - half) / whole, (middle + half) / whole


def _line(line: Line, run: int, raw: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A line of a run, as the page draws it."""
    return {"run": run, **{name: value for name, value in asdict(line).items() if name != "minor"}, "raw": raw, **more}


def phases_of(diagnosis: Diagnosis, first: int, last: int) -> tuple[tuple[str, int, int], ...]:
    """(name, first step, step at which the next one begins) of the phases from step `first` to `last` (arXiv
    2512.04220): `rise`, `stagnation`, `decay` and `collapse`. None for a run without signs of a collapse.

    A phase begins with the first finding whose rule names it, so it does not move as the run continues. Stagnation
    begins with LLD001, decay with LLD002 or LLD004, collapse with LLD003, RWD001 or the loss of half of the reward.
    Before them is the rise. A later phase ends earlier ones; a phase that begins after a later one is left out.
    """
    starts = {
        name: min((f.step for f in diagnosis.findings if f.code in RULES and RULES[f.code].phase == name), default=None)
        for name in ("stagnation", "decay", "collapse")
    }
    if (half := diagnosis.course.half) is not None and diagnosis.course.back_step is None:
        starts["collapse"] = half.step if starts["collapse"] is None else min(starts["collapse"], half.step)
    begun: list[tuple[str, int]] = []
    for name in ("collapse", "decay", "stagnation"):
        start = starts[name]
        if start is not None and (not begun or start < begun[-1][1]):
            begun.append((name, start))
    if not begun:
        return ()
    if first < begun[-1][1]:
        begun.append(("rise", first))
    begun.reverse()
    ends = [start for _, start in begun[1:]] + [last]
    return tuple((name, start, end) for (name, start), end in zip(begun, ends, strict=True))


_PART_COLORS = ("correct", "incorrect", "third", "action-5", "action-4", "pin", "action-3")
"""Of `PARTS`."""


def seconds_chart(runs: Sequence[ReportedRun], most: int) -> dict[str, Any]:
    """The seconds of a step, stacked by what they were spent on; of several runs, those of the whole step."""
    several = len(runs) > 1
    color_of = dict(zip(PARTS, _PART_COLORS, strict=True)) | {OTHER: "line"}
    traces = []
    for i, run in enumerate(runs):
        seconds = seconds_of(run.log)
        if seconds is None:
            continue
        if several:
            line = Line("seconds", "seconds a step", "ink")
            total = Series(seconds.steps, seconds.total)
            traces.append(_trace(line, total, i, most, with_values=len(runs) <= _MAX_WITH_VALUES))
            continue
        starts = np.arange(0, len(seconds.steps), -(-len(seconds.steps) // most))
        counts = np.diff([*starts, len(seconds.steps)])
        top = np.zeros(len(starts))
        for name, values in seconds.parts.items():
            own = np.add.reduceat(values, starts) / counts
            top = top + own
            raw = {"x": seconds.steps[starts].tolist(), "y": [short(y) for y in top.tolist()], "bad": []}
            line = Line("seconds/" + name, PARTS.get(name, name), color_of[name])
            traces.append(_line(line, i, raw, own=[short(y) for y in own.tolist()]))
    # Of a stack the tallest first: each area is drawn over those that reach above it.
    drawn = traces if several else traces[::-1]
    row = {"title": "seconds", "log": False, "mark": None, "traces": drawn, "stacked": not several}
    caption = "Seconds per step, for the parts that the trainer logs."
    return _plots("seconds", "Where the time goes", caption, [row] if traces else [])


WINDOWS = 5
"""Stretches of a run, with one curve each."""
_TAIL = 2.0
"""Percent of the samples at either end that may be outside the plot. Otherwise one rollout could flatten it."""


def samples_chart(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Changes of correct rollouts: a curve for each stretch of a run, or for the last stretch of each of several."""
    several = len(runs) > 1
    traces = []
    for i, run in enumerate(runs):
        windows = stretches(run.changes)
        for k, part in list(enumerate(windows, start=WINDOWS - len(windows) + 1))[-1 if several else 0 :]:
            sorted_changes = share_of_samples([change for row in part for change in row.correct])
            if sorted_changes["x"]:
                line = Line("samples", f"steps {part[0].step:,} to {part[-1].step:,}", f"time-{k}")
                traces.append(_line(line, i, sorted_changes | {"bad": []}))
    row = {"title": "change, nats per token", "log": False, "mark": 0.0, "traces": traces, "range": _range(traces)}
    last = (
        "; the last fifth of each run." if several else (". Curves that fall further below 0 over the run show decay.")
    )
    caption = "Correct rollouts, from the largest loss of likelihood to the largest gain" + last
    return _plots("samples", "Displacement of single rollouts, sorted", caption, [row] if traces else [], x="share")


def stretches(changes: Sequence[SampleChanges]) -> list[Sequence[SampleChanges]]:
    """At most `WINDOWS` parts with equally many measured steps."""
    bounds = np.linspace(0, len(changes), min(WINDOWS, len(changes)) + 1).astype(int).tolist()
    return [changes[start:stop] for start, stop in pairwise(bounds)]


def _range(traces: Sequence[dict[str, Any]]) -> list[float] | None:
    """Range of the y axis: all samples except the tails, and 0."""
    inner = [
        y
        for trace in traces
        for x, y in zip(trace["raw"]["x"], trace["raw"]["y"], strict=True)
        if _TAIL <= x <= 100 - _TAIL
    ]
    if not inner:
        return None
    low, high = min(0.0, *inner), max(0.0, *inner)
    return [low - 0.06 * (high - low), high + 0.06 * (high - low)] if high > low else None


SMOOTHED_FROM = 15
"""Values a series must have for its mean to be drawn."""
_MAX_BAD = 200
_MAX_SAMPLES = 200


def thin(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Indices of at most `most` values (4 or more) that draw the same curve: the lowest and the highest value of every
    stretch, and both ends.

    >>> thin(np.array([0.0, 1.0, 9.0, 1.0, 0.0, -7.0, 0.0, 0.0]), 6).tolist()
    [0, 2, 4, 5, 7]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    length = -(-count // ((most - 2) // 2))
    parts = np.pad(values, (0, -count % length), mode="edge").reshape(-1, length)
    starts = np.arange(len(parts)) * length
    return np.unique(np.concatenate([[0, count - 1], starts + parts.argmin(axis=1), starts + parts.argmax(axis=1)]))


def window_of(count: int) -> int:
    """Values in the running mean of a series of `count` values: more in a long one, whose mean of 5 would be a cloud.

    >>> window_of(60), window_of(1000), window_of(10_000)
    (5, 5, 50)
    """
    return max(WINDOW, count // 200)


def smoothed(series: Series) -> Series | None:
    """The running mean of the finite values; None if there are too few."""
    known = finite(series)
    if len(known) < SMOOTHED_FROM:
        return None
    window = window_of(len(known))
    return Series(known.steps[window - 1 :], trailing_mean(known.values, window)[window - 1 :])


def curve(series: Series, most: int) -> dict[str, Any]:
    """`{"x": steps, "y": values, "bad": steps at which no finite number was logged}`, with at most `most` points; with
    `of`, how many there are, if these are not all."""
    is_number = np.isfinite(series.values)
    steps, values = series.steps[is_number], series.values[is_number]
    kept = thin(values, most)
    bad = series.steps[~is_number]
    bad = bad[spread(len(bad), _MAX_BAD)]
    drawn = {"x": steps[kept].tolist(), "y": [short(v) for v in values[kept].tolist()], "bad": bad.tolist()}
    return drawn if len(kept) == len(values) else drawn | {"of": len(values)}


def share_of_samples(changes: list[float]) -> dict[str, list[Any]]:
    """Sorted changes over the share of samples below them: x in percent, y in nats per token.

    >>> share_of_samples([0.3, -0.1, 0.2])
    {'x': [16.7, 50, 83.3], 'y': [-0.1, 0.2, 0.3]}
    """
    ordered = np.sort(np.asarray(changes, dtype=np.float64))
    ordered = ordered[np.isfinite(ordered)]
    if not len(ordered):
        return {"x": [], "y": []}
    kept = spread(len(ordered), _MAX_SAMPLES)
    shares = 100 * (kept + 0.5) / len(ordered)
    return {"x": [short(x, 3) for x in shares.tolist()], "y": [short(y, 4) for y in ordered[kept].tolist()]}


# ---- what curves can be drawn over besides steps

TOKENS_SO_FAR = ("num_tokens", "train/num_tokens", "progress/total_tokens")
"""Series of all tokens up to a step."""
TOKENS = "perf/total_num_tokens"
"""The tokens of one step, prompts included, from verl."""
_MAX_OF_AXIS = 400


def axes_of(log: Log) -> dict[str, Any]:
    """`seconds` and `tokens` -> `{"x": steps, "y": what had passed by then}`, both rising. What the log lacks is left
    out. A row that stands for several steps counts as often."""
    found = {}
    seconds = seconds_of(log)
    if seconds is not None and seconds.total.any():
        found["seconds"] = _summed(seconds.steps, seconds.total)
    so_far = next((name for name in TOKENS_SO_FAR if has(log, name)), None)
    if so_far is not None:
        counted = finite(log.series[so_far])
        found["tokens"] = _thinned(counted.steps, np.maximum.accumulate(counted.values))
    elif has(log, TOKENS):
        counted = finite(log.series[TOKENS])
        found["tokens"] = _summed(counted.steps, counted.values)
    elif (sampled := _sampled(log)) is not None:
        found["tokens"] = _summed(sampled.steps, sampled.values)
    return {name: axis for name, axis in found.items() if axis["y"][-1] > axis["y"][0]}


def _sampled(log: Log) -> Series | None:
    """Sampled tokens of each step of holdfast, whose settings say how many rollouts a step has."""
    questions, group = (log.settings.get(f"train.{name}") for name in ("questions", "group_size"))
    if not (isinstance(questions, int) and isinstance(group, int) and has(log, "rollout/length")):
        return None
    length = finite(log.series["rollout/length"])
    return Series(length.steps, length.values * questions * group)


def _summed(steps: NDArray[np.int64], values: Values) -> dict[str, Any]:
    """The sum of what steps take, from 0 before the first row."""
    gaps = np.diff(steps)
    first = int(gaps[0]) if len(gaps) else 1
    so_far = np.cumsum(np.maximum(values, 0.0) * np.append(first, gaps))
    return _thinned(np.append(steps[0] - first, steps), np.append(0.0, so_far))


def _thinned(steps: NDArray[np.int64], values: Values) -> dict[str, Any]:
    kept = spread(len(steps), _MAX_OF_AXIS)
    return {"x": steps[kept].tolist(), "y": [float(f"{value:.6g}") for value in values[kept].tolist()]}
