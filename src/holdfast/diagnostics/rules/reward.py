"""The reward: lost (RWD001), or earned by not answering (RWD002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.causal import (
    Truths,
    delayed,
    first,
    highest,
    lowest,
    most_since,
    noise,
    rows,
    rows_since,
    trailing_mean,
    until_begins,
    until_begins_any,
)
from holdfast.diagnostics.fall import LONG, REWARDS, THIRD, Curve, curve_of
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest

COLLAPSED = 0.4
"""Share of its peak that the reward has lost: docs/results.md calls that a collapse."""
SURE = 4.0
"""Standard errors by which a third must be lost in the mean of ten values, where the mean of five is too noisy."""


def collapse(log: Log) -> Hit | None:
    """RWD001, by the best reward that has begun."""
    logged = [name for name in REWARDS if name in log.series]
    return earliest(*(_collapse(until_begins_any(log, *logged[:rank]), name) for rank, name in enumerate(logged)))


def _collapse(log: Log, name: str) -> Hit | None:
    curve = curve_of(log, name)
    if curve is None:
        return None
    longer = curve_of(log, name, window=LONG, errors=SURE)
    assert longer is not None
    at = first(((curve.lost >= COLLAPSED) | (longer.lost >= THIRD)) & ~_waits(curve))
    if at is None:
        return None
    told = curve if curve.lost[at] >= COLLAPSED else longer
    peak = float(highest(told.means)[at])
    return Hit(
        int(curve.steps[at]),
        f"The reward has lost {told.lost[at]:.0%} of its {_measure(told, at)}: {told.means[at]:.3g}, down from "
        f"{peak:.3g}.",
        {curve.name: float(told.means[at]), "peak": peak},
        (curve.name,),
    )


def _measure(curve: Curve, at: int) -> str:
    return "range" if lowest(curve.values)[at] < 0 else "peak"


BREAK = 0.6
"""Share of the loss that came within three rows: harder questions or another reward, as likely as a collapse."""
PATIENCE = 8
"""Rows after a break in which it may begin to recover."""
RECOVERED = 0.25
"""Share of the loss that has come back, where it is no collapse."""


def _waits(curve: Curve) -> Truths:
    """Where the reward fell at once, and has either begun to recover or still may."""
    short = trailing_mean(curve.values, 3)
    drop = delayed(short, 3) - short
    steepest = most_since(drop, curve.means >= highest(curve.means))
    peak = highest(curve.means)
    broke = (drop >= steepest) & (drop > 0)
    low = -most_since(-curve.means, broke)
    low = np.where(broke, curve.means, low)
    recovered = (curve.means - low) / np.maximum(peak - low, 1e-12)
    return (steepest > BREAK * (peak - curve.means)) & ((rows_since(broke) < PATIENCE) | (recovered > RECOVERED))


ANSWERED, EM, REWARD = "rollout/answered_fraction", "reward/em", "reward/mean"
WINDOW = 5
UNANSWERED = 0.25
"""Answers given have fallen by this share of all rollouts."""


def avoidance(log: Log) -> Hit | None:
    """RWD002."""
    return earliest(_unanswered(log), _paid_for_silence(until_begins(log, ANSWERED)))


def _unanswered(log: Log) -> Hit | None:
    """Fewer answers, and the reward does not mind."""
    found = rows(log, ANSWERED, REWARD)
    answered, reward = found.columns
    smooth, pay = trailing_mean(answered, WINDOW), trailing_mean(reward, WINDOW)
    spread = highest(reward) - lowest(reward)
    pays = highest(pay) - pay <= 0.1 * spread + 2 * noise(reward, WINDOW) / WINDOW**0.5
    condition = (highest(smooth) - smooth > UNANSWERED) & pays
    condition[: WINDOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Answers are avoided: {smooth[at]:.0%} of the rollouts still give one, and the reward does not fall for it.",
        {ANSWERED: float(smooth[at]), REWARD: float(pay[at])},
        (ANSWERED, REWARD),
    )


def _paid_for_silence(log: Log) -> Hit | None:
    """Fewer right answers, and the reward does not mind."""
    found = rows(log, EM, REWARD)
    right, reward = found.columns
    smooth, pay = trailing_mean(right, WINDOW), trailing_mean(reward, WINDOW)
    drop = highest(smooth) - smooth
    unsure = 3 * noise(right, WINDOW) / WINDOW**0.5
    spread = highest(reward) - lowest(reward)
    pays = highest(pay) - pay <= 0.1 * spread
    condition = (drop > 0.4 * highest(smooth)) & (drop > unsure) & pays
    condition[: WINDOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"The reward holds while right answers fall to {smooth[at]:.2g}: it pays for something else, perhaps silence.",
        {EM: float(smooth[at]), REWARD: float(pay[at])},
        (EM, REWARD),
    )


RULES = (
    Rule("RWD001", collapse, tuple((name,) for name in REWARDS)),
    Rule("RWD002", avoidance, ((ANSWERED, REWARD), (EM, REWARD))),
)
