"""Series as what a screen can show: thinned with every peak kept, a running mean, and the steps without a number."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.collapse import WINDOW, smooth
from holdfast.diagnostics.log import Series

SMOOTHED_FROM = 15
"""Values a series must have for its mean to be drawn."""
_MOST_BAD = 200


def thin(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Indices of at most `most` values (4 or more) that show the same picture: the lowest and the highest of every
    stretch, and both ends.

    >>> thin(np.array([0.0, 1.0, 9.0, 1.0, 0.0, -7.0, 0.0, 0.0]), 6).tolist()
    [0, 2, 4, 5, 7]
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    stretches = (most - 2) // 2
    bounds = np.linspace(0, count, stretches + 1).astype(np.int64)
    kept = {0, count - 1}
    for start, stop in pairwise(bounds.tolist()):
        part = values[start:stop]
        kept |= {int(start + part.argmin()), int(start + part.argmax())}
    return np.array(sorted(kept))


def smoothed(series: Series) -> Series | None:
    """The running mean of the finite values; None when there are too few for it to say more than they do."""
    finite = np.isfinite(series.values)
    if finite.sum() < SMOOTHED_FROM:
        return None
    return Series(series.steps[finite][WINDOW - 1 :], smooth(series.values[finite])[WINDOW - 1 :])


def curve(series: Series, most: int) -> dict[str, Any]:
    """`{"x": steps, "y": values, "bad": steps at which no finite number was logged}`, with at most `most` points."""
    finite = np.isfinite(series.values)
    steps, values = series.steps[finite], series.values[finite]
    kept = thin(values, most)
    bad = series.steps[~finite]
    bad = bad[np.linspace(0, len(bad) - 1, min(len(bad), _MOST_BAD)).astype(np.int64)] if len(bad) else bad
    return {"x": steps[kept].tolist(), "y": [short(v) for v in values[kept].tolist()], "bad": bad.tolist()}


def short(value: float, digits: int = 5) -> float | int | None:
    """The number in few characters; None for one that JSON cannot hold.

    >>> short(0.1234567), short(3.0), short(float("nan"))
    (0.12346, 3, None)
    """
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded


def share_of_samples(changes: list[float], most: int = 200) -> dict[str, list[Any]]:
    """Sorted changes over the share of samples below: x in percent, y in nats per token.

    >>> share_of_samples([0.3, -0.1, 0.2])
    {'x': [16.7, 50, 83.3], 'y': [-0.1, 0.2, 0.3]}
    """
    ordered = np.sort(np.asarray(changes, dtype=np.float64))
    ordered = ordered[np.isfinite(ordered)]
    if not len(ordered):
        return {"x": [], "y": []}
    kept = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), most)).astype(np.int64))
    shares = 100 * (kept + 0.5) / len(ordered)
    return {"x": [short(x, 3) for x in shares.tolist()], "y": [short(y, 4) for y in ordered[kept].tolist()]}
