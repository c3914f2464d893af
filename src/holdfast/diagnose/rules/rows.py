"""Rows: the steps at which some series are logged, as a condition sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series, as_of, finite
from holdfast.diagnose.log.trailing import Truths, Values


@dataclass(frozen=True, slots=True)
class Rows:
    """Some series of a log where all of them have a value."""

    log: Log
    names: tuple[str, ...]
    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    columns: tuple[Values, ...]
    """[N] each, in the order of `names`."""

    def latest(self, name: str, of: Callable[[Values], Values] | None = None) -> Values:
        """[N]: the last value of another series at or before each step. With `of`, the last value of that function of
        the series. NaN before the first value, and everywhere if the series is not logged.
        """
        if name not in self.log.series:
            return np.broadcast_to(np.nan, len(self.steps))
        known = finite(self.log.series[name])
        return as_of(known if of is None else Series(known.steps, of(known.values)), self.steps)

    def is_zero(self, name: str) -> Truths:
        """[N]: whether the last value of a series is exactly 0, which one that is printed as 0.000 need not be."""
        series = self.log.series.get(name)
        return np.asarray((self.latest(name) == 0) & (series is not None and not series.rounded))

    def where(self, name: str, condition: Callable[[Values], Truths]) -> Truths:
        """[N]: whether another series fulfilled a condition at its last value; False where it has none so far."""
        return self.latest(name, lambda values: condition(values).astype(float)) > 0


def from_start(row: int) -> int:
    """`Signal.began` of what has been so since the first row."""
    return 0


def rows_of(log: Log, names: tuple[str, ...], *, raw: bool = False) -> Rows:
    """The steps at which all of the series are logged and finite; with `raw`, finite or not. The log must have all."""
    series = [log.series[name] if raw else finite(log.series[name]) for name in names]
    steps = series[0].steps
    if all(np.array_equal(steps, part.steps) for part in series[1:]):
        return Rows(log, names, steps, tuple(part.values for part in series))
    for part in series[1:]:
        steps = np.intersect1d(steps, part.steps, assume_unique=True)
    return Rows(log, names, steps, tuple(part.values[np.searchsorted(part.steps, steps)] for part in series))
