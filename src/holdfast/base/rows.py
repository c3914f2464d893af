"""Files of rows, in one shape: JSON lines, a JSON array, a table with a header line (.csv, .tsv), and parquet.

A bad row is skipped and reported with file, line and field; a bad file is an error.
"""

from __future__ import annotations

import codecs
import csv
import json
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.errors import DataError
from holdfast.base.jsonl import BadField, Judge, Skipped, json_kind, objects
from holdfast.base.opening import MAX_LINE, beginning, blocks, lines
from holdfast.base.parquet import count_parquet_rows, parquet_rows
from holdfast.base.stored import bounded

T = TypeVar("T")
_log = logging.getLogger("holdfast")
_MAX_ROW = 1 << 21
"""Bytes of a row of a table that has several lines. A passage has one million characters at most."""
_OPENS = re.compile(rb'(?<!")(?:"")*"(?!")')
"""What opens or closes a cell: one quote, or an odd number, of which two are a quote in the cell."""
_QUOTE = "opens a quote that is never closed at the end of a cell; delete it, or double it inside quotes"
_CONVERT = "save the table as CSV in UTF-8, or convert it, for example with `iconv -f CP1252 -t UTF-8`"
_ARRAY = re.compile(r"\s*\[")
_WRAPPED = re.compile(r'\s*\{\s*(?:"[^"]*"\s*:\s*(?:"[^"]*"|[\d.]+)\s*,\s*)*"[dD]ata"\s*:\s*\[')
"""The beginning of an object with the array inside, as the files of TriviaQA and SQuAD have it."""
_GAP = re.compile(r"[\s,]*")
_SEPARATOR = re.compile(rb'"?sep=([^"\r\n])?"?\s*', re.IGNORECASE)
"""The line before the header with which spreadsheets name the mark between cells, or none."""
_ZIP = b"PK\x03\x04"
"""Begins a spreadsheet, whatever its name."""
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
    forms = {
        "parquet": f"one row per {what}",
        "table": f"a header line and one {what} a line",
        "array": f"one JSON object per {what}, in an array",
        "lines": "one JSON object per line",
    }
    judge = Judge(str(path), what, on_skip, forms[kind])
    errors = "replace" if replace else "strict"
    match kind:
        case "parquet":
            rows = parquet_rows(path)
        case "table":
            rows = _table(path, judge, errors)
        case "array":
            rows = _array(path, judge, errors)
        case _:
            rows = objects(lines(path, judge.skip_long), judge.skip, errors)
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
        raise _spreadsheet(path)
    start = beginning(path, _BEGINNING).decode("utf-8", "replace")
    return "array" if _array_start(start, suffix) else "lines"


def _spreadsheet(path: Path) -> DataError:
    return DataError(f"{path} is a spreadsheet; save it as CSV, in UTF-8")


def count_rows(path: str | os.PathLike[str]) -> int:
    """Roughly how many rows a file holds: its lines, where rows are lines."""
    path = Path(path)
    kind = kind_of(path)
    if kind == "parquet":
        return count_parquet_rows(path)
    if kind == "array":
        return sum(1 for _ in _array(path, Judge(str(path), "row", lambda _: None), "replace"))
    return sum(1 for _, line in lines(path, on_long=lambda _: None) if line.strip())


# ---- the kinds


def _array_start(beginning: str, suffix: str) -> int | None:
    """Where the elements of an array begin; None if this is none."""
    found = _ARRAY.match(beginning) or (_WRAPPED.match(beginning) if suffix == ".json" else None)
    return found.end() if found else None


def _array(path: Path, judge: Judge, errors: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of an array, in memory that does not grow with the file."""
    decoder, number = json.JSONDecoder(), 0
    parts = codecs.iterdecode(blocks(path), "utf-8", errors)
    text = ""
    try:
        while len(text) < _BEGINNING and (part := next(parts, "")):
            text += part
        at = _array_start(text, path.suffix) or 0
        while True:
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("]", at):
                return
            try:
                value, end = decoder.raw_decode(text, at)
            except ValueError as error:
                more = _more(parts, len(text) - at)
                if not more:
                    raise BadField("row", f"is not JSON ({error}); nothing after it is read") from None
                text, at = text[at:] + more, 0
                continue
            number, at = number + 1, end
            if isinstance(value, dict):
                yield number, bounded(value)
            else:
                judge.skip(number, BadField("row", f"must be a JSON object, is {json_kind(value)}"))
    except BadField as bad:
        judge.skip(number + 1, bad)
    except DataError:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, or nested too deeply
        judge.skip(number + 1, BadField("row", f"cannot be read ({error}); nothing after it is read"))


def _more(parts: Iterator[str], size: int) -> str:
    """As many characters again as an element that is not whole has, so that the work is linear; none at its limit."""
    more: list[str] = []
    left = max(size, 1) if size < MAX_LINE else 0
    while left > 0 and (part := next(parts, "")):
        more.append(part)
        left -= len(part)
    return "".join(more)


def _table(path: Path, judge: Judge, errors: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table by the names of its header, in lower case. Cells are quoted as in spreadsheets, and in .csv may
    have several lines. Empty cells are left out."""
    names: list[str] = []
    for number, cells in _cells(path, judge, errors):
        if not names:
            names = [cell.strip().lower() for cell in cells]
        elif len(cells) != len(names):
            way = "; put a text with the mark between cells into double quotes" * (len(cells) > len(names))
            judge.skip(number, BadField("row", f"has {len(cells)} cells, but the header has {len(names)}{way}"))
        elif row := {name: cell for name, cell in zip(names, cells, strict=True) if name and cell.strip()}:
            yield number, row


def _cells(path: Path, judge: Judge, errors: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of the rows of a table that are not empty."""
    is_csv = ".csv" in path.suffixes
    numbered = _lines_of_csv(path, judge) if is_csv else lines(path, judge.skip_long)
    filled = (line for line in numbered if line[1].strip())
    first = next(filled, (1, b""))
    if first[1].startswith(_ZIP):
        raise _spreadsheet(path)
    if named := _SEPARATOR.fullmatch(first[1]) if is_csv else None:
        first = next(filled, (1, b""))
    marks = named[1].decode("latin-1") if named and named[1] else ",;\t|" if is_csv else "\t"
    delimiter = max(marks, key=lambda mark: first[1].count(mark.encode()))
    text = _Text(chain([first], numbered), _MAX_ROW if is_csv else 0)
    csv.field_size_limit(_MAX_ROW + MAX_LINE)
    reader = csv.reader(text, delimiter=delimiter, strict=is_csv)
    while True:
        text.begin()
        try:
            cells = next(reader, None)
            if cells is None:
                return
            if errors == "strict":
                b"".join(line for _, line in text.taken).decode()
        except UnicodeDecodeError as error:
            judge.skip(
                text.taken[0][0], BadField("row", f"is not UTF-8 at byte {error.start + 1} of the line; {_CONVERT}")
            )
            continue
        except csv.Error as error:
            if len(text.taken) > 1 or text.wants_more:
                judge.skip(text.resume_after_quote(), BadField("row", _QUOTE))
                continue
            try:
                line = text.taken[0][1].decode("utf-8", errors)
                escape = "\\" if '\\"' in line else None  # as databases export a quote in a cell
                cells = next(csv.reader([line], delimiter=delimiter, escapechar=escape, doublequote=escape is None))
            except (csv.Error, UnicodeDecodeError):
                judge.skip(text.taken[0][0], BadField("row", f"is not a row of a table ({error})"))
                continue
        if cells:
            yield text.taken[0][0], cells


def _lines_of_csv(path: Path, judge: Judge) -> Iterator[tuple[int, bytes]]:
    """Its lines, also where they end as on old Macs, with a carriage return alone."""
    return enumerate(
        chain.from_iterable(line.splitlines(keepends=True) or [line] for _, line in lines(path, judge.skip_long)),
        start=1,
    )


class _Text:
    """Lines for the csv module, which takes one for a row, and more while a quote is open."""

    def __init__(self, numbered: Iterator[tuple[int, bytes]], max_bytes: int) -> None:
        self._numbered, self._max_bytes = numbered, max_bytes
        self._again = deque[tuple[int, bytes]]()
        self.begin()

    def begin(self) -> None:
        """Begin the next row."""
        self.taken = list[tuple[int, bytes]]()
        """Its lines so far."""
        self.wants_more = False
        """Whether it would take more lines than there are, or more bytes than `max_bytes`."""
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        following = None
        if not self.taken or self._size <= self._max_bytes:
            following = self._again.popleft() if self._again else next(self._numbered, None)
        if following is None:
            self.wants_more = bool(self.taken)
            raise StopIteration
        self.taken.append(following)
        self._size += len(following[1])
        return following[1].decode("utf-8", "replace")

    def resume_after_quote(self) -> int:
        """The line of the quote that is open in a row of several lines. The lines after it become rows again, which is
        linear: only the last of them can open another, because it has the quote that was taken for the end of this."""
        looked_at = self.taken if self.wants_more else self.taken[:-1]
        place = max((k for k, (_, line) in enumerate(looked_at) if _OPENS.search(line)), default=0)
        self._again.extendleft(reversed(self.taken[place + 1 :]))
        return self.taken[place][0]
