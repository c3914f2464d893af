"""Values that were logged one by one, each with its name and step, as columns."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from holdfast.diagnose.readers.columns import LAST_STEP, Columns
from holdfast.diagnose.readers.names import AXES
from holdfast.diagnose.readers.text import Tally

Point = tuple[int, str, int, float]
"""Place in the file, name, step, value."""

_MOST_RESTARTS = 1000


def columns_of(points: Iterable[Point], tally: Tally) -> Columns:
    """Points in the order in which they were logged, as columns, without series that repeat the step.

    A resumed run goes back in the steps of a series. Series may have different steps, such as those of the machine's
    load and those of the trainer, so a series that is behind another does not show a resumed run. Raises `DataError`
    for more values than a log can have.
    """
    series: dict[str, tuple[list[int], list[float]]] = {}  # steps, counted on over restarts, and values
    last: dict[str, int] = {}
    restarts = 0
    for place, name, step, value in points:
        if not 0 <= step < LAST_STEP:
            tally.add("skipped {n values}: the step is not a whole number from 0 on", place, str(step))
            continue
        if step < last.get(name, 0):
            restarts = min(restarts + 1, _MOST_RESTARTS)
            last.clear()
        last[name] = step
        tally.count(1)
        steps, values = series.setdefault(name, ([], []))
        steps.append(step + restarts * LAST_STEP)
        values.append(value)
    series = {name: column for name, column in series.items() if name not in AXES}
    return _joined(series, tally)


def _joined(series: dict[str, tuple[list[int], list[float]]], tally: Tally) -> Columns:
    """Series as columns, with a row for each step."""
    if not any(any(steps) for steps, _ in series.values()) and any(len(steps) > 1 for steps, _ in series.values()):
        tally.add("no value has a step: the values of each series were numbered")
        series = {name: (list(range(1, len(values) + 1)), values) for name, (_, values) in series.items()}
    result = Columns(tally, null_is_nan=False)
    every = np.unique([step for steps, _ in series.values() for step in steps]).astype(np.int64)
    rows = {name: np.searchsorted(every, steps).tolist() for name, (steps, _) in series.items()}
    result.put((every % LAST_STEP).tolist(), {name: (rows[name], values) for name, (_, values) in series.items()})
    return result
