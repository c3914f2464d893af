"""How well predictions rank what was measured: Spearman's correlation, and the overlap of the lowest fifths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

_DRAWS = 1000


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float | None:
    """Spearman's: Pearson's correlation of ranks, ties at their mean. None below 3 values, or if all are equal.

    >>> rank_correlation([1, 2, 3, 10], [0.1, 0.3, 0.2, 9.0])
    0.8
    """
    a, b = (_ranks(np.asarray(values, dtype=float)) for values in (first, second))
    if len(a) < 3:
        return None
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return round(float(a @ b) / size, 12) if size else None


def _ranks(values: np.ndarray) -> np.ndarray:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index]


def correlation_interval(pairs: Sequence[tuple[str, float, float]]) -> tuple[float | None, float | None]:
    """95 % interval of the rank correlation of (question, first, second): a percentile bootstrap that draws questions.

    Units of one question share their step, so questions are drawn with all their units. None below 5 questions.
    """
    by_question: dict[str, list[tuple[float, float]]] = {}
    for question, first, second in pairs:
        by_question.setdefault(question, []).append((first, second))
    groups = [np.asarray(values) for values in by_question.values()]
    if len(groups) < 5:
        return None, None
    rng = np.random.default_rng(0)
    drawn = (np.concatenate([groups[k] for k in rng.integers(len(groups), size=len(groups))]) for _ in range(_DRAWS))
    correlations = [c for both in drawn if (c := rank_correlation(both[:, 0], both[:, 1])) is not None]
    if len(correlations) < _DRAWS // 2:
        return None, None
    low, high = np.quantile(correlations, [0.025, 0.975])
    return float(low), float(high)


def fifth(count: int) -> int:
    """How many of `count` units are the lowest fifth: at least one."""
    return max(1, round(count / 5))


def lowest_overlap(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Share of the lowest fifth by the first values that is also in the lowest fifth by the second. None without
    values.

    >>> lowest_overlap([5, 1, 2, 3, 4, 6, 7, 8, 9, 10], [9, 1, 8, 7, 2, 6, 5, 4, 3, 10])
    0.5
    """
    top = fifth(len(first))
    return len(_lowest(first, top) & _lowest(second, top)) / top if len(first) else None


def _lowest(values: Sequence[float], count: int) -> set[int]:
    return set(sorted(range(len(values)), key=lambda k: values[k])[:count])
