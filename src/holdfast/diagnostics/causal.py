"""Series of a log by their rows, and what has begun there; with `holdfast.trailing` it is what rules calculate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.collapse import Curve, curve_of
from holdfast.diagnostics.log import Log, Series
from holdfast.trailing import (
    Truths,
    Values,
    delayed,
    first,
    held,
    highest,
    last_where,
    lowest,
    most_since,
    noise,
    rows_since,
    trailing_lowest,
    trailing_mean,
)

__all__ = [
    "REWARDS",
    "Rows",
    "Truths",
    "Values",
    "as_of",
    "delayed",
    "finite",
    "first",
    "has",
    "held",
    "highest",
    "last_where",
    "lowest",
    "most_since",
    "noise",
    "reward_curve",
    "rows",
    "rows_since",
    "trailing_lowest",
    "trailing_mean",
    "until_begins",
    "until_begins_any",
]

REWARDS = ("reward/mean", "reward/em", "reward/f1", "eval/em", "eval/f1", "eval/em_greedy")
"""What is taken for the reward, the best first: a log of evaluations alone still has a curve."""
_HUGE = 1e100


@dataclass(frozen=True, slots=True)
class Rows:
    """Some series where all of them have a finite value."""

    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    columns: tuple[Values, ...]
    """[N] each, in the order asked for."""

    def __len__(self) -> int:
        return len(self.steps)


def rows(log: Log, *names: str) -> Rows:
    """The steps at which every one of the series is logged and finite; no rows when one is missing."""
    found = [log.series.get(name) for name in names]
    series = [finite(one) for one in found if one is not None]
    if len(series) < len(names):
        return Rows(np.empty(0, np.int64), tuple(np.empty(0) for _ in names))
    steps = series[0].steps
    if all(np.array_equal(steps, one.steps) for one in series[1:]):
        return Rows(steps, tuple(one.values for one in series))
    for one in series[1:]:
        steps = np.intersect1d(steps, one.steps, assume_unique=True)
    return Rows(steps, tuple(one.values[np.searchsorted(one.steps, steps)] for one in series))


def finite(series: Series) -> Series:
    """Without NaN and infinities; numbers beyond any meaning are cut to `_HUGE`, so that sums of them stay numbers."""
    keep = np.abs(series.values) <= _HUGE
    if keep.all():
        return series
    keep = np.isfinite(series.values)
    return Series(series.steps[keep], np.clip(series.values[keep], -_HUGE, _HUGE))


def reward_curve(log: Log, name: str | None = None) -> Curve | None:
    """The curve of a reward, the best one that is logged unless it is named; None without it."""
    name = name or next((reward for reward in REWARDS if has(log, reward)), None)
    if name is None or not has(log, name):
        return None
    series = finite(log.series[name])
    return curve_of(series.values, series.steps)


def has(log: Log, *names: str) -> bool:
    """Whether every one of the series has a finite value somewhere."""
    return all(name in log.series and bool(np.isfinite(log.series[name].values).any()) for name in names)


def until_begins(log: Log, *names: str) -> Log:
    """The log up to where all of the series have begun: weaker evidence is asked only while there is no better."""
    begun = _begun(log, names)
    return _before(log, max(begun)) if len(begun) == len(names) else log


def until_begins_any(log: Log, *names: str) -> Log:
    """The log up to where the first of the series begins."""
    begun = _begun(log, names)
    return _before(log, min(begun)) if begun else log


def _begun(log: Log, names: Sequence[str]) -> list[int]:
    return [int(log.series[name].steps[0]) for name in names if name in log.series and len(log.series[name])]


def _before(log: Log, step: int) -> Log:
    """Most series begin with the log, and before that there is nothing to look for."""
    return log.until(step - 1) if len(log.steps) and log.steps[0] < step else replace(log, series={})


def as_of(series: Series, steps: NDArray[np.int64]) -> Values:
    """[len(steps)]: the series' last finite value at or before each step; NaN before its first."""
    known = finite(series)
    at = np.searchsorted(known.steps, steps, side="right")
    return np.concatenate([[np.nan], known.values])[at]
