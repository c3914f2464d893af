"""Rows with their places in a file, as runs: the rows of one run, of several by a label, or of single completions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.diagnose.log import Format
from holdfast.diagnose.readers.axes import MAX_LABEL, label_in
from holdfast.diagnose.readers.columns import Columns, whole
from holdfast.diagnose.readers.names import AXES
from holdfast.diagnose.readers.numbering import Numbering
from holdfast.diagnose.readers.reader import PROMPTS, Frame, Raw, Row, frame_of, of_completions
from holdfast.diagnose.readers.text import Tally

Numbered = Iterable[tuple[int, Row]]
"""Rows with their places in the file."""

_FIRST = 500  # rows from which the frame is recognised
_MAX_RUNS = 1000


def read_rows(
    rows: Numbered,
    tally: Tally,
    name: str,
    frame: Frame | None = None,
    *,
    form: Format | None = None,
    settings: Mapping[str, object] | None = None,
) -> list[Raw]:
    """The runs in these rows, or the one called `name`. No run if no row of the first ones has a step. `frame` and
    `form` are what the rows do not show themselves."""
    rows = iter(rows)
    first = list(islice(rows, _FIRST))
    if frame is None and of_completions([row for _, row in first]):
        rows = grouped(chain(first, rows), tally)
        first = list(islice(rows, _FIRST))
    frame = frame or frame_of([row for _, row in first])
    if frame is None or not first:
        return []
    label = None if frame.numbered else _label_of([row for _, row in first], frame)
    runs: dict[str, _Run] = {}
    for place, row in chain(first, rows):
        run = "" if label is None else str(row.pop(label, ""))[:MAX_LABEL]
        if run not in runs and len(runs) == _MAX_RUNS:
            tally.add(f"left out {{n rows}} of runs beyond the first {_MAX_RUNS:,}", place)
            continue
        (runs.get(run) or runs.setdefault(run, _Run(frame, tally))).add(place, row)
    if len(runs) > 1:
        tally.add(f"the file has {len(runs)} runs, distinguished by `{label}`")
    named = {f"{name}: {run}" if len(runs) > 1 and run else name: rows for run, rows in runs.items()}
    return [Raw(form or frame.format, frame.host, run, rows.columns(), settings or {}) for run, rows in named.items()]


class _Run:
    """The rows of one run."""

    def __init__(self, frame: Frame, tally: Tally) -> None:
        self.frame, self.tally = frame, tally
        self._columns = Columns(tally, null_is_nan=frame.null_is_nan)
        self._numbering = Numbering()

    def add(self, place: int, row: Row) -> None:
        """A row, which is changed."""
        step, metrics = self.frame.split(row)
        if self.frame.numbered:
            self._numbering.add(metrics, step)
            step = 0
        self._columns.add(place, step, metrics)

    def columns(self) -> Columns:
        """All rows so far."""
        if self.frame.numbered:
            self._columns.renumber(self._numbering.steps(None, self.tally))
        return self._columns


def _label_of(rows: Sequence[Row], frame: Frame) -> str | None:
    """The column that tells several runs apart; None if the rows are of one."""
    return label_in(rows, [whole(frame.split(dict(row))[0]) for row in rows])


def grouped(rows: Iterable[tuple[int, Row]], tally: Tally) -> Iterator[tuple[int, Row]]:
    """Rows of single completions as rows of the means of each group: of one step, or of one prompt in a row."""
    of: Any = None
    group: list[Row] = []
    place, groups, count = 0, 0, 0
    for number, row in chain(rows, [(0, {})]):
        key = next((row[name] for name in (*AXES, *PROMPTS) if name in row), None)
        if group and key != of:
            groups += 1
            yield place, _mean_of(group, groups)
            group = []
        of, place = key, place if group else number
        if row:
            group.append(row)
            count += 1
    if count > groups:
        tally.add(f"{count:,} rows are single completions, and were read as the means of {groups:,} groups")


def _mean_of(group: Sequence[Row], number: int) -> Row:
    """The mean of each number that rows have; the step is theirs, or the number of the group."""
    flat = [_unnested_numbers(row) for row in group]
    names = dict.fromkeys(name for row in flat for name in row)
    values = {name: [row[name] for row in flat if name in row] for name in names}
    step = next((group[0][name] for name in AXES if name in group[0]), number)
    return {**{name: _mean(part) for name, part in values.items() if name not in AXES}, "step": step}


def _mean(values: Sequence[float]) -> float:
    try:
        return sum(values) / len(values)
    except OverflowError:  # whole numbers may have any number of digits
        return float("nan")


def _unnested_numbers(row: Row) -> Row:
    """The numbers of a row and of the objects in it, by `object/name`."""
    parts = [(name, part) for name, part in row.items() if isinstance(part, dict)]
    every = {**row, **{f"{name}/{key}": value for name, part in parts for key, value in part.items()}}
    return {name: value for name, value in every.items() if type(value) in (int, float)}
