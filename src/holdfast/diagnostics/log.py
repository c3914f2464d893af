"""A run's log as values: named series over steps, whoever wrote them. No torch, no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Format = Literal["holdfast", "trl", "verl", "wandb"]
Host = Literal["holdfast", "trl", "verl", "unknown"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric, where it was logged. A step that did not log it is not in here; a NaN that was logged is."""

    steps: NDArray[np.int64]
    """[N], strictly increasing."""
    values: NDArray[np.float64]
    """[N]; may hold NaN and infinities."""

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> Series:
        """What was known after `step`."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return Series(self.steps[:count], self.values[:count])


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What one run logged, under holdfast's names (docs/metrics.md) where they are known."""

    format: Format
    """Of the file."""
    host: Host
    """Whose settings a remedy has to name: a W&B export may come from any trainer."""
    name: str
    """To call it by: the run folder's name, or the file's."""
    series: Mapping[str, Series]
    steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """[N], strictly increasing: every step that logged anything."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The run's configuration by the host's own dotted names, as far as the log tells."""
    notes: tuple[str, ...] = ()
    """What was skipped, or read in another way than it stands there: a sentence each."""

    def until(self, step: int) -> Log:
        """The log as it was after `step`; a series that had not begun is absent."""
        begun = {name: part for name, whole in self.series.items() if len(part := whole.until(step))}
        return replace(self, series=begun, steps=self.steps[: int(np.searchsorted(self.steps, step, side="right"))])
