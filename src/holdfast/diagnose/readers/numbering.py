"""Steps for rows that have none: from a progress bar on the same line, from `logging_steps`, or by counting rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.readers.columns import LAST_STEP, number_in, whole
from holdfast.diagnose.readers.names import AXES, SWIFT_STEP, exact_host_of
from holdfast.diagnose.readers.text import Tally

Steps = NDArray[np.int64]

_MAX_FALLS = 1000
_LOGGING_STEPS = re.compile(r"logging_steps\W{1,5}(\d{1,6})(?![\d.])")
_FEW = 3
_HUGE = 1e100
CORE = {"loss", "grad_norm", "learning_rate", "epoch", "reward", "reward_std"}
"""Names of which a row of transformers has two or more."""
_MARKS = ("eval_loss", "eval_reward", "eval_runtime", "train_runtime")
_NOT_METRICS = ("percentage", "elapsed_time", "remaining_time")
_FRAME = {*AXES, *_NOT_METRICS, SWIFT_STEP}


def step_in(row: dict[str, Any]) -> int | None:
    """Takes the step out of a row, and texts that only frame it; None if it has none."""
    if _FRAME.isdisjoint(row):
        return None
    step = None
    for name in _NOT_METRICS:
        row.pop(name, None)
    for name in AXES:
        if name in row:
            step = whole(row.pop(name))
    swift = row.pop(SWIFT_STEP, None)
    return whole(swift.partition("/")[0]) if isinstance(swift, str) else step


def logging_steps_in(line: str) -> int | None:
    """`logging_steps` of a printed configuration or command.

    >>> logging_steps_in("--logging_steps 5"), logging_steps_in("logging_steps=0.1,")
    (5, None)
    """
    match = _LOGGING_STEPS.search(line)
    return int(match[1]) or None if match else None


def is_row(value: Mapping[str, Any]) -> bool:
    """Whether a dict is a row of metrics, and not a configuration or a sample that was printed."""
    core = CORE & value.keys()
    if len(core) < 2 and not any(name in value for name in _MARKS):
        return len(value) > 1 and exact_host_of(value) not in ("unknown", "trl", "holdfast") and is_numeric(value)
    return all(type(value[name]) is float or _is_number(value[name]) for name in core)


def is_numeric(value: Mapping[str, Any]) -> bool:
    """Whether most values of a dict are numbers."""
    return 2 * sum(map(_is_number, value.values())) > len(value)


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, int | float) or (isinstance(value, str) and number_in(value) is not None)


class Numbering:
    """Collects what the rows of a log show about their steps."""

    def __init__(self) -> None:
        # The step or the bar's count, whether it is a step, whether the row is of training, epoch, lr, gradient norm.
        self._rows: list[tuple[float, ...]] = []

    def add(self, row: Mapping[str, Any], step: int | None, bar: int | None = None) -> None:
        """A row by the names of its host, with its step, or with the count of the progress bar before it."""
        seen = bar if step is None else step
        keys = (_moderate(row.get(name)) for name in ("epoch", "learning_rate", "grad_norm"))
        self._rows.append((-1 if seen is None else seen, step is not None, is_training(row), *keys))

    def steps(self, logging_steps: int | None, tally: Tally) -> Steps:
        """[R]: the step of every row. Rows of an evaluation and of a summary have the step of the row before them."""
        table = np.array(self._rows, np.float64).reshape(-1, 6)
        seen, exact, trained = table[:, 0].astype(np.int64), table[:, 1] > 0, table[:, 2] > 0
        exact &= len(seen) < 2 or bool((seen[exact] != seen[exact][:1]).any())  # a step that never moves is none
        if exact.all():
            return seen
        result = np.zeros(len(seen), np.int64)
        if trained.any():
            result[trained] = _of_training(seen[trained], table[trained, 3:], logging_steps, tally)
        before = np.maximum.accumulate(np.where(trained, np.arange(len(seen)), -1))
        result = np.where(before >= 0, result[before], 0)
        return np.where(exact, seen, result)


def _of_training(seen: Steps, keys: NDArray[np.float64], every: int | None, tally: Tally) -> Steps:
    """[R]: the step of every row of training, from [R, (epoch, lr, gradient norm)]."""
    epoch = keys[:, 0]
    ranks = _ranks(np.where(np.isnan(keys) & [False, True, False], 0.0, keys))  # the lr may be unknown
    if ranks > 1:
        tally.add(
            f"every row occurs {ranks} times, as if {ranks} processes printed it: it was read once, with the last "
            "value where they differ"
        )
    first = slice(None, None, ranks)
    counts = np.repeat(_counts(epoch[first]), ranks)[: len(epoch)]
    if (seen >= 0).all() and _rises(seen[first], counts[first]):
        return seen
    bars = np.flatnonzero(seen > 0)
    if len(bars) and every is None:
        every = max(1, round(int(seen[bars[-1]]) / int(counts[bars[-1]])))
    if every is None and _are_steps(epoch[first]):
        return epoch.astype(np.int64)
    if every is None and len(epoch) > 1:
        tally.add("the log has no steps, so its rows are counted as steps, from 1")
    return counts * (every or 1)


def _are_steps(epoch: NDArray[np.float64]) -> bool:
    """Whether epochs are whole numbers and rise from row to row."""
    return bool(((epoch >= 0) & (epoch < LAST_STEP) & (epoch % 1 == 0)).all() and (np.diff(epoch) > 0).all())


def _moderate(value: Any) -> float:
    """A value, or the number in a text; NaN for anything else, and for numbers too large for an epoch or a rate."""
    number = number_in(value) if isinstance(value, str) else value
    return float(number) if isinstance(number, float | int) and abs(number) <= _HUGE else nan


def is_training(row: Mapping[str, Any]) -> bool:
    """Whether a row is of training: neither an evaluation nor the summary at the end."""
    return "loss" in row or not any(name.startswith(("eval_", "train_runtime", "eval/")) for name in row)


def _rises(seen: Steps, counts: Steps) -> bool:
    """Whether steps rise wherever the count of rows does."""
    return bool(((np.diff(seen) > 0) | (np.diff(counts) <= 0)).all())


def _counts(epoch: NDArray[np.float64]) -> Steps:
    """[R]: 1, 2, 3 and so on. Where `epoch` goes back, a run was resumed: the count goes back to that epoch."""
    known = np.maximum.accumulate(np.where(np.isnan(epoch), -1, np.arange(len(epoch))))
    epoch = np.where(known >= 0, epoch[known], -1.0)
    falls = (np.flatnonzero(np.diff(epoch) < 0) + 1).tolist()
    if not falls or len(falls) > _MAX_FALLS:
        return np.arange(1, len(epoch) + 1)
    alive, parts = np.empty(0), []
    for at, end in zip([0, *falls], [*falls, len(epoch)], strict=True):
        kept = int(np.searchsorted(alive, epoch[at]))
        parts.append(np.arange(kept + 1, kept + 1 + end - at))
        alive = np.concatenate([alive[:kept], epoch[at:end]])
    return np.concatenate(parts)


def _ranks(keys: NDArray[np.float64]) -> int:
    """How many processes printed every row: the length of the blocks of equal [epoch, lr, gradient norm], if all blocks
    are equally long."""
    if len(keys) < 2 * _FEW or np.isnan(keys).any():
        return 1
    starts = np.flatnonzero(np.append(True, (keys[1:] != keys[:-1]).any(axis=1)))
    lengths = np.diff(np.append(starts, len(keys)))
    ranks = int(lengths[0])
    return ranks if len(starts) >= _FEW and (lengths[:-1] == ranks).all() and lengths[-1] <= ranks else 1
