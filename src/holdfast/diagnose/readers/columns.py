"""Rows of metrics, or single values, as columns of numbers; and columns as series over steps."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Series
from holdfast.diagnose.readers.names import AXES, CUMULATIVE
from holdfast.diagnose.readers.text import Tally, parsed

MAX_NAMES = 20_000
LAST_STEP = 1 << 53  # JSON's whole numbers end here: a step beyond is a damaged one

Ints = NDArray[np.int64]
Arrays = Mapping[str, tuple[Ints, NDArray[np.float64]]]
"""Name -> (numbers of the rows that have it, not falling; their values), [N] each."""


Point = tuple[int, str, int, float]
"""A value that was logged by itself: its place in the file, name, step and value."""
_MAX_RESTARTS = 1000
_MIN_HELD = 10
"""Rows that must be repeated equally often, before that is how the log was written."""
_FEW = 3
"""Steps before their having several rows is how the log was written."""
_DEEPEST = 8
"""Objects in objects of a row."""
_MAX_INNER = 100
"""Numbers of an object in a row. One with more is a table, or keyed by its data."""
_ROUNDED = re.compile(r"\s*[-+]?0*\.00+\s*")


class Rounded(float):
    """A 0 that was printed with two decimals or more. An exact one is written 0 or 0.0, so this may be 0.0004."""

    __slots__ = ()


class Columns:
    """Collects rows in the order of the file.

    A value is a number, true or false (1 and 0), a number as text ("NaN", "0.3"), null if the host writes NaN as null
    (`null_is_nan`), or a dict of these, as text too. Anything else is left out and counted.
    """

    def __init__(self, tally: Tally, *, null_is_nan: bool) -> None:
        self.tally, self.null_is_nan = tally, null_is_nan
        self._steps = array("q")
        self._columns: dict[str, tuple[array[int], array[float]]] = {}
        self.rounded: set[str] = set()
        """Names of columns with a `Rounded` 0."""

    def __bool__(self) -> bool:
        """Whether there is any value."""
        return bool(self._columns)

    def add(self, place: int, step: Any, row: Mapping[str, Any]) -> None:
        """A row: its place in the file, its step as read, and its values by name.

        Raises `DataError` for more names or numbers than a log can have.
        """
        self.tally.count(1 + len(row))
        number = self._step(place, step)
        if number is None:
            return
        at = len(self._steps)
        self._steps.append(number)
        for name, value in row.items():
            if type(value) is str and value[:1] == "{":
                value = parsed(value) or value
            known = value if type(value) is float else self._number(place, name, value)
            if known is not None:
                rows, values = self._columns.get(name) or self._begin(name)
                rows.append(at)
                values.append(known)
            elif type(value) in (dict, list):
                self._add_inner(place, at, name, value)

    def put(self, steps: Sequence[int], columns: Mapping[str, tuple[Sequence[int], Sequence[float]]]) -> None:
        """All rows at once: their steps [R]; for each name the numbers of its rows and their values, [N] each. Raises
        `DataError` for more names than a log can have."""
        self._steps = array("q", steps)
        for name, (rows, values) in columns.items():
            self._begin(name)
            self._columns[name] = array("q", rows), array("d", values)

    def renumber(self, steps: Ints) -> None:
        """Replace the step of every row. [R]"""
        self._steps = array("q", steps.tobytes())

    def steps(self) -> Ints:
        """[R]: the step of every row."""
        return np.frombuffer(self._steps.tobytes(), np.int64)

    def names(self) -> list[str]:
        """As the host wrote them."""
        return list(self._columns)

    def arrays(self) -> Arrays:
        """All values by name."""
        return {
            name: (np.frombuffer(rows.tobytes(), np.int64), np.frombuffer(values.tobytes(), np.float64))
            for name, (rows, values) in self._columns.items()
        }

    def _step(self, place: int, step: Any) -> int | None:
        number = whole(step)
        if step is None or step == "":
            self.tally.add("skipped {n rows}: no step", place)
        elif number is None:
            self.tally.add("skipped {n rows}: the step is not a whole number from 0 on", place, str(step)[:80])
        return number

    def _number(self, place: int, name: str, value: Any) -> float | None:
        if value is None or value == "":
            return float("nan") if value is None and self.null_is_nan else None
        number = number_in(value) if isinstance(value, str) else value
        if isinstance(number, Rounded):
            self.rounded.add(name)
        if isinstance(number, int | float):
            with suppress(OverflowError):
                return float(number)
        if isinstance(value, dict | list):
            return None
        self.tally.add("left out {n values}: not a number", place, f"{name} is {_kind(value)}")
        return None

    def _add_inner(self, place: int, at: int, name: str, value: Any) -> None:
        """The numbers of an object, by `name/key`, and the mean of a list of numbers."""
        inner = numbers_in(name, value)
        if len(inner) > _MAX_INNER or len(self._columns) + len(inner) > MAX_NAMES // 2:
            inner = {}
        if not inner and value:
            self.tally.add("left out {n values}: not a number", place, f"{name} is {_kind(value)}")
        for key, number in inner.items():
            rows, values = self._columns.get(key) or self._begin(key)
            rows.append(at)
            values.append(number)

    def _begin(self, name: str) -> tuple[array[int], array[float]]:
        if len(self._columns) == MAX_NAMES:
            raise DataError(
                f"{self.tally.path} has more than {MAX_NAMES:,} different names, so it is not a log of metrics "
                "by step. Give the file with one row of metrics per step"
            )
        column = array("q"), array("d")
        self._columns[name] = column
        return column


def numbers_in(name: str, value: Any) -> dict[str, float]:
    """The numbers of an object in a row, by `name/key`, and the mean of a list of numbers.

    >>> numbers_in("reward", {"total": 0.5, "why": "x"}), numbers_in("rewards", ["0.5", 1]), numbers_in("x", ["a"])
    ({'reward/total': 0.5}, {'rewards': 0.75}, {})
    """
    if isinstance(value, dict) and name.count("/") < _DEEPEST:
        every = [numbers_in(f"{name}/{key}", part) for key, part in value.items() if "_type" not in value]
        return {key: number for inner in every for key, number in inner.items()}
    if isinstance(value, list):
        known = [number for item in value if (number := _float(item)) is not None]
        return {name: sum(known) / len(known)} if known and len(known) == len(value) else {}
    number = _float(value)
    return {} if number is None else {name: number}


def _float(value: Any) -> float | None:
    number = number_in(value) if isinstance(value, str) else value
    return float(number) if isinstance(number, int | float) and abs(number) < LAST_STEP else None


# ---- values that were logged one by one


def columns_of(points: Iterable[Point], tally: Tally) -> Columns:
    """Points in the order in which they were logged, as columns, without series that repeat the step.

    A resumed run goes back in the steps of a series. Series may have different steps, such as those of the machine's
    load and those of the trainer, so a series that is behind another does not show a resumed run. Raises `DataError`
    for more values than a log can have.
    """
    series: dict[str, tuple[list[int], list[float]]] = {}  # steps, counted on over restarts, and values
    last: dict[str, int] = {}
    restarts = 0
    for place, name, step, value in points:
        if not 0 <= step < LAST_STEP:
            tally.add("skipped {n values}: the step is not a whole number from 0 on", place, str(step))
            continue
        if step < last.get(name, 0):
            restarts = min(restarts + 1, _MAX_RESTARTS)
            last.clear()
        last[name] = step
        tally.count(1)
        steps, values = series.setdefault(name, ([], []))
        steps.append(step + restarts * LAST_STEP)
        values.append(value)
    series = {name: column for name, column in series.items() if name not in AXES}
    return _joined(series, tally)


def _joined(series: dict[str, tuple[list[int], list[float]]], tally: Tally) -> Columns:
    """Series as columns, with a row for each step."""
    several = any(len(steps) > 1 for steps, _ in series.values())
    if several and len({step for steps, _ in series.values() for step in steps}) == 1:
        tally.add("the step never changes, so the values of each metric were numbered")
        series = {name: (list(range(1, len(values) + 1)), values) for name, (_, values) in series.items()}
    result = Columns(tally, null_is_nan=False)
    every = np.unique([step for steps, _ in series.values() for step in steps]).astype(np.int64)
    rows = {name: np.searchsorted(every, steps).tolist() for name, (steps, _) in series.items()}
    result.put((every % LAST_STEP).tolist(), {name: (rows[name], values) for name, (_, values) in series.items()})
    return result


# ---- numbers and steps


def number_in(text: str) -> float | None:
    """The number in a text, including "NaN", "Infinity" and "50%"; `Rounded` for 0.000; None if it is not a number.

    >>> number_in(" 0.5"), number_in("-Infinity"), number_in("50%"), number_in("1_000"), number_in("no")
    (0.5, -inf, 0.5, None, None)
    """
    if text.endswith("%"):
        share = number_in(text.rstrip("%"))
        return share and share / 100
    if "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return Rounded() if number == 0 and _ROUNDED.fullmatch(text) else number


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


# ---- series


def series_of(columns: Columns, tally: Tally) -> tuple[dict[str, Series], Ints]:
    """Series by the names of the host, and every step that logged anything. Rows with the same step are merged: the
    later of two values is used, or the mean where most steps have several. Rows that a resumed run wrote again are left
    out."""
    steps, arrays = columns.steps(), columns.arrays()
    alive = np.zeros(len(steps), bool)
    for rows, _ in arrays.values():
        alive[rows] = True
    if (np.diff(steps) <= 0).all() and len(np.unique(steps)) > 2:
        tally.add("the newest row comes first, so the rows were read in reverse order")
    elif (np.diff(steps) < 0).any():
        steps = _in_order(steps, tally)
        steps = _continued(steps, arrays, tally)
        number = np.cumsum(alive) - 1  # a row without a value does not show a resumed run
        again = _again(steps, arrays)[alive]
        alive[alive] = _alive(steps[alive], np.where(again < 0, -1, number[again]), tally)
    elif (held := _held(steps, arrays)).any():
        tally.add("left out {n rows} that repeat the row before them, as all rows do", count=int(held.sum()))
        alive &= ~held
    result: dict[str, Series] = {}
    repeated = averaged = 0
    for name, (rows, values) in arrays.items():
        kept = alive[rows]
        at, values = steps[rows[kept]], values[kept]
        if (np.diff(at) <= 0).any():
            order = np.argsort(at, kind="stable")
            at, values = at[order], values[order]
            first = np.append(True, at[1:] != at[:-1])
            changed = (values[1:] != values[:-1]) & ~(np.isnan(values[1:]) & np.isnan(values[:-1]))
            of_step = np.diff(np.append(np.flatnonzero(first), len(at)))
            if len(of_step) >= _FEW and 2 * (of_step > 1).sum() > len(of_step):
                averaged += int((~first[1:] & changed).sum())
                values = _means(values, np.flatnonzero(first))
                at = at[first]
            else:
                repeated += int((~first[1:] & changed).sum())
                last = np.append(first[1:], True)
                at, values = at[last], values[last]
        if len(at):
            result[name] = Series(at, values, name in columns.rounded)
    if averaged:
        tally.add("most steps have several rows, so {n values} were averaged by step", count=averaged)
    if repeated:
        tally.add("replaced {n values} by later values of the same step", count=repeated)
    return result, np.unique(steps[alive])


def _held(steps: Ints, arrays: Arrays) -> NDArray[np.bool_]:
    """[R]: the rows that repeat the one before them at the next step, as a callback writes that has new values at every
    tenth step alone. Such rows hide the noise of the values. False everywhere, unless each row has a value of every
    name, and all are written equally often, but for the first and the last."""
    none = np.zeros(len(steps), bool)
    if (np.diff(steps) <= 0).any() or any(len(rows) < len(steps) for rows, _ in arrays.values()):
        return none
    same = np.all([np.diff(np.nan_to_num(values)) == 0 for _, values in arrays.values()], axis=0)
    times = np.diff(np.concatenate([[0], np.flatnonzero(~same) + 1, [len(steps)]]))
    often = times[1:-1]
    regular = len(often) >= _MIN_HELD and (often == often[0]).all() and times.max() == often[0]
    return np.append(False, same) if regular else none


def _means(values: NDArray[np.float64], starts: Ints) -> NDArray[np.float64]:
    """[G]: the mean of each group [N] that begins at `starts` [G], without NaN unless there is nothing else."""
    known = ~np.isnan(values)
    count = np.add.reduceat(known.astype(np.int64), starts)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return np.asarray(np.add.reduceat(np.where(known, values, 0.0), starts) / count, np.float64)


def _in_order(steps: Ints, tally: Tally) -> Ints:
    """[R]: steps, with those that are damaged replaced: a single step between two with room for exactly one."""
    gaps = np.diff(steps)
    gap = int(np.median(gaps[gaps > 0])) if (gaps > 0).any() else 0
    before, at, after = steps[:-2], steps[1:-1], steps[2:]
    damaged = (after - before == 2 * gap) & ((at < before) | (at > after)) & (gap > 0)
    if not damaged.any():
        return steps
    tally.add(
        "the step of {n rows} does not fit between the neighbouring steps, and was replaced by the step that is "
        "missing there",
        count=int(damaged.sum()),
    )
    result = steps.copy()
    result[1:-1][damaged] = (before + gap)[damaged]
    return result


def _again(steps: Ints, arrays: Arrays) -> Ints:
    """[R]: the last earlier row that has a series of this row at this step or a later one; −1 without one."""
    result = np.full(len(steps), -1, np.int64)
    for rows, _ in arrays.values():
        back = np.diff(steps[rows]) <= 0
        result[rows[1:][back]] = np.maximum(result[rows[1:][back]], rows[:-1][back])
    return result


def _continued(steps: Ints, arrays: Arrays, tally: Tally) -> Ints:
    """[R]: steps that continue where a run counts from the beginning, though its epochs or tokens do not, or always
    after the same number of steps, as one that counts within epochs."""
    added = np.zeros_like(steps)
    cumulative = [arrays[name] for name in CUMULATIVE if name in arrays]
    rising = [(rows, values, np.maximum.accumulate(values)) for rows, values in cumulative]
    resumes = list(_resumes(steps, _again(steps, arrays)))
    from_the_start = all(steps[row] <= steps[0] for row, _ in resumes)
    in_epochs = len(resumes) > 1 and len({last for _, last in resumes}) == 1 and from_the_start
    for row, last in resumes:
        begins = [(int(np.searchsorted(rows, row)), values, so_far) for rows, values, so_far in rising]
        goes_on = any(0 < at < len(values) and values[at] > so_far[at - 1] for at, values, so_far in begins)
        if (goes_on or in_epochs) and steps[row] <= steps[0]:
            added[row] = last + 1 - steps[row]
            tally.add(
                f"steps start again after step {last}, but the run is the same, so its numbering was continued from "
                "there"
            )
    return steps + np.cumsum(added)


def _alive(steps: Ints, again: Ints, tally: Tally) -> NDArray[np.bool_]:
    """[R]: the rows that a resumed run did not write again. `again` [R]: see `_again`."""
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
    tally.resumed += [int(steps[row]) for row, _ in points]
    times = f"{len(points)} times, first" if len(points) > 1 else "once,"
    tally.add(
        f"the run was resumed {times} from step {last} back to step {steps[row]}: left out {{n rows}} that it later "
        "repeated",
        count=int((~alive).sum()),
    )
    return alive


def _resumes(steps: Ints, again: Ints) -> Iterator[tuple[int, int]]:
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
