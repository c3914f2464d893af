"""The deepest fall of a reward: one definition, for the closing words of a run and for the laboratory."""

from __future__ import annotations

from collections.abc import Sequence

FALLEN = 0.6
"""A reward at or below this share of its peak has fallen: 40 % are lost."""


def deepest_fall(values: Sequence[float]) -> tuple[int, int]:
    """Where the most is lost from the highest value so far: the places of that peak, and of the low after it.

    >>> deepest_fall([0.2, 0.5, 0.1, 0.6, 0.4]), deepest_fall([0.1, 0.2])
    ((1, 2), (0, 0))
    """
    top = best = low = 0
    for i, value in enumerate(values):
        top = i if value > values[top] else top
        if values[top] - value > values[best] - values[low]:
            best, low = top, i
    return best, low
