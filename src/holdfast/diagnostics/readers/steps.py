"""From rows in the order they were written to series over steps: resumed runs, late rows, repeated values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.log import Series
from holdfast.diagnostics.readers.columns import Columns
from holdfast.diagnostics.readers.tally import Tally


def series_of(columns: Columns, tally: Tally) -> tuple[dict[str, Series], NDArray[np.int64]]:
    """Series by the host's names, and every step that logged anything. Rows of one step merge, and of two values the
    later one counts; what a resumed run wrote again is gone. Empties `columns`."""
    steps = columns.steps()
    alive = columns.filled()  # a row without a value is no sign of a resumed run
    alive[alive] = _alive(steps[alive], tally)
    result: dict[str, Series] = {}
    shared: dict[bytes, NDArray[np.int64]] = {}
    repeated = 0
    for name, (rows, values) in columns.take():
        rows, values = rows[alive[rows]], values[alive[rows]]
        at = steps[rows]
        if (np.diff(at) <= 0).any():
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
            last = np.append(at[1:] != at[:-1], True)
            changed = (values[1:] != values[:-1]) & ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
            repeated += int((~last[:-1] & changed).sum())
            at, values = at[last], values[last]
        if len(at):
            # Most series of a log are logged together: one array of steps serves them all.
            result[name] = Series(shared.setdefault(at.tobytes(), at), values)
    if repeated:
        tally.add("replaced {n values} by later ones of the same step", count=repeated)
    every = np.unique(np.concatenate([*shared.values()])) if shared else np.empty(0, np.int64)
    return result, every


def _alive(steps: NDArray[np.int64], tally: Tally) -> NDArray[np.bool_]:
    """[R]: the rows that no resumed run wrote again."""
    points = list(_resumes(steps))
    if not points:
        return np.ones(len(steps), bool)
    again = np.full(len(steps) + 1, np.iinfo(np.int64).max)
    for row, _ in points:
        again[row] = steps[row]
    earliest = np.minimum.accumulate(again[::-1])[::-1]  # at which this row or a later one starts again
    alive = steps < earliest[1:]
    row, last = points[0]
    times = f"{len(points)} times, first" if len(points) > 1 else "once,"
    tally.add(
        f"the run was resumed {times} from step {last} back to step {steps[row]}: left out {{n rows}} that it wrote "
        "again",
        count=int((~alive).sum()),
    )
    return alive


def _resumes(steps: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(row, highest step before it) of every row where a run went back and on from there.

    A late row, such as an evaluation that took its time, goes back too, but after it the log is beyond the highest
    step again: it belongs to its step, and nothing is left out.
    """
    falls = (np.flatnonzero(np.diff(steps) < 0) + 1).tolist()
    for at, end in zip(falls, [*falls[1:], len(steps)], strict=False):
        highest = int(steps[at - 1])  # of all that still counts: after a late row the log is beyond it again
        beyond = at + int(np.searchsorted(steps[at:end], highest, side="right"))
        late = beyond < end and steps[beyond - 1] == steps[at]
        if not late:
            yield at, highest
