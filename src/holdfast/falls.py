"""The deepest fall of a reward: one definition, for the closing words of a run and for the laboratory."""

from __future__ import annotations

from collections.abc import Sequence

FALLEN = 0.6
"""A reward at or below this share of its peak has fallen: 40 % are lost."""


def deepest_fall(values: Sequence[float], rise: float = 0.0) -> tuple[int, int]:
    """Where the most is lost from the highest value so far: the places of that peak, and of the low after it.

    Falls to `FALLEN` of a peak that stands `rise` above the first value go before all others, so that a larger loss
    from a higher peak, of a smaller share of it, does not hide one.

    >>> deepest_fall([0.2, 0.5, 0.1, 0.6, 0.4]), deepest_fall([0.1, 0.2])
    ((1, 2), (0, 0))
    >>> deepest_fall([0.2, 0.5, 0.2, 0.9, 0.56])
    (1, 2)
    """
    top, found = 0, (False, 0.0, 0, 0)
    for i, value in enumerate(values):
        top = i if value > values[top] else top
        fell = value <= FALLEN * values[top] and values[top] - values[0] >= rise
        if (fell, values[top] - value) > found[:2]:
            found = (fell, values[top] - value, top, i)
    return found[2], found[3]
