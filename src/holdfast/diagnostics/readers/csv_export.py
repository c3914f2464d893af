"""A W&B history as CSV: `run.history().to_csv()`, or a chart's export with a column per run."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.diagnostics.readers.columns import Columns, number_in
from holdfast.diagnostics.readers.frames import Frame, Row, wandb_frame
from holdfast.diagnostics.readers.tally import Tally
from holdfast.diagnostics.readers.text import lines

_MANY = 1000
_RANGES = ("__MIN", "__MAX")
_BETWEEN = " - "


@dataclass(frozen=True, slots=True)
class Part:
    """One run of a CSV file."""

    run: str
    """"" when the file has one run and does not name it."""
    frame: Frame
    columns: Columns


def columns_of_header(line: str) -> list[str]:
    """The names in a CSV file's first line; [] when it is none of a history."""
    try:
        names = next(csv.reader([line.strip("\ufeff\r\n")]), [])
    except csv.Error:
        return []
    return names if len(names) > 1 and wandb_frame(names) else []


def read_csv(path: Path, tally: Tally) -> list[Part]:
    """The runs of a CSV history, in the order of their columns. [] when the header is none of a history."""
    rows = _rows(path, tally)
    header = next(rows, (0, []))[1]
    axis = wandb_frame(header)
    if axis is None:
        return []
    runs = _runs(header, tally)
    frames = {run: wandb_frame(["_step", *names.values()]) for run, names in runs.items()}
    parts = [Part(run, frame, Columns(tally, null_is_nan=False)) for run, frame in frames.items() if frame is not None]
    step = next(i for i, name in enumerate(header) if axis.split({name: 1})[0] is not None)
    for part in parts:
        part.columns.steps()
    places: list[int] = []
    batch: list[list[str]] = []
    for place, cells in rows:
        places.append(place)
        batch.append(cells)
        if len(batch) == _MANY:
            _add(parts, runs, step, places, batch, tally, len(header))
            places, batch = [], []
    _add(parts, runs, step, places, batch, tally, len(header))
    return parts


def _add(
    parts: Sequence[Part],
    runs: Mapping[str, Mapping[int, str]],
    step: int,
    places: Sequence[int],
    batch: Sequence[list[str]],
    tally: Tally,
    width: int,
) -> None:
    for place, cells in zip(places, batch, strict=True):
        if len(cells) != width:
            tally.add("{n} rows have more or fewer cells than the header", place)
    for part in parts:
        names = runs[part.run]
        kept, steps, rows = [], [], []
        for place, cells in zip(places, batch, strict=True):
            row: Row = {}
            for i, name in names.items():
                if i < len(cells) and cells[i]:
                    number = number_in(cells[i])
                    row[name] = cells[i] if number is None else number
            if row:
                kept.append(place)
                steps.append(cells[step] if step < len(cells) else None)
                rows.append(row)
        part.columns.add(kept, steps, rows)


def _rows(path: Path, tally: Tally) -> Iterator[tuple[int, list[str]]]:
    """(number, cells) of every row that is not empty."""
    text = (line + "\n" for _, some in lines(path, tally) for line in some)
    reader = csv.reader(text)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            tally.add("skipped {n} rows that are no CSV", reader.line_num, str(error))
            continue
        if cells:
            if reader.line_num == 1:
                cells[0] = cells[0].lstrip("\ufeff")
            yield reader.line_num, cells


def _runs(header: Sequence[str], tally: Tally) -> dict[str, dict[int, str]]:
    """Run -> number of column -> name of metric. A chart's export names a column `run - metric`."""
    plain: dict[int, str] = {}
    named: dict[str, dict[int, str]] = {}
    ranges = 0
    for i, name in enumerate(header):
        if name.endswith(_RANGES):
            ranges += 1
        elif _BETWEEN in name:
            run, _, metric = name.rpartition(_BETWEEN)
            named.setdefault(run, {})[i] = metric
        elif name and not wandb_frame([name]) and not name.startswith("_"):
            plain[i] = name
    if ranges:
        tally.add("{n} columns with the ranges of others (__MIN, __MAX) were not read", count=ranges)
    for metrics in named.values():
        metrics |= {i: name for i, name in plain.items() if len(named) == 1}
    return named or {"": plain}
