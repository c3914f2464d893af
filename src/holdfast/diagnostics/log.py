"""A run's log as values: named series over steps, whoever wrote them. No torch, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.collapse import Curve, curve_of
from holdfast.trailing import Values

Format = Literal["holdfast", "trl", "verl", "wandb"]
Host = Literal["holdfast", "trl", "verl", "unknown"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric, where it was logged. A step that did not log it is not in here; a NaN that was logged is."""

    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    values: NDArray[np.float64]
    """[N]; may hold NaN and infinities."""

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> Series:
        """What was known after `step`."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return Series(self.steps[:count], self.values[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one run logged, under holdfast's names (docs/metrics.md) where they are known."""

    format: Format
    """Of the file."""
    host: Host
    """Whose settings a remedy has to name: a W&B export may come from any trainer."""
    name: str
    """To call it by: the run folder's name, or the file's."""
    series: Mapping[str, Series]
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[N], strictly increasing: every step that logged anything."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The run's configuration by the host's own dotted names, as far as the log tells."""
    notes: tuple[str, ...] = ()
    """What was skipped, or read in another way than it stands there: a sentence each."""

    def until(self, step: int) -> Log:
        """The log as it was after `step`; a series that had not begun is absent."""
        begun = {name: part for name, whole in self.series.items() if len(part := whole.until(step))}
        return replace(self, series=begun, steps=self.steps[: int(np.searchsorted(self.steps, step, side="right"))])


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
