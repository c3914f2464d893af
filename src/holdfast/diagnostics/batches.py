"""Rows that are rollout batches. TRL logs the reward only where rollouts are made, so with several optimizer steps per
rollout batch and `logging_steps=1` most rows are in the middle of a batch. Rules judge batches, not such rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.log import Log, Series
from holdfast.trailing import Values

REWARD, K = "reward/mean", "optimizer_steps_per_rollout"
_OTHER = ("eval/", "train_", "total_flos")
"""Beginnings of what is logged outside of training steps: evaluations, and the summary at the end."""
_STATES = ("lr", "epoch", "num_tokens")
"""Series whose newest value counts. Others are averaged, or the largest or smallest counts, by their names."""

Steps = NDArray[np.int64]


def joined(log: Log) -> Log:
    """The log with one row for each rollout batch, at the step of its last row. Only logs of TRL are changed.

    A batch begins at a row with a reward. It is complete after as many rows as the shortest batch before it has. So
    what is joined never depends on later rows. Further rows of a batch, and a batch that is not complete, are left out.
    The rows of the first batch stay as they are, unless the log says how many optimizer steps a batch has.
    """
    if log.host != "trl" or REWARD not in log.series:
        return log
    training = {name: part for name, part in log.series.items() if not name.startswith(_OTHER)}
    different = {part.steps.tobytes(): part.steps for part in training.values()}  # nearly all series share their steps
    rows = np.unique(np.concatenate(list(different.values())))
    starts = np.searchsorted(rows, log.series[REWARD].steps)
    known = _rows_per_batch(log, int(rows[starts[0]])) if len(starts) else None
    if not len(starts) or (len(starts) == len(rows) and known is None):
        return log
    places, ends = _places(rows, starts, known)
    series = {name: part for name, part in log.series.items() if name not in training}
    for name, part in training.items():
        whole = len(part) == len(rows)
        at, values = _by_batch(name, part, places if whole else places[np.searchsorted(rows, part.steps)])
        if len(at):
            series[name] = Series(ends[at], values)
    return replace(log, series=series, steps=np.union1d(ends, np.setdiff1d(log.steps, rows)))


def _union(parts: Iterable[Steps]) -> Steps:
    """Every step of these series. Most have the same, so those are sorted once."""
    distinct: list[Steps] = []
    for steps in parts:
        if not any(np.array_equal(steps, other) for other in distinct):
            distinct.append(steps)
    return np.unique(np.concatenate(distinct))


def _rows_per_batch(log: Log, step: int) -> int | None:
    """The rows of a batch before any is complete, if the log says how many optimizer steps it has. `step` is that of
    the first reward; if it is within the first batch, rows are as many steps apart."""
    if K in log.series:
        steps = float(log.series[K].values[0]) if log.series[K].steps[0] <= step else 1.0
    else:
        names = ("steps_per_generation", "num_iterations", "gradient_accumulation_steps")
        known = [value for name in names if isinstance(value := log.settings.get(name), int) and value > 0]
        steps = known[0] * known[1] / known[2] if len(known) == len(names) else 1.0
    return int(steps) // step if 2 * step <= steps < np.inf else None


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


def _by_batch(name: str, part: Series, places: Steps) -> tuple[Steps, Values]:
    """(the joined rows that have a value, their values). Of values that are NaN, those of other rows count."""
    kept = places >= 0
    places, values = places[kept], part.values[kept]
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    if len(begins) == len(places):
        return places, values
    if name in _STATES:
        return places[begins], values[np.append(begins[1:], len(values)) - 1]
    if name.endswith("max"):
        return places[begins], np.fmax.reduceat(values, begins)
    if name.endswith("min"):
        return places[begins], np.fmin.reduceat(values, begins)
    with np.errstate(invalid="ignore"):
        sums = np.add.reduceat(np.where(np.isnan(values), 0.0, values), begins)
        return places[begins], sums / np.add.reduceat(~np.isnan(values), begins, dtype=np.float64)
