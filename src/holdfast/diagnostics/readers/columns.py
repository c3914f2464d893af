"""Rows of metrics as columns of plain numbers: 8 bytes a value, not a Python object each."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.readers.tally import Tally
from holdfast.errors import DataError

MOST_NAMES = 20_000
LAST_STEP = 1 << 53
"""A step beyond is a damaged number; JSON's own limit."""


class Columns:
    """Collects rows in file order.

    A value is a number, true and false (1 and 0), a text that says one ("NaN", "0.3"), or, where the host writes NaN
    so (`null_is_nan`), null. Anything else is counted in the tally and left out.
    """

    def __init__(self, tally: Tally, *, null_is_nan: bool) -> None:
        self.tally, self.null_is_nan = tally, null_is_nan
        self._steps = array("q")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, places: Sequence[int], steps: Sequence[Any], rows: Sequence[dict[str, Any]]) -> None:
        """Some rows: where they stand in the file, their steps as read, and their values by name."""
        good = [i for i, step in enumerate(steps) if type(step) is int and 0 <= step < LAST_STEP]
        if len(good) < len(steps):
            steps, good = self._checked(places, steps)
        if len(good) < len(steps):
            places, steps, rows = [places[i] for i in good], [steps[i] for i in good], [rows[i] for i in good]
        base = len(self._steps)
        self._steps.extend(steps)
        shapes: dict[tuple[str, ...], list[int]] = {}
        for i, row in enumerate(rows):
            shapes.setdefault(tuple(row), []).append(i)
        for names, members in shapes.items():
            if not names:
                continue
            chosen = rows if len(members) == len(rows) else [rows[i] for i in members]
            try:
                flat = array("d", chain.from_iterable(map(dict.values, chosen)))
            except (TypeError, OverflowError):
                for i in members:
                    self._slowly(places[i], base + i, rows[i])
                continue
            where = array("I", [base + i for i in members]).tobytes()
            for name, values in zip(names, np.frombuffer(flat).reshape(-1, len(names)).T, strict=True):
                column = self._column(name)
                column[0].frombytes(where)
                column[1].frombytes(values.tobytes())

    def steps(self) -> NDArray[np.int64]:
        """[R]: the step of every row, in file order."""
        return np.frombuffer(self._steps, np.int64) if self._steps else np.empty(0, np.int64)

    def take(self) -> Mapping[str, tuple[NDArray[np.intp], NDArray[np.float64]]]:
        """Name -> (numbers of the rows that have it [N], rising; their values [N]). Empties the collection."""
        result = {}
        for name in list(self._columns):
            rows, values = self._columns.pop(name)
            where, what = np.frombuffer(rows, np.uint32).astype(np.intp), np.frombuffer(values, np.float64)
            if len(where) > 1 and (np.diff(where) < 0).any():
                order = np.argsort(where, kind="stable")
                where, what = where[order], what[order]
            if len(where):
                result[name] = (where, what)
        return result

    def _checked(self, places: Sequence[int], steps: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Steps as whole numbers, and which rows have one."""
        result, good = [], []
        for i, step in enumerate(steps):
            number = whole(step)
            result.append(-1 if number is None else number)
            if number is not None:
                good.append(i)
            elif step is None:
                self.tally.add("skipped {n} rows without a step", places[i])
            else:
                self.tally.add("skipped {n} rows whose step is no whole number from 0 on", places[i], repr(step))
        return result, good

    def _slowly(self, place: int, row: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            number = self._number(value)
            if number is None:
                if value is not None and value != "":
                    self.tally.add("left out {n} values that are no numbers", place, f"{name} is {_kind(value)}")
                continue
            column = self._column(name)
            column[0].append(row)
            column[1].append(number)

    def _number(self, value: Any) -> float | None:
        if value is None:
            return float("nan") if self.null_is_nan else None
        if isinstance(value, int | float):
            try:
                return float(value)
            except OverflowError:
                return None
        return number_in(value) if isinstance(value, str) else None

    def _column(self, name: str) -> tuple[array[int], array[float]]:
        column = self._columns.get(name)
        if column is None:
            if len(self._columns) >= MOST_NAMES:
                raise DataError(
                    f"more than {MOST_NAMES:,} different names, the last {name[:60]!r}: this is no log of metrics over "
                    "steps; name the file of metrics itself"
                )
            column = self._columns[name] = (array("I"), array("d"))
        return column


def number_in(text: str) -> float | None:
    """The number a text says, "NaN" and "Infinity" included; None when it says none.

    >>> number_in(" 0.5"), number_in("-Infinity"), number_in("1_000"), number_in("no")
    (0.5, -inf, None, None)
    """
    if "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def whole(step: Any) -> int | None:
    """A step as a whole number from 0 on: 12, 12.0 or "12"; None for anything else.

    >>> whole(12.0), whole("12"), whole(True), whole(-1), whole(0.5), whole(None)
    (12, 12, None, None, None, None)
    """
    number = number_in(step) if isinstance(step, str) else step
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if not 0 <= number < LAST_STEP or number != int(number):  # false for NaN
        return None
    return int(number)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", int: "too large a number"}
    return kinds.get(type(value), type(value).__name__)
