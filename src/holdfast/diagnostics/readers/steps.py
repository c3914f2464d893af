"""From rows in the order they were written to series over steps: resumed runs, repeated steps, late rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.log import Series
from holdfast.diagnostics.readers.columns import Columns
from holdfast.diagnostics.readers.tally import Tally


def series_of(columns: Columns, tally: Tally) -> tuple[dict[str, Series], NDArray[np.int64]]:
    """Series by the host's names, and all steps that logged anything. Later values win; a step that a resumed run
    left behind is gone. Empties `columns`."""
    steps = columns.steps()
    alive = _alive(steps, tally)
    result: dict[str, Series] = {}
    shared: dict[bytes, NDArray[np.int64]] = {}
    repeated = 0
    for name, (rows, values) in columns.take().items():
        if alive is not None:
            kept = alive[rows]
            rows, values = rows[kept], values[kept]
        at = steps[rows]
        if len(at) > 1 and (np.diff(at) <= 0).any():
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
            last = np.append(at[1:] != at[:-1], True)
            differs = (values[1:] != values[:-1]) & ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
            repeated += int((~last[:-1] & differs).sum())
            at, values = at[last], values[last]
        if len(at):
            result[name] = Series(_shared(at, shared), values)
    if repeated:
        tally.add(
            "{n} values were logged again, and differently, at the same step; the later one counts", count=repeated
        )
    everything = [part.steps for part in _distinct(result)]
    return result, np.unique(np.concatenate(everything)) if everything else np.empty(0, np.int64)


def _alive(steps: NDArray[np.int64], tally: Tally) -> NDArray[np.bool_] | None:
    """[R]: the rows that no resumed run wrote again; None when all are."""
    points = list(_resumes(steps))
    if not points:
        return None
    redone = np.full(len(steps) + 1, np.iinfo(np.int64).max)
    for row, _ in points:
        redone[row] = steps[row]
    after = np.minimum.accumulate(redone[::-1])[::-1]  # the earliest step that this row or a later one starts again at
    alive = steps < after[1:]
    row, last = points[0]
    times = f"{len(points)} times, first" if len(points) > 1 else "once,"
    tally.add(
        f"the run was resumed {times} at step {steps[row]} after step {last}; the {{n}} rows that it wrote again are "
        "left out",
        count=int((~alive).sum()),
    )
    return alive


def _resumes(steps: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """(row, highest step before it) of every row where a run went back and on from there.

    One late row, such as an evaluation that took its time, goes back too, but the next row is beyond the highest
    again: it belongs to its step, and nothing is dropped.
    """
    falls = (np.flatnonzero(np.diff(steps) < 0) + 1).tolist()
    if not falls:
        return
    highest = -1
    for at, end in zip(falls, [*falls[1:], len(steps)], strict=True):
        highest = max(highest, int(steps[at - 1]))
        beyond = at + int(np.searchsorted(steps[at:end], highest, side="right"))
        late = beyond < end and steps[beyond - 1] == steps[at]
        if not late:
            yield at, highest
            highest = -1


def _shared(at: NDArray[np.int64], shared: dict[bytes, NDArray[np.int64]]) -> NDArray[np.int64]:
    """The same array for equal steps: most series of a log are logged together."""
    return shared.setdefault(at.tobytes(), at)


def _distinct(series: Mapping[str, Series]) -> list[Series]:
    return list({id(part.steps): part for part in series.values()}.values())
