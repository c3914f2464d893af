"""The log of a run as values: named series over steps, from any trainer. No torch, no framework."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log.collapse import Curve, curve_of
from holdfast.diagnose.log.trailing import Values
from holdfast.hosts.host import OldPolicy

Format = Literal[
    "holdfast", "trl", "verl", "wandb", "console", "table", "jsonl", "tensorboard", "trackio", "mlflow", "swanlab"
]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One metric at the steps that logged it, including steps that logged NaN. Equal to itself only."""

    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    values: NDArray[np.float64]
    """[N]; may hold NaN and infinities."""
    rounded: bool = False
    """Whether a 0 in it may be a small number, because it was printed as 0.000."""

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> Series:
        """The part up to `step`."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return replace(self, steps=self.steps[:count], values=self.values[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The log of one run, with holdfast's names (docs/reference/metrics.md) where they are known."""

    format: Format
    """The format of the file."""
    host: str
    """The trainer whose settings a remedy names, by its id in `holdfast.hosts`. A W&B export may come from any."""
    name: str
    """Name of the run folder or of the file."""
    series: Mapping[str, Series]
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[N], strictly increasing: every step that logged anything."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings of the run by the dotted names of its host, as far as the log has them."""
    old_policy: OldPolicy = "recomputed"
    """The policy in the denominator of the ratio, by the settings or by the default of the trainer."""
    resumed: tuple[int, ...] = ()
    """Steps from which on a resumed run wrote the rows again, as far as they show it."""
    notes: tuple[str, ...] = ()
    """One sentence for each thing that was skipped or changed while reading."""

    @property
    def last_step(self) -> int:
        """The newest step; 0 for an empty log."""
        return int(self.steps[-1]) if len(self.steps) else 0

    def until(self, step: int) -> Log:
        """The log as it was after `step`, without series that had not begun."""
        begun = {name: part for name, whole in self.series.items() if len(part := whole.until(step))}
        return replace(self, series=begun, steps=self.steps[: int(np.searchsorted(self.steps, step, side="right"))])


REWARDS = ("reward/mean", "reward/em", "reward/f1", "eval/em", "eval/f1", "eval/em_greedy")
"""Series that can serve as the reward, best first. A log of evaluations alone has a curve too."""
_HUGE = 1e100


def finite(series: Series) -> Series:
    """Without NaN and infinities. Absurdly large numbers are cut to `_HUGE`, so that sums of them stay finite."""
    keep = np.abs(series.values) <= _HUGE
    if keep.all():
        return series
    keep = np.isfinite(series.values)
    return replace(series, steps=series.steps[keep], values=np.clip(series.values[keep], -_HUGE, _HUGE))


def has(log: Log, *names: str) -> bool:
    """Whether each of the series has a finite value at some step."""
    return all(name in log.series and bool(np.isfinite(log.series[name].values).any()) for name in names)


def as_of(series: Series, steps: NDArray[np.int64]) -> Values:
    """[len(steps)]: the last finite value of the series at or before each step; NaN before the first value."""
    known = finite(series)
    if np.array_equal(known.steps, steps):
        return known.values
    at = np.searchsorted(known.steps, steps, side="right")
    return np.concatenate([[np.nan], known.values])[at]


def reward_curve(log: Log, name: str | None = None) -> Curve | None:
    """The curve of the reward `name`, or of the best reward that is logged; None without one."""
    name = name or next((reward for reward in REWARDS if has(log, reward)), None)
    if name is None or not has(log, name):
        return None
    known = finite(log.series[name])
    return curve_of(known.values, known.steps)


# ---- what a series is

METRICS: dict[str, str] = tomllib.loads(Path(__file__).with_name("glossary.toml").read_text(encoding="utf-8"))
"""Every metric that a run may log, with its meaning."""


def glossary_entry(name: str) -> str | None:
    """The text of the glossary for a metric, including those of a numbered action or of a dataset.

    >>> glossary_entry("likelihood/correct/action_2") == METRICS["likelihood/correct/action_<k>"]
    True
    """
    if name.startswith("eval/") and name.endswith("/score"):
        return METRICS.get("eval/<dataset>/score")
    if name.startswith("tools/"):
        return METRICS.get(f"tools/<name>/{name.rpartition('/')[2]}")
    head, _, number = name.rpartition("action_")
    return METRICS.get(f"{head}action_<k>" if head and number.isdigit() else name)
