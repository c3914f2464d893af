"""Which series stand in which chart. Names are those of docs/metrics.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace


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
    """One of the plots that share a chart's step axis."""

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    mark: float | None = None
    """A level to draw a line at."""
    nonzero: bool = False
    """Leave out series that are 0 all along: nothing happened there."""


@dataclass(frozen=True, slots=True)
class Chart:
    id: str
    title: str
    caption: str
    rows: tuple[Row, ...]


_ACTION = re.compile(r"likelihood/(correct|incorrect)/action_(\d+)")
_MOST_ACTIONS = 5
RIGHT, WRONG = "right", "wrong"

CHARTS = (
    Chart(
        "reward",
        "Reward",
        "What training pays for, and exact match on questions it does not train on.",
        (
            Row(
                "reward",
                (
                    Line("reward/mean", "reward, mean", "ink"),
                    Line("reward/em", "exact match", "third", "dot", minor=True),
                    Line("eval/em", "dev, sampled", RIGHT, points=True),
                    Line("eval/em_greedy", "dev, greedy", WRONG, "dash", points=True, minor=True),
                ),
            ),
        ),
    ),
    Chart(
        "displacement",
        "Displacement: what an update does to its own rollouts",
        "Below 0 for correct rollouts: they become less likely although they were rewarded.",
        (
            Row(
                "change, nats per token",
                (
                    Line("displacement/correct", "correct", RIGHT),
                    Line("displacement/incorrect", "incorrect", WRONG, "dash"),
                    Line("drift/positive", "A > 0", RIGHT),
                    Line("drift/negative", "A < 0", WRONG, "dash"),
                ),
                mark=0.0,
            ),
            Row("share of correct ones that fell", (Line("displacement/fraction", "fell", "ink"),), mark=0.5),
        ),
    ),
    Chart(
        "likelihood",
        "Likelihood of rollouts",
        "Mean log-prob per sampled token. What stays correct in a decaying run is the easy part, so this can rise "
        "while displacement is below 0.",
        (
            Row(
                "nats per token",
                (
                    Line("likelihood/correct", "correct", RIGHT),
                    Line("likelihood/incorrect", "incorrect", WRONG, "dash"),
                    Line("likelihood/positive", "A > 0", RIGHT),
                    Line("likelihood/negative", "A < 0", WRONG, "dash"),
                ),
            ),
            Row("correct, action by action", ()),
            Row("incorrect, action by action", ()),
        ),
    ),
    Chart(
        "entropy",
        "Entropy, length and searches",
        "Entropy that rises while length and searches stay as they are is noise taking over.",
        (
            Row("entropy, nats", (Line("entropy/mean", "entropy", "ink"),)),
            Row("sampled tokens per rollout", (Line("rollout/length", "length", "ink"),)),
            Row("searches per rollout", (Line("rollout/searches", "searches", "ink"),)),
        ),
    ),
    Chart(
        "ratio",
        "Importance ratio and clipping",
        "How far an update moves the policy from the one that sampled.",
        (
            Row(
                "ratio of a token",
                (
                    Line("ratio/max", "largest", WRONG, "dash"),
                    Line("ratio/mean", "mean", "ink", minor=True),
                    Line("ratio/p01", "1 % lie below", RIGHT, "dot"),
                ),
                log=True,
                mark=1.0,
            ),
            Row("log of a rollout's product", (Line("ratio/log_product", "log product", "ink"),), mark=0.0),
            Row("share clipped", (Line("clip/fraction", "clipped", "ink"),)),
        ),
    ),
    Chart(
        "gradient",
        "Gradient norm",
        "Before clipping, on a logarithmic scale.",
        (
            Row(
                "norm",
                (
                    Line("grad/norm", "mean", "ink"),
                    Line("grad/norm_max", "largest", WRONG, "dash", minor=True),
                ),
                log=True,
            ),
            Row("steps skipped", (Line("grad/skipped", "skipped", WRONG),), nonzero=True),
        ),
    ),
    Chart(
        "trouble",
        "Retrieval and broken rollouts",
        "Shares; a series that is 0 all along is not drawn.",
        (
            Row("searches that failed", (Line("retrieval/error_fraction", "failed", WRONG),), nonzero=True),
            Row(
                "rollouts",
                (
                    Line("rollout/truncated_fraction", "truncated", "ink"),
                    Line("rollout/invalid_fraction", "turns without an action", RIGHT, "dot"),
                    Line("rollout/failed_fraction", "failed", WRONG, "dash", minor=True),
                ),
                nonzero=True,
            ),
            Row("observations cut", (Line("rollout/cut_fraction", "cut", "ink", minor=True),), nonzero=True),
        ),
    ),
    Chart(
        "signal",
        "Contrast, penalty and sampler",
        "What the update has to learn from, and whether rollouts come from the policy that is trained.",
        (
            Row("groups with more than one reward", (Line("rollout/mixed_groups", "mixed", "ink"),)),
            Row("preserved tokens the penalty acts on", (Line("penalty/active_fraction", "active", "ink"),)),
            Row("sampler minus trainer, nats", (Line("sampler/logprob_gap", "gap", "ink"),), mark=0.0),
        ),
    ),
)


def charts_for(names: Iterable[str], named: Iterable[str] = ()) -> tuple[Chart, ...]:
    """The charts, with the actions that these logs have, and a last one for series that findings name and no other
    chart has."""
    names = set(names)
    actions = sorted((int(m[2]), m[1], m[0]) for name in names if (m := _ACTION.fullmatch(name)))
    charts = tuple(replace(chart, rows=tuple(_with_actions(row, actions) for row in chart.rows)) for chart in CHARTS)
    drawn = {line.series for chart in charts for row in chart.rows for line in row.lines}
    others = [name for name in dict.fromkeys(named) if name in names and name not in drawn]
    if not others:
        return charts
    rows = tuple(Row(name, (Line(name, name, "ink"),)) for name in others)
    return (*charts, Chart("others", "Other series that findings name", "", rows))


def _with_actions(row: Row, actions: list[tuple[int, str, str]]) -> Row:
    kind = row.title.removesuffix(", action by action")
    if kind == row.title:
        return row
    lines = [
        Line(name, f"action {k}", f"action-{k}", ("solid", "dash", "dot", "dashdot", "longdash")[k - 1], minor=k > 2)
        for k, which, name in actions
        if which == kind and 1 <= k <= _MOST_ACTIONS
    ]
    return replace(row, lines=tuple(lines))
