"""The charts of a report, and the series in each."""

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
_MOST_ACTIONS = 5
_FUNCTION = re.compile(r"rewards/(.+)/mean")
_MOST_FUNCTIONS = 8
_HOST_COLORS = ("third", "action-4", "action-5")
_MOST_UNKNOWN = 12
_MOST_MORE = 100
CORRECT, INCORRECT = "correct", "incorrect"
"""Colours of page.css."""

CHARTS = (
    Chart(
        "reward",
        "Reward",
        "The reward of training, and exact match on questions outside the training set.",
        (
            Row(
                "reward",
                (
                    Line("reward/mean", "training", "ink"),
                    Line("reward/em", "training, exact match", "third", "dot", minor=True),
                    Line("eval/em", "dev, sampled", CORRECT, points=True),
                    Line("eval/em_greedy", "dev, greedy", INCORRECT, "dash", points=True, minor=True),
                ),
                # Evaluations of TRL and of verl: their scores are whatever the user's reward functions measure.
                hosts=r"eval/reward/mean|eval/.+/score",
            ),
        ),
    ),
    Chart(
        "displacement",
        "Displacement: what an update does to the rollouts it trains on",
        "Below 0 for correct rollouts: they become less likely although they were rewarded.",
        (
            # Two rows, because incorrect rollouts move ten times as far.
            Row(
                "correct rollouts: change, nats per token",
                (Line("displacement/correct", "correct", CORRECT), Line("drift/positive", "A > 0", CORRECT, "dash")),
                mark=0.0,
            ),
            Row(
                "incorrect rollouts: change, nats per token",
                (
                    Line("displacement/incorrect", "incorrect", INCORRECT),
                    Line("drift/negative", "A < 0", INCORRECT, "dash"),
                ),
                mark=0.0,
            ),
            Row(
                "fraction of correct rollouts that became less likely",
                (Line("displacement/fraction", "fell", "ink"),),
                mark=0.5,
            ),
        ),
    ),
    Chart(
        "likelihood",
        "Likelihood of rollouts",
        "Mean log-prob per sampled token. In a decaying run the easy questions stay correct, so this can rise while "
        "displacement is below 0.",
        (
            Row(
                "nats per token",
                (
                    Line("likelihood/correct", "correct", CORRECT),
                    Line("likelihood/incorrect", "incorrect", INCORRECT, "dash"),
                    Line("likelihood/positive", "A > 0", CORRECT),
                    Line("likelihood/negative", "A < 0", INCORRECT, "dash"),
                ),
            ),
            Row("correct, action by action", ()),
            Row("incorrect, action by action", ()),
        ),
    ),
    Chart(
        "entropy",
        "Entropy, length and searches",
        "If entropy rises while length and searches stay the same, the policy becomes uncertain without doing "
        "anything new.",
        (
            Row("entropy, nats", (Line("entropy/mean", "entropy", "ink"),)),
            Row("sampled tokens per rollout", (Line("rollout/length", "length", "ink"),)),
            Row("searches per rollout", (Line("rollout/searches", "searches", "ink"),)),
        ),
    ),
    Chart(
        "ratio",
        "Importance ratio and clipping",
        "How far an update moves the policy away from the sampling policy.",
        (
            Row(
                "ratio of a token",
                (
                    Line("ratio/max", "largest", INCORRECT, "dash"),
                    Line("ratio/mean", "mean", "ink", minor=True),
                    Line("ratio/p01", "1 % are below", CORRECT, "dot"),
                ),
                log=True,
                mark=1.0,
            ),
            Row(
                "log of a rollout's ratio product",
                (
                    Line("ratio/log_product", "all", "ink"),
                    Line("ratio/log_product/positive", "A > 0", CORRECT),
                    Line("ratio/log_product/negative", "A < 0", INCORRECT, "dash"),
                ),
                mark=0.0,
            ),
            Row(
                "fraction of rollouts with A > 0 whose product is below",
                (
                    Line("isdd/positive/below_half", "1/2", CORRECT),
                    Line("isdd/positive/below_tenth", "1/10", "ink", "dash"),
                    Line("isdd/positive/below_hundredth", "1/100", INCORRECT, "dot"),
                ),
            ),
            Row("fraction of tokens clipped", (Line("clip/fraction", "clipped", "ink"),)),
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
                    Line("grad/norm_max", "largest", INCORRECT, "dash", minor=True),
                ),
                log=True,
            ),
            Row("steps skipped", (Line("grad/skipped_steps", "skipped", INCORRECT),), nonzero=True),
        ),
    ),
    Chart(
        "trouble",
        "Retrieval failures and truncated rollouts",
        "Fractions. A metric that is always 0 is not drawn.",
        (
            Row("searches that failed", (Line("retrieval/error_fraction", "failed", INCORRECT),), nonzero=True),
            Row(
                "rollouts",
                (
                    Line("rollout/truncated_fraction", "truncated", "ink"),
                    Line("rollout/invalid_fraction", "turns without an action", CORRECT, "dot"),
                    Line("rollout/failed_fraction", "failed", INCORRECT, "dash", minor=True),
                ),
                nonzero=True,
            ),
            Row(
                "observations truncated",
                (Line("rollout/truncated_observation_fraction", "truncated", "ink", minor=True),),
                nonzero=True,
            ),
        ),
    ),
    Chart(
        "signal",
        "Mixed groups and penalty",
        "Do rewards within groups differ, and does the penalty have an effect?",
        (
            Row("fraction of groups with different rewards", (Line("rollout/mixed_group_fraction", "mixed", "ink"),)),
            Row("fraction of preserved tokens with a penalty", (Line("penalty/active_fraction", "active", "ink"),)),
        ),
    ),
    Chart(
        "kl",
        "KL to the reference",
        "How far the policy is from the model at the start of training.",
        (
            Row("nats per token", (Line("kl/reference", "KL", "ink"),)),
            Row("times its coefficient", (Line("loss/kl", "KL in the loss", "ink"),)),
        ),
    ),
    Chart(
        "sampler",
        "Sampler and trainer",
        "Do rollouts come from the policy that is being trained? Sampler and trainer should give a token the "
        "same probability.",
        (
            Row("sampler minus trainer, nats", (Line("sampler/logprob_gap", "gap", "ink"),), mark=0.0),
            Row("size of that gap, nats", (Line("sampler/logprob_abs_gap", "mean", "ink"),)),
            Row("size of the gap, as probability", (Line("sampler/prob_abs_gap", "mean", "ink"),)),
            Row("KL between them, nats per token", (Line("sampler/mismatch_kl", "KL", "ink"),)),
            Row(
                "trainer's probability / sampler's",
                (Line("sampler/importance_ratio", "mean", "ink"),),
                mark=1.0,
            ),
            Row(
                "advantage in the sampler's tail",
                (Line("advantage/tail_mean", "mean", "ink"),),
                mark=0.0,
            ),
        ),
    ),
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
        others = others or sorted(names)[:_MOST_UNKNOWN]
    rows = tuple(Row(name, (Line(name, name, "ink"),)) for name in others)
    return (*charts, *([Chart("others", "Other series", "", rows)] if rows else ()))


def more_charts(names: Iterable[str], charts: Iterable[Chart]) -> tuple[Chart, ...]:
    """A chart for each series that none of `charts` shows, for the first of them by name."""
    drawn = {line.series for chart in charts for row in chart.rows for line in row.lines}
    others = [name for name in sorted(names) if name not in drawn][:_MOST_MORE]
    return tuple(Chart(f"more-{k}", name, "", (Row("", (Line(name, name, "ink"),)),)) for k, name in enumerate(others))


def _reward_functions(names: set[str]) -> Chart:
    """A row for each reward function. With one function the chart of the reward says the same."""
    labels = {name: match[1] for name in sorted(names) if (match := _FUNCTION.fullmatch(name))}
    rows = tuple(Row(label, (Line(name, label, "ink"),)) for name, label in list(labels.items())[:_MOST_FUNCTIONS])
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
        if 1 <= k <= _MOST_ACTIONS
    ]
    return replace(row, lines=tuple(lines))
