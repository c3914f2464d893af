"""95 % intervals of means: percentile bootstraps over questions, and Student's over a few values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

import numpy as np

RESAMPLES, LEVEL = 10_000, 0.95
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t at 97.5 %, by degrees of freedom from 1 on; 1.96 is the limit."""


def resampled_means(values: Sequence[float], rng: np.random.Generator, count: int = RESAMPLES) -> np.ndarray:
    """Means of `count` resamples with replacement, `[count]`.

    Drawing how often each distinct value occurs equals drawing questions, without an array of questions × resamples.
    """
    distinct, occurs = np.unique(np.asarray(values, dtype=np.float64), return_counts=True)
    drawn = rng.multinomial(len(values), occurs / len(values), size=count)
    return drawn @ distinct / len(values)


def resampled_scores(values: Sequence[float], rng: np.random.Generator) -> np.ndarray:
    """`resampled_means` of scores from 0 to 1. Where all are 0, or all 1, a resample cannot differ, but another
    question could: means are then drawn from Beta(1, n), whose limit is the exact one (Clopper and Pearson).

    >>> low, high = interval(resampled_scores([0.0] * 200, np.random.default_rng(0)))
    >>> low, high > 0.015
    (0.0, True)
    """
    if len(set(values)) > 1 or values[0] not in (0.0, 1.0):
        return resampled_means(values, rng)
    away = rng.beta(1, len(values), size=RESAMPLES)
    away[away < np.quantile(away, 1 - LEVEL)] = 0.0  # the interval begins at what was seen
    return np.abs(values[0] - away)


def interval(means: np.ndarray) -> list[float]:
    """The `LEVEL` interval [low, high], rounded to the resampling's precision."""
    tail = (1 - LEVEL) / 2
    return [round(float(x), 4) for x in np.quantile(means, (tail, 1 - tail))]


def half_width(values: Sequence[float]) -> float | None:
    """Half of the interval of the mean of a few values (Student's t); None of fewer than two.

    >>> round(half_width([0.4, 0.5, 0.6, 0.5, 0.5]), 3)
    0.088
    """
    if len(values) < 2:
        return None
    t = _T[len(values) - 2] if len(values) <= len(_T) + 1 else 1.96 * (1 + 1.5 / len(values))
    return t * stdev(values) / math.sqrt(len(values))
