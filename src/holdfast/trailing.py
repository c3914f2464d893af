"""Arithmetic on arrays that never looks ahead: the value at a row depends only on the rows up to it.

Sums run in a fixed order. A value is the same, bit for bit, whether the series ends at its row or continues.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Truths = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)

_DIFFERENCE = 1.128
"""Mean absolute difference of two draws from a normal distribution, in its standard deviations: 2 / √π."""


def trailing_mean(values: Values, window: int) -> Values:
    """Mean of the last `window` values, or of all values so far.

    >>> trailing_mean(np.array([1.0, 2.0, 3.0, 7.0]), 2).tolist()
    [1.0, 1.5, 2.5, 5.0]
    """
    total = np.zeros_like(values)
    for back in range(min(window, len(values))):
        total[back:] += values[: len(values) - back]
    return total / np.minimum(np.arange(1, len(values) + 1), window)


def trailing_lowest(values: Values, window: int) -> Values:
    """The minimum of the last `window` values.

    >>> trailing_lowest(np.array([1.0, 2.0, 3.0, 0.5]), 2).tolist()
    [1.0, 1.0, 2.0, 0.5]
    """
    result = values
    for back in range(1, min(window, len(values))):
        result = np.minimum(result, delayed(values, back))
    return result


def highest(values: Values) -> Values:
    """The maximum so far."""
    return np.maximum.accumulate(values) if len(values) else values


def lowest(values: Values) -> Values:
    """The minimum so far."""
    return np.minimum.accumulate(values) if len(values) else values


def delayed(values: NDArray[T], back: int) -> NDArray[T]:
    """The value `back` rows before; the first value where there are fewer rows.

    >>> delayed(np.array([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 1.0, 1.0]
    """
    return values[np.maximum(np.arange(len(values)) - back, 0)]


def noise(values: Values, window: int) -> Values:
    """Standard deviation of a value around the curve, from the differences between neighbours so far.

    The last `window` differences are left out once there are more than twice as many: a sudden break must not count as
    noise. With few differences the estimate is widened. It is 0 at the first row.
    """
    if len(values) < 2:
        return np.zeros_like(values)
    sums = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(values)))])
    counts = np.arange(len(values))
    counts = np.where(counts > 2 * window, counts - window, counts)
    few = np.maximum(counts, 1)
    return sums[counts] / few * (1 + 2 / few) / _DIFFERENCE


def margin(values: Values, window: int, errors: float) -> Values:
    """How far noise alone may move the mean of `window` values: that many standard errors."""
    return errors * noise(values, window) / math.sqrt(window)


def held(condition: Truths, count: int) -> Truths:
    """Where the condition has been true in the last `count` rows, including this one.

    >>> held(np.array([True, True, False, True, True]), 2).tolist()
    [False, True, False, False, True]
    """
    return rows_since(~condition) >= count


def rows_since(condition: Truths) -> NDArray[np.int64]:
    """Rows since the condition was last true. Counted from the start where it never was.

    >>> rows_since(np.array([False, True, False, False])).tolist()
    [1, 0, 1, 2]
    """
    last = np.where(condition, np.arange(len(condition)), -1)
    return np.arange(len(condition)) - (np.maximum.accumulate(last) if len(last) else last)


def last_where(condition: Truths) -> NDArray[np.int64]:
    """For each row: index of the last row so far where the condition was true; 0 where it never was.

    >>> last_where(np.array([True, False, True, False])).tolist()
    [0, 0, 2, 2]
    """
    rows: NDArray[np.int64] = np.maximum(np.arange(len(condition)) - rows_since(condition), 0)
    return rows


def most_since(values: Values, restart: Truths) -> Values:
    """The maximum of the rows after the last restart, 0 at a restart itself.

    >>> most_since(np.array([9.0, 1.0, 5.0, 4.0, 7.0]), np.array([True, False, False, True, False])).tolist()
    [0.0, 1.0, 5.0, 0.0, 7.0]
    """
    if not len(values):
        return values
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(1, len(values) + 1)
    stretch = np.cumsum(restart) * (len(values) + 1)  # so that a maximum so far never reaches over a restart
    best = np.maximum.accumulate(stretch + np.where(restart, 0, rank)) - stretch
    return np.where(best > 0, values[order[best - 1]], 0.0)


def first(condition: Truths) -> int | None:
    """Index of the first row where it is true."""
    return int(np.argmax(condition)) if condition.any() else None
