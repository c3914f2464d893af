"""A W&B history as CSV: `run.history().to_csv()`, or the export of a chart, with a column for each run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from holdfast.diagnostics.readers.columns import Columns, number_in
from holdfast.diagnostics.readers.names import host_of
from holdfast.diagnostics.readers.numbering import Numbering
from holdfast.diagnostics.readers.reader import LogFile, Raw, Reader, Row, axis_of, is_metric
from holdfast.diagnostics.readers.text import Tally, lines

_MANY = 500
_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "


def is_header(line: str) -> bool:
    """Whether the first line of a file names the columns of a history."""
    try:
        names = next(csv.reader([line.rstrip("\r")]), [])
    except csv.Error:
        return False
    return len(names) > 1 and (axis_of(names) is not None or "epoch" in names)


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    """The runs of a CSV history, in the order of their columns."""
    rows = _rows(file.path, tally)
    _, header = next(rows, (0, []))
    axis = axis_of(header)
    named = _runs(header, tally)
    if axis is None and len(named) > 1:
        return []
    columns = {run: Columns(tally, null_is_nan=False) for run in named}
    step = None if axis is None else header.index(axis)
    numbering = Numbering()
    batch: list[tuple[int, list[str]]] = []
    for place, cells in rows:
        if len(cells) != len(header):
            tally.add("{n rows} with more or fewer cells than the header", place)
            cells += [""] * (len(header) - len(cells))
        batch.append((place, cells))
        if len(batch) == _MANY:
            _add(columns, named, step, batch, numbering)
            batch = []
    _add(columns, named, step, batch, numbering)
    if axis is None:
        for of_run in columns.values():
            of_run.renumber(numbering.steps(None, tally))
    return [
        Raw("wandb", host_of([*header, *metrics.values()]), run or file.name, columns[run], {})
        for run, metrics in named.items()
    ]


def _add(
    columns: Mapping[str, Columns],
    named: Mapping[str, Mapping[int, str]],
    step: int | None,
    batch: Sequence[tuple[int, list[str]]],
    numbering: Numbering,
) -> None:
    for run, metrics in named.items():
        places, steps, rows = [], [], []
        for place, cells in batch:
            row: Row = {}
            for i, name in metrics.items():
                if cells[i]:
                    number = number_in(cells[i])
                    row[name] = cells[i] if number is None else number
            if row:
                places.append(place)
                steps.append("0" if step is None else cells[step])
                rows.append(row)
                if step is None:
                    numbering.add(row, None)
        columns[run].add(places, steps, rows)


def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not empty."""
    reader = csv.reader(line + "\n" for _, some in lines(path, tally) for line in some)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            tally.add("skipped {n rows}: not CSV", reader.line_num, str(error))
            continue
        if cells:
            yield reader.line_num, cells


def _runs(header: Sequence[str], tally: Tally) -> dict[str, dict[int, str]]:
    """Run -> index of column -> metric.

    The export of a chart names its columns `run - metric`. Any other history has one run, named "".
    """
    named: dict[str, dict[int, str]] = {}
    for i, name in enumerate(header):
        run, _, metric = name.rpartition(_BETWEEN)
        if name.endswith(_RANGES):
            tally.add("left out {n columns} with ranges of other columns (__MIN, __MAX)")
        elif metric and is_metric(metric):
            named.setdefault(run, {})[i] = metric
    return named


CSV = Reader(
    recognises=lambda path, start: is_header(start.split("\n", 1)[0]),
    read=_read,
    lacks="has no row of metrics with a step",
    suffixes=(".csv", ".csv.gz"),
)
