"""A table of cells: a W&B history (`run.history().to_csv()`), the export of a chart with a column for each run, a table
with a row for each value, or what a script writes. Commas, semicolons or tabs stand between cells."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, dropwhile, islice
from pathlib import Path

from holdfast.diagnose.log import Format
from holdfast.diagnose.readers.axes import axis_in, axis_of
from holdfast.diagnose.readers.cells import decimal_text, reading, separator_of
from holdfast.diagnose.readers.columns import Columns, number_in
from holdfast.diagnose.readers.names import host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, is_metric
from holdfast.diagnose.readers.rows import read_rows
from holdfast.diagnose.readers.text import Tally, lines

_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "
_NAMES, _RUNS, _VALUE = ("tag", "metric", "key", "name"), ("run", "run_id", "run_name", "dir_name"), "value"
"""Columns of a table with a row for each value: of names, of runs if there are several, and of values."""
_TIME = re.compile(r"(?:relative|wall)[ _]time\b", re.IGNORECASE)
"""An axis of a chart that counts no steps."""
_FIRST = 500  # rows that show what the columns mean

_COMMENT = re.compile(r"\ufeff?(?:#|sep=.$|\s*$)", re.IGNORECASE)
"""A line before the header that is none, such as `#{"env_id": …}` or Excel's `sep=;`."""
_COMMENTS = 20
"""Such lines that may stand at the beginning of a file."""
_OF_TENSORBOARD = ["wall time", "step", "value"]
_BESIDE_TAG = re.compile(r"^.*tag-|(?:\.csv)?(?:\.gz)?$", re.IGNORECASE | re.DOTALL)
"""What the name of such a file has before and behind the metric's."""

Metric = tuple[str, str]
"""The run and the metric of a column."""
Cells = tuple[int, list[str]]
"""The line of a row, and its cells."""


def has_header(start: str) -> bool:
    """Whether a text begins with names of columns: one is known for steps, or half of the next cells are numbers."""
    first, *others = [line for line in start.split("\n", _COMMENTS + 2) if not _COMMENT.match(line)] or [""]
    names, cells = _split(first, separator_of(first)), _split(others[0] if others else "", separator_of(first))
    if len(names) < 2 or any(number_in(name) is not None for name in names):
        return False
    numbers = [cell for cell in cells if not cell or number_in(decimal_text(cell)) is not None]
    return (
        axis_of(names) is not None or "epoch" in names or (len(cells) == len(names) and 2 * len(numbers) > len(cells))
    )


def _split(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line.rstrip("\r")], delimiter=separator), [])
    except csv.Error:
        return []


def _read(file: LogFile, tally: Tally) -> list[Raw]:
    """The runs of a table, in the order of their columns."""
    rows = _rows(file.path, tally)
    _, header = next(rows, (0, []))
    if [name.strip().lower() for name in header] == _OF_TENSORBOARD:  # whose file is named after the metric
        header = ["", "step", _BESIDE_TAG.sub("", file.path.name)]
    first = list(islice(rows, _FIRST))
    metrics = _metrics(header, tally)
    of_value = _of_value(header)
    if of_value is None and not any(run for run, _ in filter(None, metrics)):
        read = read_rows(_named(header, chain(first, rows), tally), tally)
        form: Format = "wandb" if _separator(file.path) == "," else "table"
        return [Raw(form, frame.host, frame.named(file.name), columns, {}) for frame, columns in read]
    axis = axis_in([dict(zip(header, cells, strict=False)) for _, cells in first])
    by_run = of_value if of_value is not None and axis is not None else partial(_by_run, metrics)
    return _by_columns(file, header, chain(first, rows), axis, by_run, tally)


def _named(header: Sequence[str], rows: Iterator[Cells], tally: Tally) -> Iterator[tuple[int, Row]]:
    """Rows by the names of their columns, without empty cells."""
    for place, cells in rows:
        if len(cells) != len(header):
            tally.add("{n rows} with more or fewer cells than the header", place)
        yield place, {name: cell for name, cell in zip(header, cells, strict=False) if name and cell}


def _by_columns(
    file: LogFile,
    header: Sequence[str],
    rows: Iterator[Cells],
    axis: str | None,
    by_run: Callable[[Sequence[str]], dict[str, Row]],
    tally: Tally,
) -> list[Raw]:
    """The runs of a table whose columns or rows name them. Without a step, the rows of each are numbered."""
    if axis is None:
        clock = next(filter(_TIME.match, header), None)
        tally.add(f"the axis is {clock or 'no step'}: the rows of each run were numbered, from 1 on")
    columns: dict[str, Columns] = defaultdict(lambda: Columns(tally, null_is_nan=False))
    step = None if axis is None else header.index(axis)
    count: dict[str, int] = defaultdict(int)
    for place, cells in rows:
        if len(cells) != len(header):
            tally.add("{n rows} with more or fewer cells than the header", place)
        for run, row in by_run(cells).items():
            count[run] += 1
            columns[run].add(place, count[run] if step is None else cells[step] if step < len(cells) else "", row)
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


def _rows(path: Path, tally: Tally) -> Iterator[Cells]:
    """(line, cells) of every row that is not empty. Numbers are as a point before decimals writes them."""
    first = list(_plain_rows(path, Tally(path), _FIRST))
    read = reading((cell for _, cells in first for cell in cells), decimal=_separator(path) == ";")
    for place, cells in _plain_rows(path, tally):
        yield place, [read(cell) if "," in cell else cell for cell in cells]


def _separator(path: Path) -> str:
    return separator_of(next((line for _, line in _said(path, Tally(path))), ""))


def _said(path: Path, tally: Tally) -> Iterator[tuple[int, str]]:
    """(number, line) without the comments and blank lines before the header."""
    return dropwhile(lambda numbered: _COMMENT.match(numbered[1]) is not None, lines(path, tally))


def _plain_rows(path: Path, tally: Tally, most: int | None = None) -> Iterator[Cells]:
    """(line, cells) as the file has them, of its first lines or of all."""
    numbered = islice(_said(path, tally), most)
    reader = csv.reader((line + "\n" for _, line in numbered), delimiter=_separator(path))
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
        is_none = is_range or not is_metric(metric) or _TIME.match(metric)
        metrics.append((run, metric) if metric and not is_none else None)
    return metrics


CSV = Reader(
    recognises=lambda path, start: has_header(start),
    read=_read,
    lacks="has no row of metrics with a step",
    suffixes=(".csv", ".csv.gz"),
)
