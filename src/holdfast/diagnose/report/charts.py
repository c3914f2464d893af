"""The charts of a report, and the series in each: those of `charts.toml`, and those that the log adds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A series in a chart of one run."""

    series: str
    label: str
    color: str
    """A custom property of page.css, without its dashes."""
    dash: str = "solid"
    points: bool = False
    """Logged rarely: draw every value."""
    minor: bool = False
    """Left out when several runs are compared."""


@dataclass(frozen=True, slots=True)
class Row:
    """One of the plots of a chart."""

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    mark: float | None = None
    """Where to draw a horizontal line."""
    nonzero: bool = False
    """Leave out series that are always 0."""
    hosts: str = ""
    """A regular expression for series of other trainers that belong in this row, if a log has them. They are logged
    rarely."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Plots that share a step axis."""

    id: str
    title: str
    caption: str
    rows: tuple[Row, ...]


_ACTION = re.compile(r"likelihood/(correct|incorrect)/action_(\d+)")
_MAX_ACTIONS = 5
_FUNCTION = re.compile(r"rewards/(.+)/mean")
_MAX_FUNCTIONS = 8
_HOST_COLORS = ("third", "action-4", "action-5")
_MAX_UNKNOWN = 12
_MAX_MORE = 100


def _chart(id: str, title: str, caption: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    made = (Row(**{**row, "lines": tuple(Line(**line) for line in row["lines"])}) for row in rows)
    return Chart(id, title, caption, tuple(made))


CHARTS = tuple(
    _chart(**chart) for chart in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["chart"]
)


def charts_for(names: Iterable[str], named: Iterable[str] = ()) -> tuple[Chart, ...]:
    """The charts, with the actions and evaluations of these logs. A last chart has the series that findings name and no
    other chart shows. If no chart has any series of the logs, it shows their first few."""
    names = set(names)
    charts = [replace(chart, rows=tuple(_filled(row, names) for row in chart.rows)) for chart in CHARTS]
    charts.insert(1, _reward_functions(names))
    drawn = {line.series for chart in charts for row in chart.rows for line in row.lines}
    others = [name for name in dict.fromkeys(named) if name in names and name not in drawn]
    if not names & drawn:
        others = others or sorted(names)[:_MAX_UNKNOWN]
    rows = tuple(Row(name, (Line(name, name, "ink"),)) for name in others)
    return (*charts, *([Chart("others", "Other series", "", rows)] if rows else ()))


def more_charts(names: Iterable[str], charts: Iterable[Chart]) -> tuple[Chart, ...]:
    """A chart for each series that none of `charts` shows, for the first of them by name."""
    drawn = {line.series for chart in charts for row in chart.rows for line in row.lines}
    others = [name for name in sorted(names) if name not in drawn][:_MAX_MORE]
    return tuple(Chart(f"more-{k}", name, "", (Row("", (Line(name, name, "ink"),)),)) for k, name in enumerate(others))


def _reward_functions(names: set[str]) -> Chart:
    """A row for each reward function. With one function the chart of the reward says the same."""
    labels = {name: match[1] for name in sorted(names) if (match := _FUNCTION.fullmatch(name))}
    rows = tuple(Row(label, (Line(name, label, "ink"),)) for name, label in list(labels.items())[:_MAX_FUNCTIONS])
    caption = (
        "Mean of each reward function. If one falls while the reward rises, the policy sacrifices it for the others."
    )
    return Chart("functions", "Reward functions", caption, rows if len(rows) > 1 else ())


def _filled(row: Row, names: set[str]) -> Row:
    """The row, with lines whose names depend on the log."""
    if row.hosts:
        matching = sorted(name for name in names if re.fullmatch(row.hosts, name))[: len(_HOST_COLORS)]
        lines = [Line(name, name, color, points=True) for name, color in zip(matching, _HOST_COLORS, strict=False)]
        return replace(row, lines=(*row.lines, *lines))
    kind = row.title.removesuffix(", action by action")
    if kind == row.title:
        return row
    actions = sorted((int(m[2]), name) for name in names if (m := _ACTION.fullmatch(name)) and m[1] == kind)
    lines = [
        Line(name, f"action {k}", f"action-{k}", ("solid", "dash", "dot", "dashdot", "longdash")[k - 1], minor=k > 2)
        for k, name in actions
        if 1 <= k <= _MAX_ACTIONS
    ]
    return replace(row, lines=tuple(lines))
