"""Rows that are rollout batches. TRL logs the reward only where rollouts are made, so with several optimizer steps per
rollout batch and `logging_steps=1` most rows are in the middle of a batch. Rules judge batches, not such rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series, as_of
from holdfast.diagnose.log.trailing import Values

REWARD, K = "reward/mean", "optimizer_steps_per_rollout"
MIXED, DEVIATIONS = "rollout/mixed_group_fraction", {"reward/std", "reward/group_std"}
_ROUNDING = 1e-6
"""Standard deviation of equal numbers in float32, as a share of their mean: a few units in the last of 24 bits."""
_OTHER = ("eval/", "train_", "total_flos")
"""Beginnings of what is logged outside of training steps: evaluations, and the summary at the end."""
_STATES = ("lr", "epoch", "num_tokens")
"""Series whose newest value is used. For others it is the mean, or the largest or smallest value, if so named."""

Steps = NDArray[np.int64]


def joined(log: Log) -> Log:
    """The log with one row for each rollout batch, at the step of its last row. Only logs of TRL are changed.

    A batch begins at a row with a reward. It is complete after as many rows as the shortest batch before it has. So
    joined rows never depend on later rows. Further rows of a batch, and a batch that is not complete, are left out.
    The rows of the first batch stay as they are, unless the log says how many optimizer steps a batch has.
    """
    if log.host != "trl" or REWARD not in log.series:
        return log
    log = _without_rounding(log)
    training = {name: part for name, part in log.series.items() if not name.startswith(_OTHER)}
    different = {part.steps.tobytes(): part.steps for part in training.values()}  # nearly all series share their steps
    rows = _merged(list(different.values()))
    starts = np.searchsorted(rows, log.series[REWARD].steps)
    known = _rows_per_batch(log, int(rows[starts[0]])) if len(starts) else None
    if not len(starts) or (len(starts) == len(rows) and known is None):
        return log
    places, ends = _places(rows, starts, known)
    whole = _Batches.of(places)
    series = {name: part for name, part in log.series.items() if name not in training}
    for name, part in training.items():
        batches = whole if len(part) == len(rows) else _Batches.of(places[np.searchsorted(rows, part.steps)])
        if len(batches.rows):
            series[name] = replace(part, steps=ends[batches.rows], values=batches.of_series(name, part))
    in_rows = rows[np.minimum(np.searchsorted(rows, log.steps), len(rows) - 1)] == log.steps
    return replace(log, series=series, steps=_merged([ends, log.steps[~in_rows]]))


def _without_rounding(log: Log) -> Log:
    """The log with a deviation of exactly 0, and no mixed group, at steps at which all rewards of a group are equal.
    Eight rewards of 0.3 have a deviation of 3e-8 in float32, and TRL counts their group as one with different rewards.
    """
    series = dict(log.series)
    for name in DEVIATIONS & series.keys():
        std = series[name]
        equal = (std.values > 0) & (std.values <= _ROUNDING * np.abs(as_of(series[REWARD], std.steps)))
        if equal.any():
            series[name] = replace(std, values=np.where(equal, 0.0, std.values))
            if (mixed := series.get(MIXED)) is not None:
                none = np.isin(mixed.steps, std.steps[equal])
                series[MIXED] = replace(mixed, values=np.where(none, 0.0, mixed.values))
    return log if series == log.series else replace(log, series=series)


def _merged(parts: list[Steps]) -> Steps:
    """Every step of parts that are sorted. A stable sort merges them, which is faster than `np.unique`."""
    steps = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts), kind="stable")
    return steps[np.append(True, np.diff(steps) > 0)] if len(steps) else steps


def _rows_per_batch(log: Log, step: int) -> int | None:
    """The number of rows in a batch, if the log says how many optimizer steps a batch has. `step` is that of the first
    reward. If it is within the first batch, it is also the number of steps between rows."""
    if K in log.series and len(by_then := log.series[K].until(step)):
        steps = float(by_then.values[0])
    else:
        names = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
        known = [value for name in names if isinstance(value := log.settings.get(name), int) and value > 0]
        steps = known[0] * known[1] / known[2] if len(known) == len(names) else 1.0
    return int(steps) // step if 0 < 2 * step <= steps < np.inf else None


def _places(rows: Steps, starts: Steps, known: int | None) -> tuple[Steps, Steps]:
    """([N]: for each row the number of the joined row it belongs to, or -1; [M]: the last step of each joined row)."""
    lengths = np.diff(np.append(starts, len(rows)))
    expected = np.minimum.accumulate(np.append(lengths[0] if known is None else known, lengths[:-1]))
    batch = np.repeat(np.arange(len(starts)), lengths)
    index = np.arange(len(rows))
    position = index[starts[0] :] - starts[batch]
    kept = np.append(np.ones(starts[0], bool), (lengths >= expected)[batch] & (position < expected[batch]))
    begins = np.append(np.ones(starts[0], bool), position == 0)
    if known is None:
        alone = index < starts[0] + lengths[0]
        kept, begins = kept | alone, begins | alone
    places = np.where(kept, np.cumsum(begins & kept) - 1, -1)
    inside = places[kept]
    return places, rows[kept][np.append(inside[1:] > inside[:-1], True)] if len(inside) else rows[:0]


@dataclass(frozen=True, slots=True)
class _Batches:
    """Which values of a series belong to which joined rows."""

    kept: NDArray[np.bool_] | slice
    """Which values of the series belong to a joined row."""
    begins: Steps
    """[M]: the first value of each joined row, among those kept."""
    rows: Steps
    """[M]: the joined row."""

    @classmethod
    def of(cls, places: Steps) -> _Batches:
        """From the joined row of each value, or -1."""
        kept = places >= 0
        inside = places[kept]
        begins = np.flatnonzero(np.diff(inside, prepend=-1))
        return cls(slice(None) if kept.all() else kept, begins, inside[begins])

    def of_series(self, name: str, part: Series) -> Values:
        """[M]: the value of each joined row. A NaN is ignored if another row of the batch has a value."""
        values: Values = part.values[self.kept]
        ends: Steps = np.append(self.begins[1:], len(values))
        if len(self.begins) == len(values):
            return values
        if name in _STATES:
            return np.asarray(values[ends - 1])
        if name.endswith(("max", "min")):
            return np.asarray((np.fmax if name.endswith("max") else np.fmin).reduceat(values, self.begins))
        with np.errstate(invalid="ignore", over="ignore"):
            sums: Values = np.add.reduceat(values, self.begins)
            if not np.isnan(sums).any():
                return sums / (ends - self.begins)
            missing = np.isnan(values)
            counts = ends - self.begins - np.add.reduceat(missing, self.begins, dtype=np.int64)
            sums = np.add.reduceat(np.where(missing, 0.0, values), self.begins)
            return sums / counts
