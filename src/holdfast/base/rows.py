"""Files of rows, in one shape: JSON lines, a JSON array, a table with a header line (.csv, .tsv), and parquet.

A bad row is skipped and reported with file, line and field; a bad file is an error.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.errors import DataError, MissingExtra
from holdfast.base.jsonl import BadField, Judge, Skipped, json_kind, lines, objects, opened
from holdfast.base.stored import bounded

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_PART = 1 << 18
_MOST_ELEMENT = 1 << 26
"""Characters of one element of an array, and of one row of a table."""
_BATCH = 1024
"""Rows of parquet in memory at a time; contexts of HotpotQA make a row 6 kB."""
_ARRAY = re.compile(r"\s*\[")
_WRAPPED = re.compile(r'\s*\{\s*(?:"[^"]*"\s*:\s*(?:"[^"]*"|[\d.]+)\s*,\s*)*"[dD]ata"\s*:\s*\[')
"""The beginning of an object with the array inside, as the files of TriviaQA and SQuAD have it."""
_GAP = re.compile(r"[\s,]*")
_BEGINNING = 4096
"""Characters in which an array begins."""


def read_rows(
    path: str | os.PathLike[str],
    parse: Callable[[dict[str, Any], int], T],
    *,
    what: str,
    on_skip: Callable[[Skipped], None] | None = None,
) -> list[T]:
    """`parse(row, line)` of every row of a file, in order.

    `parse` raises `BadField` to skip a row. `what` names a row in messages ("question"). Skipped rows go to `on_skip`
    as they come, or, without it, into one logged warning. Blank lines hold no row. Raises `DataError` when the file
    cannot be read, holds no usable row, or when more than half of its rows are bad.
    """
    path = Path(path)
    skipped: list[Skipped] = []
    rows = list(iter_rows(path, parse, what=what, on_skip=on_skip or skipped.append))
    if skipped:
        _log.warning(
            "%s: skipped %d of %d rows; the first: %s", path, len(skipped), len(rows) + len(skipped), skipped[0]
        )
    return rows


def iter_rows(
    path: str | os.PathLike[str],
    parse: Callable[[dict[str, Any], int], T],
    *,
    what: str,
    on_skip: Callable[[Skipped], None],
    replace: bool = False,
) -> Iterator[T]:
    """As `read_rows`, one row at a time, in constant memory. Too many bad rows raise at the end.

    The number of a row is its line, or its place where rows are no lines, from 1. `replace` puts U+FFFD where a line is
    not UTF-8, instead of skipping it.
    """
    path = Path(path)
    kind = kind_of(path)
    form = {"table": f"a header line and one {what} a line", "lines": "one JSON object per line"}.get(kind, "rows")
    judge = Judge(str(path), what, on_skip, form)
    errors = "replace" if replace else "strict"
    match kind:
        case "parquet":
            rows = _parquet(path)
        case "table":
            rows = _table(path, judge, errors)
        case "array":
            rows = _array(path, judge, errors)
        case _:
            rows = objects(lines(path), judge.skip, errors)
    for number, fields in rows:
        try:
            row = parse(fields, number)
        except BadField as bad:
            judge.skip(number, bad)
        else:
            judge.good += 1
            yield row
    judge.verdict()


def kind_of(path: Path) -> str:
    """`parquet`, `table`, `array` or `lines`, by the ending of a file and its first characters. Raises `DataError`."""
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in (".parquet", ".csv", ".tsv"):
        return "parquet" if suffix == ".parquet" else "table"
    if suffix in (".xlsx", ".xls", ".ods"):
        raise DataError(f"{path} is a spreadsheet; save it as CSV, in UTF-8")
    with opened(path) as file:
        beginning = file.read(_BEGINNING).decode("utf-8-sig", "replace")
    return "array" if _array_start(beginning, suffix) else "lines"


def count_rows(path: str | os.PathLike[str]) -> int:
    """Roughly how many rows a file holds: its lines, where rows are lines."""
    path = Path(path)
    kind = kind_of(path)
    if kind == "parquet":
        with _parquet_file(path) as file:
            return int(file.metadata.num_rows)
    if kind == "array":
        return sum(1 for _ in _array(path, Judge(str(path), "row", lambda _: None), "replace"))
    return sum(1 for _ in lines(path))


# ---- the kinds


def _array_start(beginning: str, suffix: str) -> int | None:
    """Where the elements of an array begin; None if this is none."""
    found = _ARRAY.match(beginning) or (_WRAPPED.match(beginning) if suffix == ".json" else None)
    return found.end() if found else None


def _array(path: Path, judge: Judge, errors: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of an array, in memory that does not grow with the file."""
    decoder, number = json.JSONDecoder(), 0
    with opened(path) as binary, io.TextIOWrapper(binary, "utf-8-sig", errors) as file:
        try:
            text = file.read(_PART)
            at = _array_start(text, path.suffix) or 0
            while True:
                at = _GAP.match(text, at).end()  # type: ignore[union-attr]
                if text.startswith("]", at):
                    return
                try:
                    value, end = decoder.raw_decode(text, at)
                except ValueError as error:
                    more = file.read(max(_PART, len(text) - at)) if len(text) - at < _MOST_ELEMENT else ""
                    if more:
                        text, at = text[at:] + more, 0
                        continue
                    raise BadField("row", f"is not JSON ({error}); nothing after it is read") from None
                number, at = number + 1, end
                if isinstance(value, dict):
                    yield number, bounded(value)
                else:
                    judge.skip(number, BadField("row", f"must be a JSON object, is {json_kind(value)}"))
        except BadField as bad:
            judge.skip(number + 1, bad)
        except (ValueError, RecursionError) as error:  # not UTF-8, or nested too deeply
            judge.skip(number + 1, BadField("row", f"cannot be read ({error}); nothing after it is read"))


def _table(path: Path, judge: Judge, errors: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table by the names of its header, in lower case. Cells are quoted as in spreadsheets, and in .csv may
    have several lines. Empty cells are left out."""
    is_csv = ".csv" in path.suffixes
    names: list[str] = []
    delimiter, numbered = "\t", lines(path)
    for number, raw in numbered:
        while is_csv and raw.count(b'"') % 2 and len(raw) < _MOST_ELEMENT:
            following = next(numbered, None)
            if following is None:
                break
            raw += following[1]
        try:
            text = raw.decode("utf-8", errors).rstrip("\r\n")
            if not names and is_csv:
                delimiter = max(",;\t", key=text.count)
            csv.field_size_limit(_MOST_ELEMENT)
            cells = next(csv.reader([text], delimiter=delimiter))
        except UnicodeDecodeError as error:
            judge.skip(number, BadField("row", f"is not UTF-8 at byte {error.start + 1} of the line"))
            continue
        except csv.Error as error:
            judge.skip(number, BadField("row", f"is not a row of a table ({error})"))
            continue
        if not names:
            names = [cell.strip().lower() for cell in cells]
        elif len(cells) != len(names):
            judge.skip(number, BadField("row", f"has {len(cells)} cells, the header {len(names)}"))
        elif row := {name: cell for name, cell in zip(names, cells, strict=True) if name and cell.strip()}:
            yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    with _parquet_file(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except (import_pyarrow()[0].ArrowException, UnicodeDecodeError, OSError) as error:
            raise DataError(f"{path} cannot be read as parquet: {error}") from error


def _parquet_file(path: Path) -> Any:
    pyarrow, parquet = import_pyarrow()
    if not path.is_file():
        raise DataError(f"{path} does not exist" if not path.exists() else f"{path} is a folder; name a file in it")
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error


def import_pyarrow() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`. Raises `MissingExtra`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise MissingExtra("pyarrow", "data") from None
    return pyarrow, parquet
