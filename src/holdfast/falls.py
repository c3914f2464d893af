"""Falls of a reward: one definition, for the rules, for the closing words of a run and for the laboratory.

A fall is a share of the reward's range, which reaches from its lowest value, or 0, to its peak, or 0. Where no reward
is below 0 that is the share of the peak. Where one is, a share of the peak says nothing: −0.98 after −1 would be a rise
by all there is, and −1 after −0.98 a collapse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FALLEN = 0.6
"""A reward of which this share of its range is left has fallen: 40 % are lost."""

Values = TypeVar("Values", float, NDArray[np.float64])


def bottom(peak: Values, lowest: Values) -> Values:
    """Where all of a peak is lost: as far below it as the range is wide.

    >>> [float(bottom(*pair)) for pair in ((0.8, 0.1), (0.5, -1.0), (-0.5, -1.0))]
    [0.0, -1.0, -1.5]
    """
    return np.minimum(peak, 0.0) + np.minimum(lowest, 0.0)


def fallen(value: float, peak: float, lowest: float) -> bool:
    """Whether 40 % of the range between `lowest` and `peak` are lost.

    >>> fallen(0.3, 0.5, 0.0), fallen(-1.0, -0.98, -1.0), fallen(-0.2, 0.5, -1.0)
    (True, False, True)
    """
    floor = bottom(peak, lowest)
    return bool(value - floor <= FALLEN * (peak - floor))


def deepest_fall(values: Sequence[float], rise: float = 0.0) -> tuple[int, int]:
    """Where the most is lost from the highest value so far: the places of that peak, and of the low after it.

    Falls by 40 % from a peak that stands `rise` above the first value go before all others, so that a larger loss
    from a higher peak, of a smaller share of it, does not hide one.

    >>> deepest_fall([0.2, 0.5, 0.1, 0.6, 0.4]), deepest_fall([0.1, 0.2])
    ((1, 2), (0, 0))
    >>> deepest_fall([0.2, 0.5, 0.2, 0.9, 0.56])
    (1, 2)
    """
    top, found, lowest = 0, (False, 0.0, 0, 0), min(values, default=0.0)
    for i, value in enumerate(values):
        top = i if value > values[top] else top
        fell = fallen(value, values[top], lowest) and values[top] - values[0] >= rise
        if (fell, values[top] - value) > found[:2]:
            found = (fell, values[top] - value, top, i)
    return found[2], found[3]
