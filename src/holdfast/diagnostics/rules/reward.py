"""The reward: lost (RWD001), or earned by not answering (RWD002)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.collapse import Curve
from holdfast.diagnostics.causal import (
    REWARDS,
    Truths,
    as_of,
    delayed,
    first,
    highest,
    lowest,
    most_since,
    noise,
    reward_curve,
    rows,
    rows_since,
    trailing_mean,
    until_begins,
    until_begins_any,
)
from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest


def fall(log: Log) -> Hit | None:
    """RWD001, by the best reward that has begun."""
    logged = [name for name in REWARDS if name in log.series]
    return earliest(*(_fall(until_begins_any(log, *logged[:rank]), name) for rank, name in enumerate(logged)))


def _fall(log: Log, name: str) -> Hit | None:
    """The reward fell (`holdfast.collapse`), and it is not about to come back."""
    curve = reward_curve(log, name)
    row = None if curve is None else first(curve.fallen & ~may_recover(curve))
    if curve is None or row is None:
        return None
    lost = curve.fall_at(row)
    measure = "range" if lowest(curve.rewards)[row] < 0 else "peak"
    return Hit(
        lost.step,
        f"The reward has lost {lost.lost:.0%} of its {measure}: {lost.level:.3g}, down from {lost.peak:.3g}.",
        {name: lost.level, "peak": lost.peak},
        (name,),
    )


BREAK = 0.6
"""Share of the loss that came within three rows: harder questions or another reward, as likely as a collapse."""
PATIENCE = 8
"""Rows after a break in which it may begin to recover."""
RECOVERED = 0.25
"""Share of the loss that has come back, where it is no collapse."""


def may_recover(curve: Curve) -> Truths:
    """[N]: where the reward was lost at once, and has either begun to recover or still may."""
    means = curve.short.means
    brief = trailing_mean(curve.rewards, 3)
    drop = delayed(brief, 3) - brief
    steepest = most_since(drop, means >= highest(means))
    peak = highest(means)
    broke = (drop >= steepest) & (drop > 0)
    low = -most_since(-means, broke)
    low = np.where(broke, means, low)
    recovered = (means - low) / np.maximum(peak - low, 1e-12)
    return (steepest > BREAK * (peak - means)) & ((rows_since(broke) < PATIENCE) | (recovered > RECOVERED))


def falling(log: Log, steps: NDArray[np.int64]) -> Truths:
    """[len(steps)]: where the reward has probably fallen."""
    curve = reward_curve(log)
    if curve is None:
        return np.zeros(len(steps), bool)
    return as_of(Series(curve.steps, curve.falling.astype(np.float64)), steps) == 1.0


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
    Rule("RWD001", fall, tuple((name,) for name in REWARDS)),
    Rule("RWD002", avoidance, ((ANSWERED, REWARD), (EM, REWARD))),
)
