"""Series of a log at its rows; with `holdfast.trailing` it is what rules calculate with. Nothing here looks ahead."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.collapse import Curve, curve_of
from holdfast.diagnostics.log import Log, Series
from holdfast.trailing import Values

REWARDS = ("reward/mean", "reward/em", "reward/f1", "eval/em", "eval/f1", "eval/em_greedy")
"""What is taken for the reward, the best first: a log of evaluations alone still has a curve."""
_HUGE = 1e100


def finite(series: Series) -> Series:
    """Without NaN and infinities; numbers beyond any meaning are cut to `_HUGE`, so that sums of them stay numbers."""
    keep = np.abs(series.values) <= _HUGE
    if keep.all():
        return series
    keep = np.isfinite(series.values)
    return Series(series.steps[keep], np.clip(series.values[keep], -_HUGE, _HUGE))


def has(log: Log, *names: str) -> bool:
    """Whether every one of the series has a finite value somewhere."""
    return all(name in log.series and bool(np.isfinite(log.series[name].values).any()) for name in names)


def as_of(series: Series, steps: NDArray[np.int64]) -> Values:
    """[len(steps)]: the series' last finite value at or before each step; NaN before its first."""
    known = finite(series)
    at = np.searchsorted(known.steps, steps, side="right")
    return np.concatenate([[np.nan], known.values])[at]


def reward_curve(log: Log, name: str | None = None) -> Curve | None:
    """The curve of a reward, the best one that is logged unless it is named; None without it."""
    name = name or next((reward for reward in REWARDS if has(log, reward)), None)
    if name is None or not has(log, name):
        return None
    series = finite(log.series[name])
    return curve_of(series.values, series.steps)
