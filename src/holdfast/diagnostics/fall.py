"""How far the reward has fallen: one definition, for the rules, the report and the measurements of the rules.

The reward's running mean over `WINDOW` logged values has lost half of its peak at the first step where it lies half of
the reward's range so far below its highest value so far. `holdfast.falls` says what the range is: the peak itself where
no reward is below 0. A fall within the noise of the series is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.causal import Truths, Values, as_of, finite, first, has, highest, lowest, noise, trailing_mean
from holdfast.diagnostics.log import Log, Series
from holdfast.falls import bottom

WINDOW = 5
"""Logged values in the running mean: what docs/results.md and the papers' curves are smoothed by."""
FEWEST = 3
"""Values before anything is said."""
NOISE = 5.0
"""A fall counts when it exceeds this many standard errors of the difference of the two means."""
HALF = 0.5 - 1e-9
"""Of the peak, but for rounding."""
REWARDS = ("reward/mean", "reward/em", "reward/f1", "eval/em", "eval/f1", "eval/em_greedy")
"""What is taken for the reward, the best first: a log of evaluations alone still has a curve."""


@dataclass(frozen=True, slots=True)
class Curve:
    """The reward's running mean, and how much of its peak it has lost, row by row."""

    name: str
    steps: NDArray[np.int64]
    """[N]"""
    values: Values
    """[N]: the reward as logged."""
    means: Values
    """[N]: of the last `WINDOW` values."""
    lost: Values
    """[N]: share of the range; 0 at the peak, where the fall is within the noise, and in the first rows."""


@dataclass(frozen=True, slots=True)
class Fall:
    """How the reward fell. Steps are of the log."""

    peak_step: int
    """Where the running mean was highest before `half_step`."""
    half_step: int
    """The first step at which at most half of that is left."""


def curve_of(log: Log, name: str | None = None, *, window: int = WINDOW, errors: float = NOISE) -> Curve | None:
    """The curve of a reward, the best one that is logged unless it is named; None without it. Causal in its rows.

    `window` and `errors` may be other than the definition's, to see a fall that is within its noise.
    """
    name = name or next((one for one in REWARDS if has(log, one)), None)
    if name is None or not has(log, name):
        return None
    series = finite(log.series[name])
    means = trailing_mean(series.values, window)
    index = np.arange(len(means))
    peak_at = np.maximum.accumulate(np.where(means >= highest(means), index, 0))
    peak = means[peak_at]
    counts = np.minimum(index + 1, window)
    error = noise(series.values, WINDOW) * np.sqrt(1 / counts + 1 / counts[peak_at])
    height = peak - bottom(peak, lowest(series.values))
    with np.errstate(invalid="ignore", divide="ignore"):
        lost = np.where((peak - means > errors * error) & (height > 0), (peak - means) / height, 0.0)
    lost[: FEWEST - 1] = 0.0
    return Curve(name, series.steps, series.values, means, lost)


LONG = 2 * WINDOW
"""Values in the mean by which a slow fall shows in a noisy reward."""
LIKELY = 3.0
"""Standard errors: enough where another series says why."""
THIRD = 1 / 3
"""Of the peak. In the longer mean no healthy recorded run lost a quarter by more than 3 standard errors."""


def falling(log: Log, steps: NDArray[np.int64]) -> Truths:
    """[len(steps)]: where the reward has lost a third of its peak, in either mean: probably, not surely."""
    result = np.zeros(len(steps), bool)
    for window in (WINDOW, LONG):
        curve = curve_of(log, window=window, errors=LIKELY)
        if curve is not None:
            result |= as_of(Series(curve.steps, curve.lost), steps) >= THIRD
    return result


def fall_of(log: Log) -> Fall | None:
    """Where the reward lost half of its peak; None when it never did."""
    curve = curve_of(log)
    at = None if curve is None else first(curve.lost >= HALF)
    if curve is None or at is None:
        return None
    return Fall(int(curve.steps[int(np.argmax(curve.means[: at + 1]))]), int(curve.steps[at]))
