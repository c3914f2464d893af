"""Arithmetic on arrays that never looks ahead: the value at a row depends only on the rows up to it.

Sums run in a fixed order. A value is the same, bit for bit, whether the series ends at its row or continues.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Truths = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)
Span = tuple[int, int | None]
"""When something began, and when it was over; None while it holds."""

_DIFFERENCE = 1.128
"""Mean absolute difference of two draws from a normal distribution, in its standard deviations: 2 / √π."""
MEAN_SECOND_DIFF = math.sqrt(6) * math.sqrt(2 / math.pi)
"""Mean absolute second difference (a - 2b + c), or bend, of three such draws, in their standard deviations."""
MEDIAN_SECOND_DIFF = 0.6745 * math.sqrt(6)
"""The median of the same."""
_SUMMED_ROW_BY_ROW = 16
"""Longer windows use differences of running sums, which are faster and less exact."""
_MIN_TO_CHOOSE = 4
_MIN_BENDS = 8
"""Bends that do not overlap, before their median counts."""
_CHECKPOINTS = 1.3
"""A median of all rows so far is computed again when there are this many times more."""
_LOOKS = 8.0
"""Windows in a log from which on the extremes of many means count."""
_ROUNDED = 1e-4
"""Rounding of a logged value."""
_SCALE = 5
"""Rows of the means of which binary noise is expected."""
MIN_NOISE_RATIO = 0.25
"""The share of that noise that must be there."""
_MAX_CORRELATION = 0.95
"""Correlation of neighbouring rows that is counted as memory of the noise; more is a course that no line fits."""
_FIRST_ROWS = 16
_MAX_COUNT = 64
"""Largest number of rewards that a row is tested to be the mean of."""


def trailing_mean(values: Values, window: int) -> Values:
    """Mean of the last `window` values, or of all values so far.

    >>> trailing_mean(np.array([1.0, 2.0, 3.0, 7.0]), 2).tolist()
    [1.0, 1.5, 2.5, 5.0]
    """
    if window > _SUMMED_ROW_BY_ROW:
        sums = np.concatenate([[0.0], np.cumsum(values)])
        ends = np.arange(1, len(values) + 1)
        return np.asarray((sums[ends] - sums[np.maximum(ends - window, 0)]) / np.minimum(ends, window))
    total = np.zeros_like(values)
    for back in range(min(window, len(values))):
        total[back:] += values[: len(values) - back]
    return total / np.minimum(np.arange(1, len(values) + 1), window)


def mean_at_first(values: Values, window: int) -> Values:
    """[N]: the mean of the first `window` values. A row before they are complete has the mean of all values so far.

    >>> mean_at_first(np.array([1.0, 3.0, 8.0]), 2).tolist()
    [1.0, 2.0, 2.0]
    """
    return trailing_mean(values, window)[np.minimum(np.arange(len(values)), window - 1)]


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

    A sudden break must not count as noise. So the last `window` differences are left out once there are more than twice
    as many, and before that the largest, if there are four or more. With few differences the estimate is widened. It is
    0 at the first row.
    """
    if len(values) < 2:
        return np.zeros_like(values)
    sizes = np.concatenate([[0.0], np.abs(np.diff(values))])
    sums, counts = np.cumsum(sizes), np.arange(len(values))
    late, few = counts > 2 * window, (counts >= _MIN_TO_CHOOSE) & (counts <= 2 * window)
    counts = np.where(late, counts - window, counts)
    sums = sums[counts] - np.where(few, np.maximum.accumulate(sizes), 0.0)
    used = np.maximum(counts - few, 1)
    return sums / used * (1 + (2 + 2 * few) / used) / _DIFFERENCE


def noise_of_mean(values: Values, window: int) -> Values:
    """[N]: standard deviation of the mean of `window` values around the curve, from the rows so far.

    The largest of three estimates. The first is that of neighbours, as if rows were independent. The others come
    from the means themselves, one window and four windows apart, so they include autocorrelated noise. They use the
    median of bends, which neither a trend nor a single break moves, and need long logs.
    """
    spread = noise(values, window) / math.sqrt(window)
    means = trailing_mean(values, window)
    for apart in (window, 4 * window):
        # Every window-th row, because others overlap. The last two windows are left out, because a break is not noise.
        bends = np.abs(means[2 * apart :] - 2 * means[apart:-apart] + means[: -2 * apart])[window - 1 :: window]
        first_row = 2 * apart + window - 1
        if len(bends) < _MIN_BENDS * apart // window:
            continue
        counts = np.maximum(np.arange(len(values)) - 2 * window - first_row, -1) // window + 1
        known = running_median(bends)[np.clip(counts, 1, len(bends)) - 1] / MEDIAN_SECOND_DIFF
        spread = np.maximum(spread, np.where(counts >= _MIN_BENDS * apart // window, known, 0.0))
    return spread


def running_median(values: Values) -> Values:
    """[N]: the median of the values so far, updated whenever there are a third more values.

    >>> running_median(np.array([3.0, 1.0, 2.0])).tolist()
    [3.0, 2.0, 2.0]
    """
    result, end = np.empty_like(values), 1
    while end <= len(values):
        following = max(end + 1, int(end * _CHECKPOINTS))
        result[end - 1 : following - 1] = _median(values[:end])
        end = following
    return result


def _median(values: Values) -> float:
    """`np.median` of finite values, in a fifth of the time for short arrays."""
    high = len(values) // 2
    low = high - 1 + len(values) % 2
    parted = np.partition(values, (low, high))
    return float((parted[low] + parted[high]) / 2)


def count_of(values: Values) -> Values:
    """[N]: the smallest number of binary rewards of which every row so far can be the mean; infinite if there is none
    up to 64. A value that is logged with four digits counts.

    >>> count_of(np.array([0.5, 0.25, 0.6])).tolist()
    [2.0, 4.0, 20.0]
    """
    counts, known = np.full(len(values), np.inf), min(len(values), _FIRST_ROWS)
    candidates = np.arange(1, _MAX_COUNT + 1)
    fits = np.logical_and.accumulate(_are_whole(values[:known, None], candidates), axis=0)
    counts[:known] = np.where(fits.any(axis=1), candidates[fits.argmax(axis=1)], np.inf)
    for count in candidates[fits[-1]] if known < len(values) else ():
        whole = _are_whole(values, count)
        end = len(values) if whole.all() else int(np.argmin(whole))
        counts[known:end] = count
        known = max(known, end)
    return counts


def _are_whole(values: Values, counts: NDArray[np.int64]) -> Truths:
    """Where values are from 0 to 1, and whole numbers times counts, up to the rounding of a logged value."""
    whole = np.abs(values * counts - np.rint(values * counts)) <= _ROUNDED * counts
    return np.asarray(whole & (values >= 0) & (values <= 1))


def drawn_count(values: Values) -> Values:
    """[N]: the number of binary rewards that a row is the mean of, by `count_of`. It is also infinite where the values
    vary by at most a quarter of what such means would, because repeated values are not new draws. The latest
    differences count too: a few equal rows at the start are chance, and must not make all that follows significant."""
    counts, means, rows = count_of(values), trailing_mean(values, _SCALE), np.arange(1, len(values) + 1)
    expected = np.sqrt(np.cumsum(binary_noise(means, counts) ** 2) / rows)
    steps = np.diff(values, prepend=values[:1])
    returns = np.maximum(np.cumsum(-steps * delayed(steps, 1)), 0.0)
    varies = np.maximum(np.cumsum(np.abs(steps)) / _DIFFERENCE, np.sqrt(returns * rows)) / np.maximum(rows - 1, 1)
    return np.where(varies < MIN_NOISE_RATIO * expected, np.inf, counts)


def binary_noise(means: Values, counts: Values) -> Values:
    """[N]: standard deviation of the mean of `counts` binary values; 0 for a mean that is not between 0 and 1."""
    return np.sqrt(np.maximum(means * (1 - means), 0.0) / counts)


@lru_cache(maxsize=8)
def needed(errors: float, window: int, rows: int) -> Values:
    """[N]: how many standard errors of a difference must lie between an extreme mean so far and the latest one.

    In a short log that is `errors`. The best of n means is about √(2 ln n) deviations above their mean by chance, and
    the lowest as far below it. So the square grows by 4 ln n.
    """
    windows = np.maximum(np.arange(1, rows + 1) / (_LOOKS * window), 1.0)
    return np.sqrt(errors**2 + 4 * np.log(windows))


def margin(values: Values, window: int, errors: float) -> Values:
    """[N]: how far noise alone may move the mean of `window` values from its best or lowest. It is `errors` standard
    errors of the difference of two means in a short log, and more in a long one. Rounding alone is noise too."""
    rows = np.minimum(np.arange(1, len(values) + 1), window)
    of_draws = highest(binary_noise(trailing_mean(values, window), drawn_count(values) * rows))
    spread = np.maximum(noise_of_mean(values, window), np.maximum(of_draws, _ROUNDED * highest(np.abs(values))))
    return needed(errors, window, len(values)) * math.sqrt(2) * spread


def trend(values: Values) -> tuple[Values, Values]:
    """([N], [N]): how far the straight line through all values so far has climbed from the first row to this one, and
    the standard error of that. What lies off the line is noise: so one odd row, or a course that no line fits, widens
    the error, and so does noise with a memory. The error is infinite before there are four rows.

    >>> change, error = trend(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 6.0]))
    >>> change.round(1).tolist()[-1], error.round(1).tolist()[-1]
    (5.7, 0.8)
    """
    if not len(values):
        return values, values
    x = np.arange(len(values), dtype=np.float64)
    y, rows = values - values[0], x + 1
    spread = np.maximum(rows * (rows**2 - 1) / 12, 1e-12)
    slope = (np.cumsum(x * y) - x / 2 * np.cumsum(y)) / spread
    off = np.maximum(np.cumsum(y**2) - np.cumsum(y) ** 2 / rows - slope**2 * spread, 0.0)
    scatter = np.sqrt(off / np.maximum(rows - 2, 1))
    jumps = np.diff(y, prepend=y[:1])
    rough = np.cumsum(jumps**2) - 2 * slope * y + slope**2 * x
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = 1 - rough / (2 * off)  # correlation of neighbours, as far as the line leaves it
        alike = np.clip(
            np.nan_to_num(alike + (2 + 4 * np.maximum(alike, 0.0)) / rows, neginf=0.0), 0.0, _MAX_CORRELATION
        )
        memory = noise_of_mean(values, _SCALE) * math.sqrt(_SCALE) / noise(values, _SCALE)
    scatter *= np.fmax(memory, np.sqrt((1 + alike) / (1 - alike)))
    scatter = np.maximum(scatter, _ROUNDED * highest(np.abs(values)))
    return slope * x, np.where(rows < _MIN_TO_CHOOSE, np.inf, scatter * x / np.sqrt(spread))


def spread(count: int, most: int) -> NDArray[np.int64]:
    """The numbers of at most `most` of `count` rows: evenly, with the first and the last.

    >>> spread(9, 3).tolist(), spread(2, 3).tolist(), spread(0, 3).tolist()
    ([0, 4, 8], [0, 1], [])
    """
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


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


def highest_since(values: Values, restart: Truths) -> Values:
    """The maximum of the rows after the last restart, 0 at a restart itself.

    >>> highest_since(np.array([9.0, 1.0, 5.0, 4.0, 7.0]), np.array([True, False, False, True, False])).tolist()
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


def break_in(values: Values, start: int, end: int) -> int:
    """The row, after `start` and not after `end`, from which on values have another level: the two levels that fit the
    rows from `start` to `end` best, by least squares.

    >>> break_in(np.array([5.0, 5.0, 5.2, 1.0, 0.8]), 0, 4), break_in(np.array([1.0, 2.0]), 1, 1)
    (3, 1)
    """
    part = values[start : end + 1]
    if len(part) < 2:
        return end
    sums, counts = np.cumsum(part), np.arange(1, len(part))
    rest = len(part) - counts
    apart = (sums[:-1] / counts - (sums[-1] - sums[:-1]) / rest) ** 2 * counts * rest
    return start + 1 + int(apart.argmax())


CLEAR_ERRORS = 3.0
"""Standard errors between two levels, for a break between them."""


def clear_break_in(values: Values, end: int) -> int:
    """The row of the break between the first row and `end`, if its two levels differ by more than their noise; else 0.

    >>> clear_break_in(np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.1]), 5), clear_break_in(np.array([0.0, 1.0, 0.0, 1.0]), 3)
    (3, 0)
    """
    at, part = break_in(values, 0, end), values[: end + 1]
    before, after = part[:at], part[at:]
    if not len(before) or not len(after):
        return 0
    within = (float(before.var()) * len(before) + float(after.var()) * len(after)) / len(part)
    error = math.sqrt(within * (1 / len(before) + 1 / len(after)))
    return at if abs(float(before.mean() - after.mean())) > CLEAR_ERRORS * error else 0


def first(condition: Truths) -> int | None:
    """Index of the first row where it is true."""
    return int(np.argmax(condition)) if condition.any() else None


def spans(where: Truths, normal: Truths | None) -> list[Span]:
    """The rows of each time that a condition began and held until the series were normal. Later rows only end the last
    span, or add others. Without `normal` nothing is over.

    >>> where, normal = np.array([0, 1, 0, 0, 1, 1], bool), np.array([1, 0, 0, 1, 0, 0], bool)
    >>> spans(where, normal), spans(where[:4], normal[:4])
    ([(1, 3), (4, None)], [(1, 3)])
    """
    found: list[Span] = []
    shown, backs, at = np.flatnonzero(where), np.flatnonzero(normal) if normal is not None else np.empty(0), 0
    while at < len(shown):
        back = int(np.searchsorted(backs, shown[at], side="right"))
        if back == len(backs):
            return [*found, (int(shown[at]), None)]
        found.append((int(shown[at]), int(backs[back])))
        at = int(np.searchsorted(shown, backs[back]))
    return found


def merged(parts: Iterable[Span]) -> list[Span]:
    """The spans of any of several conditions: those that overlap are one, which holds until each of them is over.

    >>> merged([(1, 4), (6, 8), (3, 5), (7, None)])
    [(1, 5), (6, None)]
    """
    found: list[Span] = []
    for begun, back in sorted(parts, key=lambda span: span[0]):
        if not found or (found[-1][1] is not None and found[-1][1] <= begun):
            found.append((begun, back))
            continue
        start, until = found.pop()
        found.append((start, None if until is None or back is None else max(until, back)))
    return found
