"""Ways to change a series of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Change = Callable[[np.ndarray], Any]


def ramp(start: int, to: float, length: int = 20) -> Change:
    """From its value at a row to another, in a straight line, and there it stays."""

    def change(values: np.ndarray) -> np.ndarray:
        t = np.clip((np.arange(len(values)) - start) / length, 0, 1)
        return values + t * (to - values[start])

    return change


def step(start: int, to: float) -> Change:
    """Another value from a row on."""

    def change(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) >= start, to + 0.02 * (values - values.mean()), values)

    return change


def spike(at: int, to: float) -> Change:
    """Another value at one row."""
    return lambda values: np.where(np.arange(len(values)) == at, to, values)


def always(value: float) -> Change:
    return lambda values: np.full(len(values), value)
