"""Values that were logged one by one, each with its name and step, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.readers.columns import LAST_STEP, Columns
from holdfast.diagnose.readers.names import AXES
from holdfast.diagnose.readers.text import Tally

_MOST_RESTARTS = 1000


class Points:
    """Collects values in the order in which they were logged.

    A resumed run goes back in the steps of a series. Series may have different steps, such as those of the machine's
    load and those of the trainer, so a series that is behind another does not show a resumed run.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._series: dict[str, tuple[array[int], array[float]]] = {}
        self._last: dict[str, int] = {}
        self._restarts = 0

    def add(self, points: Iterable[tuple[int, str, int, float]]) -> None:
        """Values: (place in the file, name, step, value). Raises `DataError` for more than a log can have."""
        series, last = self._series, self._last
        for place, name, step, value in points:
            if not 0 <= step < LAST_STEP:
                self.tally.add("skipped {n values}: the step is not a whole number from 0 on", place, str(step))
                continue
            if step < last.get(name, 0):
                self._restarts = min(self._restarts + 1, _MOST_RESTARTS)
                last.clear()
            last[name] = step
            if name not in series:
                series[name] = (array("q"), array("d"))
            self.tally.count(1)
            steps, values = series[name]
            steps.append(step + self._restarts * LAST_STEP)
            values.append(value)

    def columns(self) -> Columns:
        """All values, without series that repeat the step; empties the collection."""
        result = Columns(self.tally, null_is_nan=False)
        keys = {name: np.frombuffer(series[0], np.int64) for name, series in self._series.items() if name not in AXES}
        if not any(part.any() for part in keys.values()) and any(len(part) > 1 for part in keys.values()):
            self.tally.add("no value has a step: the values of each series were numbered")
            keys = {name: np.arange(1, len(part) + 1) for name, part in keys.items()}
        different: dict[bytes, NDArray[np.int64]] = {}
        shared = {name: different.setdefault(part.tobytes(), part) for name, part in keys.items()}
        every = np.unique(np.concatenate([*different.values()])) if different else np.empty(0, np.int64)
        rows = {id(part): np.searchsorted(every, part).astype(np.uint32) for part in different.values()}
        result.put(
            every % LAST_STEP, ((name, (rows[id(part)], self._series[name][1])) for name, part in shared.items())
        )
        self._series = {}
        return result
