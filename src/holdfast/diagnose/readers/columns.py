"""Rows of metrics as columns of plain numbers, 12 bytes a value, and columns as series over steps."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Series
from holdfast.diagnose.readers.names import CUMULATIVE
from holdfast.diagnose.readers.text import Tally

MOST_NAMES = 20_000
LAST_STEP = 1 << 53  # JSON's whole numbers end here: a step beyond is a damaged one

Column = tuple[NDArray[np.intp], NDArray[np.float64]]


class Columns:
    """Collects rows in the order of the file.

    A value is a number, true or false (1 and 0), a number as text ("NaN", "0.3"), or null if the host writes NaN as
    null (`null_is_nan`). Anything else is left out and counted.
    """

    def __init__(self, tally: Tally, *, null_is_nan: bool) -> None:
        self.tally, self.null_is_nan = tally, null_is_nan
        self._steps = array("q")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}

    def __bool__(self) -> bool:
        """Whether there is any value."""
        return bool(self._columns)

    def add(self, places: Sequence[int], steps: Sequence[Any], rows: Sequence[dict[str, Any]]) -> None:
        """Some rows: their places in the file, their steps as read, and their values by name.

        Raises `DataError` for more names or numbers than a log can have.
        """
        self.tally.count(len(rows) + sum(map(len, rows)))
        checked = [self._step(place, step) for place, step in zip(places, steps, strict=True)]
        if None in checked:
            good = [i for i, step in enumerate(checked) if step is not None]
            places, rows = [places[i] for i in good], [rows[i] for i in good]
        base = len(self._steps)
        self._steps.extend(step for step in checked if step is not None)
        shapes: dict[tuple[str, ...], list[int]] = {}
        for i, row in enumerate(rows):
            shapes.setdefault(tuple(row), []).append(i)
        for names, members in shapes.items():
            if not names:
                continue
            try:
                flat = _numbers([value for i in members for value in rows[i].values()])
            except (TypeError, ValueError, OverflowError):
                for i in members:
                    self._one_by_one(places[i], base + i, rows[i])
                continue
            where = array("I", [base + i for i in members]).tobytes()
            for name, values in zip(names, np.frombuffer(flat).reshape(-1, len(names)).T, strict=True):
                numbers, column = self._column(name)
                numbers.frombytes(where)
                column.frombytes(values.tobytes())

    def put(
        self,
        steps: NDArray[np.int64],
        columns: Iterable[tuple[str, tuple[NDArray[np.uint32], array[float]]]],
    ) -> None:
        """All rows at once, by columns: the steps of the rows [R]; for each name the numbers of its rows and their
        values [N]. Raises `DataError` for more names than a log can have."""
        self._steps.frombytes(steps.astype(np.int64).tobytes())
        for name, (rows, values) in columns:
            self._column(name)
            self._columns[name] = (array("I", rows.tobytes()), values)

    def renumber(self, steps: NDArray[np.int64]) -> None:
        """Replace the step of every row. [R]"""
        self._steps = array("q", steps.tobytes())

    def steps(self) -> NDArray[np.int64]:
        """[R]: the step of every row."""
        return np.array(self._steps, np.int64)

    def again(self, steps: NDArray[np.int64]) -> NDArray[np.intp]:
        """[R]: the last earlier row that has a series of this row at this step or a later one; −1 without one. Given
        the steps of the rows [R]."""
        result = np.full(len(self._steps), -1, np.intp)
        different = {column.tobytes(): np.array(column, np.uint32) for column, _ in self._columns.values()}
        for rows in different.values():
            order = np.sort(rows)
            back = np.diff(steps[order]) <= 0
            result[order[1:][back]] = np.maximum(result[order[1:][back]], order[:-1][back])
        return result

    def filled(self) -> NDArray[np.bool_]:
        """[R]: the rows that have any value."""
        result = np.zeros(len(self._steps), bool)
        for numbers, _ in self._columns.values():
            result[np.array(numbers, np.uint32)] = True
        return result

    def names(self) -> list[str]:
        """As the host wrote them."""
        return list(self._columns)

    def get(self, name: str) -> Column | None:
        """(numbers of the rows that have it [N], their values [N]), without taking it; None if there is none."""
        column = self._columns.get(name)
        if column is None:
            return None
        return np.array(column[0], np.intp), np.array(column[1], np.float64)

    def take(self) -> Iterator[tuple[str, Column]]:
        """(name, (numbers of the rows that have it [N], rising; their values [N])); empties the collection."""
        for name in self.names():
            numbers, column = self._columns.pop(name)
            rows, values = np.frombuffer(numbers, np.uint32).astype(np.intp), np.frombuffer(column, np.float64)
            if (np.diff(rows) < 0).any():  # rows with other names between, in one batch
                order = np.argsort(rows)
                rows, values = rows[order], values[order]
            yield name, (rows, values)

    def _step(self, place: int, step: Any) -> int | None:
        if type(step) is int and 0 <= step < LAST_STEP:
            return step
        number = whole(step)
        if step is None or step == "":
            self.tally.add("skipped {n rows}: no step", place)
        elif number is None:
            self.tally.add("skipped {n rows}: the step is not a whole number from 0 on", place, str(step)[:80])
        return number

    def _one_by_one(self, place: int, row: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            number = self._number(value)
            if number is not None:
                numbers, column = self._column(name)
                numbers.append(row)
                column.append(number)
            elif value is not None and value != "":
                self.tally.add("left out {n values}: not a number", place, f"{name} is {_kind(value)}")

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
            if len(self._columns) == MOST_NAMES:
                raise DataError(
                    f"{self.tally.path} has more than {MOST_NAMES:,} different names, so it is not a log of metrics "
                    "by step. Give the file with one row of metrics per step"
                )
            column = self._columns[name] = (array("I"), array("d"))
        return column


def _numbers(values: list[Any]) -> array[float]:
    """Values of which all are numbers, or all that are not are numbers as texts. Raises for any other value."""
    try:
        return array("d", values)
    except TypeError:
        if "_" in "".join([value for value in values if type(value) is str]):  # `float` reads 1_000
            raise
        return array("d", map(float, values))


def number_in(text: str) -> float | None:
    """The number in a text, including "NaN" and "Infinity"; None if it is not a number.

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
    """A step as a whole number from 0 on; None for anything else.

    >>> whole(12.0), whole("12"), whole(True), whole(-1), whole(0.5), whole(float("nan"))
    (12, 12, None, None, None, None)
    """
    number = number_in(step) if isinstance(step, str) else step
    if isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if not 0 <= number < LAST_STEP or number != int(number):
        return None
    return int(number)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", int: "too large a number"}
    return kinds.get(type(value), type(value).__name__)


def series_of(columns: Columns, tally: Tally) -> tuple[dict[str, Series], NDArray[np.int64]]:
    """Series by the names of the host, and every step that logged anything. Rows with the same step are merged, and the
    later of two values is used. Rows that a resumed run wrote again are left out. Empties `columns`."""
    steps = columns.steps()
    alive = columns.filled()
    if (np.diff(steps) < 0).any():
        steps = _continued(steps, columns, tally)
        number = np.cumsum(alive) - 1  # a row without a value does not show a resumed run
        again = columns.again(steps)[alive]
        alive[alive] = _alive(steps[alive], np.where(again < 0, -1, number[again]), tally)
    result: dict[str, Series] = {}
    shared: dict[bytes, NDArray[np.int64]] = {}
    repeated = 0
    for name, (rows, values) in columns.take():
        rows, values = rows[alive[rows]], values[alive[rows]]
        at = steps[rows]
        if (np.diff(at) <= 0).any():
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
            last = np.append(at[1:] != at[:-1], True)
            changed = (values[1:] != values[:-1]) & ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
            repeated += int((~last[:-1] & changed).sum())
            at, values = at[last], values[last]
        if len(at):
            # Most series of a log are logged together, and share one array of steps.
            result[name] = Series(shared.setdefault(at.tobytes(), at), values)
    if repeated:
        tally.add("replaced {n values} by later values of the same step", count=repeated)
    every = np.unique(np.concatenate([*shared.values()])) if shared else np.empty(0, np.int64)
    return result, every


def _continued(steps: NDArray[np.int64], columns: Columns, tally: Tally) -> NDArray[np.int64]:
    """[R]: steps that continue where a resumed run counts from the beginning, though its epochs or tokens do not."""
    points = [(row, last) for row, last in _resumes(steps, columns.again(steps)) if steps[row] <= steps[0]]
    at = np.array([row for row, _ in points], np.intp)
    same = np.zeros(len(points), bool)
    for name in CUMULATIVE if points else ():
        if (column := columns.get(name)) is not None:
            rows, values = column
            order = np.argsort(rows, kind="stable")
            begins = np.searchsorted(rows[order], at)
            both = (begins > 0) & (begins < len(rows))
            begins = begins[both]
            same[both] |= values[order][begins] > np.maximum.accumulate(values[order])[begins - 1]
    added = np.zeros_like(steps)
    for row, last in compress(points, same):
        added[row] = last + 1 - steps[row]
        tally.add(
            f"steps start again after step {last}, but the run is the same, so its numbering was continued from there"
        )
    return steps + np.cumsum(added)


def _alive(steps: NDArray[np.int64], again: NDArray[np.intp], tally: Tally) -> NDArray[np.bool_]:
    """[R]: the rows that a resumed run did not write again. `again` [R]: see `Columns.again`."""
    points = list(_resumes(steps, again))
    if not points:
        return np.ones(len(steps), bool)
    begun = np.full(len(steps) + 1, np.iinfo(np.int64).max)
    for row, _ in points:
        begun[row] = steps[row]
    earliest = np.minimum.accumulate(begun[::-1])[::-1]  # at which this row or a later one starts again
    alive = steps < earliest[1:]
    row, last = points[0]
    if steps[row] <= steps[0]:
        tally.add(
            f"steps start again at {steps[row]} after step {last}: only the last run was read, without {{n rows}} "
            "before it",
            count=int((~alive).sum()),
        )
        return alive
    times = f"{len(points)} times, first" if len(points) > 1 else "once,"
    tally.add(
        f"the run was resumed {times} from step {last} back to step {steps[row]}: left out {{n rows}} that it later "
        "repeated",
        count=int((~alive).sum()),
    )
    return alive


def _resumes(steps: NDArray[np.int64], again: NDArray[np.intp]) -> Iterator[tuple[int, int]]:
    """(row, highest step before it) of every row at which a resumed run began.

    At such a row a series goes back in its steps. A row that is behind other rows, but whose series do not go back, is
    from an evaluation or from a part of the trainer that is late. So is a row whose series go back, if the next rows
    are beyond the highest step again. These rows belong to their steps, and nothing is left out.
    """
    highest, end, begun = -1, 0, 0
    changes = np.append(np.flatnonzero(np.diff(steps)) + 1, len(steps))
    for row in np.flatnonzero(again >= 0).tolist():
        if again[row] < begun:  # from a part of the trainer that goes back after the others
            continue
        if row > end:
            highest, end = max(highest, int(steps[end:row].max())), row
        if steps[row] >= highest:
            continue
        after = int(changes[np.searchsorted(changes, row, side="right")])
        if after < len(steps) and steps[after] > highest:
            continue
        yield row, highest
        highest, end, begun = int(steps[row]), row + 1, row
