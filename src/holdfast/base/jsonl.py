"""JSON Lines in and out, and what was skipped. `base/rows.py` reads rows of other files too."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.files import replacing, size_text
from holdfast.base.opening import MAX_LINE, lines
from holdfast.base.stored import bounded_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row, a page, or a whole file, that was not used. `str()` is `file:line: field: reason`, or `file: reason`."""

    path: str
    line: int | None
    """From 1, as editors count; blank lines count too. None for a whole file or page."""
    field: str
    """The bad field, or `row` when the line is not a JSON object; `file` or `page`."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.line is None else f"{self.path}:{self.line}: {self.problem}"

    @property
    def problem(self) -> str:
        """The reason, of a row with its field."""
        return self.reason if self.line is None else f"{self.field}: {self.reason}"


_SHOWN = 3
"""Places that are named for a reason, and rows in the refusal of a file."""
_MAX_REASONS = 5
_MAX_BAD = 100_000
"""Rows at the beginning of a file of which one must be usable, or the rest is not read."""
_DETAIL = re.compile(r"'[^']*'|(?<!-)\b\d[\d,]*\b")
"""What differs between rows that are skipped for the same reason: quoted values and numbers, but not that of UTF-8."""


class Skips:
    """Counts what a reader skipped, by reason, and remembers the first places. Pass it as `on_skip`.

    >>> skips = Skips()
    >>> for line in (3, 8): skips(Skipped(path="a.jsonl", line=line, field="id", reason=f"'{line}' occurred before"))
    >>> for name, at in ("a.txt", 4), ("b.txt", 9):
    ...     skips(Skipped(path=name, line=None, field="file", reason=f"is not UTF-8 at byte {at}"))
    >>> skips.sentences()
    ['skipped 2 rows (lines 3, 8): id: … occurred before', 'skipped 2 files (a.txt, b.txt): is not UTF-8 at byte …']
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, list[Skipped]] = {}

    def __call__(self, skip: Skipped) -> None:
        """Count it."""
        kind = _DETAIL.sub("…", skip.problem)
        self._counts[kind] += 1
        first = self._first.setdefault(kind, [])
        if len(first) < _SHOWN:
            first.append(skip)

    @property
    def total(self) -> int:
        """What was skipped."""
        return self._counts.total()

    def sentences(self) -> list[str]:
        """One for each of the most frequent reasons, and one for all the others."""
        shown = self._counts.most_common(_MAX_REASONS)
        others = self.total - sum(count for _, count in shown)
        told = [self._sentence(kind, count) for kind, count in shown]
        return told + [f"skipped {others:,} more for other reasons"] * (others > 0)

    def _sentence(self, kind: str, count: int) -> str:
        first, s = self._first[kind], "s" * (count > 1)
        unit, line = (first[0].field, "") if first[0].line is None else ("row", f"line{s} ")
        places = ", ".join(str(skip.line or skip.path) for skip in first) + ", …" * (count > len(first))
        reason = kind if len({skip.problem for skip in first}) > 1 else first[0].problem
        return f"skipped {count:,} {unit}{s} ({line}{places}): {reason}"


class BadField(Exception):
    """Raised by a row parser: this field of this row cannot be used."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field, self.reason = field, reason


def objects(
    numbered: Iterable[tuple[int, str | bytes]], on_bad: Callable[[int, BadField], None], errors: str = "strict"
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, JSON object) of numbered lines, plain or as bytes that are decoded with `errors`. Blank lines hold none;
    other lines go to `on_bad`."""
    for line, text in numbered:
        if text.strip():
            try:
                row = json_object(text, errors)
            except BadField as bad:
                on_bad(line, bad)
            else:
                yield line, row


class Judge:
    """Counts rows, reports those that cannot be used, and decides at the end whether the file can be used."""

    def __init__(
        self, path: str, what: str, on_skip: Callable[[Skipped], None], form: str = "one JSON object per line"
    ) -> None:
        self._path, self._what, self._form, self._on_skip = path, what, form, on_skip
        self.good = self._bad = 0
        self._first: list[Skipped] = []

    def skip(self, line: int, bad: BadField) -> None:
        """Count and report a bad row."""
        self.report(Skipped(path=self._path, line=line, field=bad.field, reason=bad.reason))

    def skip_long(self, line: int) -> None:
        """Count and report a line of more than `MAX_LINE` bytes."""
        self.skip(line, BadField("row", f"has more than {size_text(MAX_LINE)}"))

    def report(self, skip: Skipped) -> None:
        """Count and report what cannot be used. Raises `DataError` after many without one that can."""
        self._bad += 1
        if len(self._first) < _SHOWN:
            self._first.append(skip)
        self._on_skip(skip)
        if self._bad == _MAX_BAD and not self.good:
            self.verdict()

    def verdict(self) -> None:
        """Raises `DataError` when no row can be used, or more than half of them cannot."""
        total = self.good + self._bad
        if total == 0:
            raise DataError(f"{self._path} is empty; it needs {self._form}, at least one {self._what}")
        if self.good and 2 * self._bad <= total:
            return
        first = "\n  ".join(map(str, self._first))
        count = "none" if not self.good else f"only {self.good}"
        rows = f"the first {total:,}" if self._bad == _MAX_BAD and not self.good else total
        can = "files can be read" if self._first[0].line is None else f"rows can be used as a {self._what}"
        needs = f" A file of {self._what}s has {self._form}." * (not self.good and self._first[0].field == "row")
        raise DataError(f"{self._path}: {count} of {rows} {can}.{needs} The first that cannot:\n  {first}")


def text_field(row: Mapping[str, Any], field: str, *, way: str = "") -> str:
    """A field that must be a string and not empty. Raises `BadField`; `way` is what to do about a missing one."""
    if field not in row:
        raise BadField(field, f"missing; the row has {fields_in(row)}{way and f'; {way}'}")
    return clean_text(row[field], field)


def fields_in(row: Mapping[str, Any]) -> str:
    """The names of the fields of an object, for messages."""
    return ", ".join(map(repr, row)) or "no fields"


def clean_text(value: Any, field: str, *, empty: bool = False) -> str:
    """`value` if it is a valid UTF-8 string, and not empty unless `empty` is allowed. Raises `BadField`."""
    if not isinstance(value, str):
        raise BadField(field, f"must be a string, is {json_kind(value)}")
    if not empty and not value.strip():
        raise BadField(field, "is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise BadField(field, "holds half of a surrogate pair (a \\ud… escape), which is not a character") from None
    return value


def json_kind(value: Any) -> str:
    """What JSON calls the type of `value`, for messages."""
    if value is None:
        return "null"
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), type(value).__name__)


def write_jsonl(path: str | os.PathLike[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object per line, atomically: after a crash it is the old file or the new one.

    Returns the number of rows. NaN and infinities are refused (`ValueError`): they are not JSON.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with (
        replacing(path) as temporary,
        # A lone surrogate, which UTF-8 cannot hold, becomes its \ud… escape: valid inside a JSON text.
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="\n") as file,
    ):
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    return count


def own_rows(path: Path, problem: str | None, **needs: type) -> Iterator[dict[str, Any]]:
    """Rows of a file to which holdfast appends; none if there is no file. A line without its end was never finished.

    A line that is not an object with the fields `needs`, each of its type, raises `DataError` with `path:line` and
    `problem`; with None it is left out.
    """
    if not path.exists():
        return
    for number, line in lines(path, on_long=lambda _: None):
        if line and not line.endswith(b"\n"):
            return
        try:
            row = json_object(line)
        except BadField:
            row = {}
        if all(isinstance(row.get(name), kind) for name, kind in needs.items()):
            yield row
        elif problem is not None:
            raise DataError(f"{path}:{number} {problem}")


def json_object(text: str | bytes, errors: str = "strict") -> dict[str, Any]:
    """The JSON object of a line. `errors` is how bytes are decoded. Raises `BadField`."""
    try:
        row = bounded_json(text if isinstance(text, str) else text.decode("utf-8", errors))
    except UnicodeDecodeError as error:
        raise BadField("row", f"is not UTF-8 at byte {error.start + 1} of the line") from None
    except ValueError as error:
        if text[-1:] not in ("\n", b"\n"):
            raise BadField("row", "ends in the middle: the file was cut off here") from None
        raise BadField("row", f"is not JSON ({error})") from None
    if not isinstance(row, dict):
        raise BadField("row", f"must be a JSON object, is {json_kind(row)}")
    return row
