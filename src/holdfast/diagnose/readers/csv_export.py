"""A W&B history as CSV: `run.history().to_csv()`, or the export of a chart, with a column for each run; or a row for
each value, with columns for its name and its run."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from holdfast.diagnose.readers.axes import axis_of
from holdfast.diagnose.readers.columns import Columns
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.numbering import Numbering
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, is_metric
from holdfast.diagnose.readers.text import Tally, lines

_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "
_NAMES, _RUNS, _VALUE = ("tag", "metric", "key", "name"), ("run", "run_id", "run_name", "dir_name"), "value"
"""Columns of a table with a row for each value: of names, of runs if there are several, and of values."""

Metric = tuple[str, str]
"""The run and the metric of a column."""


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
    metrics = _metrics(header, tally)
    columns = defaultdict(
        lambda: Columns(tally, null_is_nan=False),
        {run: Columns(tally, null_is_nan=False) for run, _ in filter(None, metrics)},
    )
    if axis is None and len(columns) > 1:
        return []
    step = None if axis is None else header.index(axis)
    numbering = Numbering()
    by_run = (None if axis is None else _of_value(header)) or partial(_by_run, metrics)
    for place, cells in rows:
        if len(cells) != len(header):
            tally.add("{n rows} with more or fewer cells than the header", place)
        for run, row in by_run(cells).items():
            if step is None:
                numbering.add(row, None)
            columns[run].add(place, 0 if step is None else cells[step] if step < len(cells) else "", row)
    if step is None:
        for of_run in columns.values():  # at most one
            of_run.renumber(numbering.steps(None, tally))
    return [
        Raw("wandb", host_of([*of_run.names(), axis or ""]), run or file.name, of_run, {})
        for run, of_run in columns.items()
    ]


def _of_value(header: Sequence[str]) -> Callable[[Sequence[str]], dict[str, Row]] | None:
    """What reads a row that holds one value; None if it has a column for each metric."""
    name, run = (
        next((header.index(column) for column in known if column in header), None) for known in (_NAMES, _RUNS)
    )
    if name is None or _VALUE not in header:
        return None
    value = header.index(_VALUE)

    def read(cells: Sequence[str]) -> dict[str, Row]:
        whole = len(cells) == len(header)
        return {"" if run is None else cells[run]: {cells[name]: cells[value]}} if whole else {}

    return read


def _by_run(metrics: Sequence[Metric | None], cells: Sequence[str]) -> dict[str, Row]:
    """For each run, the cells of a row by their metrics, without empty ones."""
    rows: dict[str, Row] = {}
    for metric, cell in zip(metrics, cells, strict=False):
        if cell and metric is not None:
            run, name = metric
            rows.setdefault(run, {})[name] = cell
    return rows


def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every row that is not empty."""
    reader = csv.reader(line + "\n" for _, line in lines(path, tally))
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


def _metrics(header: Sequence[str], tally: Tally) -> list[Metric | None]:
    """For each column, its run and metric; None for a column without a metric.

    The export of a chart names its columns `run - metric`. Any other history has one run, named "".
    """
    metrics: list[Metric | None] = []
    for name in header:
        run, _, metric = name.rpartition(_BETWEEN)
        is_range = name.endswith(_RANGES)
        if is_range:
            tally.add("left out {n columns} with ranges of other columns (__MIN, __MAX)")
        metrics.append((run, metric) if metric and is_metric(metric) and not is_range else None)
    return metrics


CSV = Reader(
    recognises=lambda path, start: is_header(start.split("\n", 1)[0]),
    read=_read,
    lacks="has no row of metrics with a step",
    suffixes=(".csv", ".csv.gz"),
)
