"""Tables of cells: in a file of them (CSV), or shown in a notebook or a text."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, dropwhile, islice, pairwise
from pathlib import Path

from holdfast.diagnose.log import Format
from holdfast.diagnose.readers.axes import axis_in, axis_of
from holdfast.diagnose.readers.columns import Columns, number_in
from holdfast.diagnose.readers.names import AXES, host_of
from holdfast.diagnose.readers.reader import LogFile, Raw, Reader, Row, is_metric, read_rows, stepless_frame
from holdfast.diagnose.readers.text import Tally, head, lines

_FIRST = 500
"""Rows that show what columns, and commas in numbers, mean."""


# ---- cells as numbers: which mark separates them, and what a comma in them means

SEPARATORS = (",", ";", "\t")

_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
_DECIMAL = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+(?:e[-+]?\d+)?", re.IGNORECASE)


def separator_of(line: str) -> str:
    """The mark between the names of a header.

    >>> separator_of("step;reward"), separator_of("step,reward; mean,loss"), separator_of("step")
    (';', ',', ',')
    """
    return max(SEPARATORS, key=line.count)


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether a comma in these cells stands before decimals: one of them cannot be in thousands.

    >>> has_decimal_commas(["1,305", "0,315"]), has_decimal_commas(["1,305", "12,000.5"])
    (True, False)
    """
    return any(_DECIMAL.fullmatch(cell) and not _THOUSANDS.fullmatch(cell) for cell in cells if "," in cell)


def number_text(cell: str) -> str:
    """A number with commas between thousands as number_in reads it."""
    return cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell


def decimal_text(cell: str) -> str:
    """A number with a comma before its decimals as number_in reads it.

    >>> decimal_text("0,315"), decimal_text("1.234,5"), decimal_text("1e-06")
    ('0.315', '1234.5', '1e-06')
    """
    return cell.replace(".", "").replace(",", ".") if _DECIMAL.fullmatch(cell) else cell


def reading(cells: Iterable[str], *, decimal: bool = False) -> Callable[[str], str]:
    """How the cells of a table are read, by its first ones. In a table that `;` separates, commas are decimal."""
    return decimal_text if decimal or has_decimal_commas(cells) else number_text


# ---- cells between commas, semicolons or tabs: a W&B history (`run.history().to_csv()`), the export of a chart with a
# column for each run, a table with a row for each value, or what a script writes

_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "
_OF_NAMES, _OF_RUNS, _OF_VALUE = ("tag", "metric", "key", "name"), ("run", "run_id", "run_name", "dir_name"), "value"
"""Columns of a table with a row for each value: of names, of runs if there are several, and of values."""
_TIME = re.compile(r"(?:relative|wall)[ _]time\b", re.IGNORECASE)
"""An axis of a chart that counts no steps."""
_COMMENT = re.compile(r"\ufeff?(?:#|sep=.?$|\s*$)", re.IGNORECASE)
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


def _read_csv(file: LogFile, tally: Tally) -> list[Raw]:
    """The runs of a table, in the order of their columns."""
    rows = _csv_rows(file.path, tally)
    _, header = next(rows, (0, []))
    if [name.strip().lower() for name in header] == _OF_TENSORBOARD:  # whose file is named after the metric
        header = ["", "step", _BESIDE_TAG.sub("", file.path.name)]
    first = list(islice(rows, _FIRST))
    metrics = _metrics(header, tally)
    of_value = _of_value(header)
    if of_value is None and not any(run for run, _ in filter(None, metrics)):
        form: Format = "wandb" if _separator(file.path) == "," else "table"
        return read_rows(_named(header, chain(first, rows), tally), tally, file.name, form=form)
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
        next((header.index(column) for column in known if column in header), None) for known in (_OF_NAMES, _OF_RUNS)
    )
    if name is None or _OF_VALUE not in header:
        return None
    value = header.index(_OF_VALUE)

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


def _csv_rows(path: Path, tally: Tally) -> Iterator[Cells]:
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
    read=_read_csv,
    lacks="has no row of metrics with a step",
    suffixes=(".csv", ".csv.gz"),
)


# ---- tables of a notebook, as Unsloth and transformers show them: with bars (Markdown), tabs, or aligned by blanks

_BLANKS = re.compile(r" {2,}|\t")
_AROUND = " *`"
"""Blanks, and the marks of bold and code."""
_RULE = re.compile(r"[\s|:+=-]+")
_AS_LOGGED = {"training loss": "loss", "validation loss": "eval_loss", "step": "step", "epoch": "epoch"}
_COUNTERS = {"iteration", "iterations", "iter", "update", "episode", "rollout", "round", "batch"}
_FEW = 2
"""Numbers of a row below a header."""
_WORD = re.compile(r"\S+")
_EMPTY = ("", "no log", "none", "-", "...")


Split = Callable[[str], list[str]]


def by_bars(line: str) -> list[str]:
    """The cells of a line between bars.

    >>> by_bars("| 1 | **0.5** |")
    ['1', '0.5']
    """
    return [cell.strip(_AROUND) for cell in line.strip(" \r\n").strip("|").split("|")]


def by_gaps(line: str) -> list[str]:
    """The cells of a line between tabs, or two blanks and more.

    >>> by_gaps("Step  Training Loss")
    ['Step', 'Training Loss']
    """
    line = line.strip(" \r\n")
    return [cell.strip(_AROUND) for cell in (line.split("\t") if "\t" in line else _BLANKS.split(line))]


def by_blanks(line: str) -> list[str]:
    """The words of a line, as pandas prints a table.

    >>> by_blanks("   step reward_mean    loss")
    ['step', 'reward_mean', 'loss']
    """
    return line.split()


def header_of(line: str, split: Split) -> list[str] | None:
    """The names of a table, as transformers logs them; None for any other line."""
    names = [_AS_LOGGED.get(cell.lower(), cell.replace(" / ", "/")) for cell in split(line)]
    if "step" not in names:
        names = ["step" if name.lower() in _COUNTERS else name for name in names]
    if len(names) < 2 or not {"epoch", *AXES} & {*names} or any(number_in(name) is not None for name in names):
        return None
    return names if all(names) and len(set(names)) == len(names) else None


def table_at(line: str, below: str) -> tuple[list[str], Split] | None:
    """The names of a table that begins with these two lines, and what splits its lines; None if none does. pandas puts
    names and numbers below each other, and begins rows with an index, whose name is ""."""
    for split in (by_bars,) if "|" in line else (by_gaps, by_blanks):
        names = header_of(line, split)
        cells = split(below) if names else []
        if not names or sum(number_in(decimal_text(cell)) is not None for cell in cells) < _FEW:
            continue
        if split is by_blanks:
            if _ends(line) == _ends(below)[-len(names) :]:
                return [*[""] * (len(cells) - len(names)), *names], split
        elif len(cells) == len(names):
            return names, split
    return None


def _ends(line: str) -> list[int]:
    """Where the words of a line end."""
    return [word.end() for word in _WORD.finditer(line)]


def _with_below(path: Path, tally: Tally) -> Iterator[tuple[int, str, str]]:
    """(number, line, the next line) of those that say something."""
    said = ((number, line) for number, line in lines(path, tally) if line.strip() and not _RULE.fullmatch(line))
    for (number, line), (_, below) in pairwise(chain(said, [(0, "")])):
        yield number, line, below


def _shown_rows(path: Path, tally: Tally) -> Iterator[tuple[int, Row]]:
    table: tuple[list[str], Split] | None = None
    read: Callable[[str], str] = str
    for number, line, below in _with_below(path, tally):
        begun = table_at(line, below)
        if begun is not None:
            table = begun
            first = islice(lines(path, Tally(path)), _FIRST)
            read = reading(cell for _, line in first for cell in table[1](line))
        if begun is not None or table is None:
            continue
        names, split = table
        cells = split(line)
        if len(cells) == len(names):
            named = zip(names, cells, strict=True)
            yield number, {name: read(cell) for name, cell in named if name and cell.lower() not in _EMPTY}
        elif number_in(cells[0]) is not None:
            tally.add("skipped {n rows}: more or fewer cells than the header has", number)


def _read_shown(file: LogFile, tally: Tally) -> list[Raw]:
    found = (table_at(line, below) for _, line, below in _with_below(file.path, Tally(file.path)))
    names, _ = next(filter(None, found))
    frame = stepless_frame(names)
    if "loss" not in names:  # which transformers shows in every table
        frame = replace(frame, host=host_of(names))
    return read_rows(_shown_rows(file.path, tally), tally, file.name, frame, form="table")


def _shows_table(start: str) -> bool:
    """Whether a header and a row of numbers follow each other, with a rule between at most."""
    shown = [line for line in start.split("\n") if line.strip() and not _RULE.fullmatch(line)]
    return any(table_at(line, below) for line, below in pairwise(shown))


TABLE = Reader(
    recognises=lambda path, start: _shows_table(head(path)),  # with the blanks that align it
    read=_read_shown,
    lacks="has a table without a row of numbers",
    suffixes=(".md", ".txt", ".tsv"),
)
