"""What readers share: the value that a reader is, how the rows of each writer are framed, and rows as runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, AnyStr, Generic

from holdfast.diagnose.log import Format
from holdfast.diagnose.readers.axes import MAX_LABEL, axis_in, below_eval, counter_in, is_evaluation, label_in, phase_in
from holdfast.diagnose.readers.columns import MAX_NAMES, Columns, whole
from holdfast.diagnose.readers.names import AXES, SWIFT_STEP, host_of, like_a_reward, trainer_of
from holdfast.diagnose.readers.numbering import Numbering, is_numeric, is_row, step_in
from holdfast.diagnose.readers.text import Tally

Row = dict[str, Any]
Split = Callable[[Row], tuple[Any, Row]]


@dataclass(frozen=True, slots=True)
class Frame:
    """How a file's rows are framed."""

    format: Format
    host: str
    split: Split
    """Row -> (its step as read, or None; its metrics). May change the row."""
    null_is_nan: bool
    numbered: bool = False
    """Whether rows may lack a step and are numbered."""


def frame_of(rows: Sequence[Row]) -> Frame | None:
    """The frame of a file, from its first rows; None if none of them has a step and they are not rows of a trainer."""
    frame = _frame_of(rows)
    phase = phase_in(rows)
    return frame if frame is None or phase is None else replace(frame, split=_by_phase(frame.split, phase))


def _frame_of(rows: Sequence[Row]) -> Frame | None:
    names = {name for row in rows for name in row}
    if rows and all(map(_is_nested, rows)):
        inner = {name for row in rows for name in _unnested(row)}
        return Frame("jsonl", host_of(inner), _nested, null_is_nan=True)
    if 2 * sum("step" in row and isinstance(row.get("data"), dict) for row in rows) > len(rows):
        inner = {name for row in rows for name in _data(row)[1]}
        return Frame("verl", host_of(inner), _data, null_is_nan=True)
    if SWIFT_STEP in names:
        return Frame("trl", "trl", _stepless, null_is_nan=True, numbered=True)
    axis = axis_in(rows)
    if axis == "step" and not names & {"_step", "_timestamp", "_runtime"}:
        host = host_of(names)
        if host in ("trl", "verl"):
            return Frame("trl" if host == "trl" else "verl", host, _flat, null_is_nan=True)
        return Frame("holdfast" if host == "holdfast" else "jsonl", host, _ours, null_is_nan=False)
    if axis is not None:
        return history_frame(names, axis)
    if any(map(is_row, rows)):
        return stepless_frame(names)
    if _have_epochs(rows):
        return Frame("jsonl", host_of(names), _stepless, null_is_nan=True, numbered=True)
    counter = counter_in(rows) if like_a_reward(names) else None
    return _inner_frame(rows) if counter is None else history_frame(names, counter)


def _inner_frame(rows: Sequence[Row]) -> Frame | None:
    """The frame of rows whose objects have the step, such as `{"msg": …, "fields": {"step": 3, …}}`."""
    inner = {name for row in rows[:_FEW] for name in _unnested(row)}
    axis = next((name for known in AXES for name in inner if name.rpartition("/")[2] == known), None)
    if axis is None:
        return None

    def split(row: Row) -> tuple[Any, Row]:
        flat = _unnested(row)
        return flat.pop(axis, None), {name.partition("/")[2] or name: value for name, value in flat.items()}

    return Frame("jsonl", host_of(inner), split, null_is_nan=True)


def _by_phase(split: Split, phase: str) -> Split:
    """What splits rows, with the metrics of an evaluation's rows below `eval/`."""

    def of_phase(row: Row) -> tuple[Any, Row]:
        evaluated = is_evaluation(row.pop(phase, None))
        step, metrics = split(row)
        return step, below_eval(metrics) if evaluated else metrics

    return of_phase


_FEW = 50
"""Rows whose objects are looked at for a step."""
PROMPTS = ("prompt", "question", "task_id", "prompt_id", "question_id", "example_id", "problem", "input")
"""Names of what a completion answers."""
_OF_COMPLETION = {*PROMPTS, "completion", "response", "output", "answer"}
_SCORES = {"reward", "rewards", "score"}


def of_completions(rows: Sequence[Row]) -> bool:
    """Whether each row is of one completion: its reward, and something of its text or prompt."""
    return bool(rows) and not any(_OF_COMPLETION.isdisjoint(row) or _SCORES.isdisjoint(row) for row in rows)


def history_frame(names: Iterable[str], axis: str) -> Frame:
    """The frame of a history with these columns, of which one has the steps. An empty cell was not logged."""

    def split(row: Row) -> tuple[Any, Row]:
        step = row.get(axis)
        return step, {
            name: value for name, value in row.items() if is_metric(name) and name != axis and value is not None
        }

    return Frame("wandb" if axis in AXES else "jsonl", host_of(names), split, null_is_nan=False)


def stepless_frame(names: Iterable[str]) -> Frame:
    """The frame of rows that are numbered, such as those of a console."""
    return Frame("trl", trainer_of(names), _stepless, null_is_nan=True, numbered=True)


@lru_cache(MAX_NAMES)
def is_metric(name: str) -> bool:
    """Whether a column of a W&B history was logged by the run. Others are steps, or added by W&B."""
    return not name.startswith("_") and name not in AXES


def dotted(data: Mapping[Any, Any], prefix: str = "", dot: str = ".") -> dict[str, object]:
    """A nested configuration by dotted names, or with another mark between them.

    >>> dotted({"train": {"lr": 0.1}, "name": "x"})
    {'train.lr': 0.1, 'name': 'x'}
    """
    result: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            result |= dotted(value, f"{prefix}{key}{dot}", dot)
        else:
            result[f"{prefix}{key}"] = value
    return result


def _data(row: Row) -> tuple[Any, Row]:
    """verl's `{"step": …, "data": {…}}`. Its writer has no NaN and writes null."""
    data = row.get("data")
    return row.get("step"), data if isinstance(data, dict) else {}


def _is_nested(row: Row) -> bool:
    """Whether a row has a step and otherwise objects, of which verl's `data` is not one."""
    return (
        "step" in row
        and "data" not in row
        and any(isinstance(value, dict) for value in row.values())
        and not any(
            isinstance(value, float)
            for name, value in row.items()
            if name not in ("step", "time", "timestamp", "epoch")
        )
    )


def _have_epochs(rows: Sequence[Row]) -> bool:
    """Whether rows of numbers have whole epochs that never go back."""
    epochs = [epoch for row in rows if (epoch := whole(row.get("epoch"))) is not None and is_numeric(row)]
    return len(epochs) == len(rows) > 1 and sorted(epochs) == epochs


def _unnested(row: Row) -> Row:
    """The values of the objects in a row, by `object/name`; those of `metrics` by their names."""
    inner = dotted({outer: value for outer, value in row.items() if isinstance(value, dict)}, "", "/")
    return {name.removeprefix("metrics/").removeprefix("logs/"): value for name, value in inner.items()}


def _nested(row: Row) -> tuple[Any, Row]:
    return row.get("step"), _unnested(row)


def _flat(row: Row) -> tuple[Any, Row]:
    return row.pop("step", None), row


STATE_FRAME = Frame("trl", "trl", _flat, null_is_nan=True)
"""The frame of the rows of `log_history`. TRL writes None for a mean over NaN alone."""


def _stepless(row: Row) -> tuple[Any, Row]:
    return step_in(row), row


def _ours(row: Row) -> tuple[Any, Row]:
    """`metrics.jsonl`: "dropped" has the names of values that were not finite."""
    step, dropped = row.pop("step", None), row.pop("dropped", None)
    row.pop("time", None)
    if isinstance(dropped, list):
        row |= {name: float("nan") for name in dropped if isinstance(name, str)}
    return step, row


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of metrics."""

    reader: Reader[Any]
    path: Path
    name: str
    """Name of the run."""
    settings: Path | None = None
    """The run's config.toml."""
    note: str = ""
    """Why this file of the folder was chosen, if that may be surprising."""
    beside: bool = False
    """Whether it is in the folder of another log. Then it is read only if it has the same run."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Of files of rollouts: what the user named in them."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A run, by the names of its host."""

    format: Format
    host: str
    name: str
    columns: Columns
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader(Generic[AnyStr]):
    """One kind of log: of text, or a `Reader[bytes]` of a tracker's own files."""

    recognises: Callable[[Path, AnyStr], bool]
    """Whether it reads a file, by its path and the beginning of its text or bytes. The first such reader gets the
    file."""
    read: Callable[[LogFile, Tally], list[Raw]]
    """The runs in a file. The tally counts what is skipped."""
    lacks: str
    """The end of the message about a recognised file without a run, such as `has no row of metrics with a step`."""
    suffixes: tuple[str, ...]
    """Suffixes of such files. Other files of a folder are ignored."""
    certain: Callable[[Path], bool] = lambda path: True
    """Whether a file of a folder is certainly a log, for a reader that recognises almost any file. Raises `DataError`
    for one that it cannot read."""
    of_run: Callable[[Path], Path | None] = lambda folder: None
    """For the folder of one run: what to read, a file or the folder itself. None for any other folder."""


# ---- from rows to runs: one run, several that a label tells apart, or single completions

Numbered = Iterable[tuple[int, Row]]
"""Rows with their places in the file."""

_FIRST = 500  # rows from which the frame is recognised
_MAX_RUNS = 1000


def read_rows(
    rows: Numbered,
    tally: Tally,
    name: str,
    frame: Frame | None = None,
    *,
    form: Format | None = None,
    settings: Mapping[str, object] | None = None,
) -> list[Raw]:
    """The runs in these rows, or the one called `name`. No run if no row of the first ones has a step. `frame` and
    `form` are what the rows do not show themselves."""
    rows = iter(rows)
    first = list(islice(rows, _FIRST))
    if frame is None and of_completions([row for _, row in first]):
        rows = grouped(chain(first, rows), tally)
        first = list(islice(rows, _FIRST))
    frame = frame or frame_of([row for _, row in first])
    if frame is None or not first:
        return []
    label = None if frame.numbered else _label_of([row for _, row in first], frame)
    runs: dict[str, _Run] = {}
    for place, row in chain(first, rows):
        run = "" if label is None else str(row.pop(label, ""))[:MAX_LABEL]
        if run not in runs and len(runs) == _MAX_RUNS:
            tally.add(f"left out {{n rows}} of runs beyond the first {_MAX_RUNS:,}", place)
            continue
        (runs.get(run) or runs.setdefault(run, _Run(frame, tally))).add(place, row)
    if len(runs) > 1:
        tally.add(f"the file has {len(runs)} runs, distinguished by `{label}`")
    named = {f"{name}: {run}" if len(runs) > 1 and run else name: rows for run, rows in runs.items()}
    return [Raw(form or frame.format, frame.host, run, rows.columns(), settings or {}) for run, rows in named.items()]


class _Run:
    """The rows of one run."""

    def __init__(self, frame: Frame, tally: Tally) -> None:
        self.frame, self.tally = frame, tally
        self._columns = Columns(tally, null_is_nan=frame.null_is_nan)
        self._numbering = Numbering()

    def add(self, place: int, row: Row) -> None:
        """A row, which is changed."""
        step, metrics = self.frame.split(row)
        if self.frame.numbered:
            self._numbering.add(metrics, step)
            step = 0
        self._columns.add(place, step, metrics)

    def columns(self) -> Columns:
        """All rows so far."""
        if self.frame.numbered:
            self._columns.renumber(self._numbering.steps(None, self.tally))
        return self._columns


def _label_of(rows: Sequence[Row], frame: Frame) -> str | None:
    """The column that tells several runs apart; None if the rows are of one."""
    return label_in(rows, [whole(frame.split(dict(row))[0]) for row in rows])


def grouped(rows: Iterable[tuple[int, Row]], tally: Tally) -> Iterator[tuple[int, Row]]:
    """Rows of single completions as rows of the means of each group: of one step, or of one prompt in a row."""
    of: Any = None
    group: list[Row] = []
    place, groups, count = 0, 0, 0
    for number, row in chain(rows, [(0, {})]):
        key = next((row[name] for name in (*AXES, *PROMPTS) if name in row), None)
        if group and key != of:
            groups += 1
            yield place, _mean_of(group, groups)
            group = []
        of, place = key, place if group else number
        if row:
            group.append(row)
            count += 1
    if count > groups:
        tally.add(f"{count:,} rows are single completions, and were read as the means of {groups:,} groups")


def _mean_of(group: Sequence[Row], number: int) -> Row:
    """The mean of each number that rows have; the step is theirs, or the number of the group."""
    flat = [_unnested_numbers(row) for row in group]
    names = dict.fromkeys(name for row in flat for name in row)
    values = {name: [row[name] for row in flat if name in row] for name in names}
    step = next((group[0][name] for name in AXES if name in group[0]), number)
    return {**{name: _mean(part) for name, part in values.items() if name not in AXES}, "step": step}


def _mean(values: Sequence[float]) -> float:
    try:
        return sum(values) / len(values)
    except OverflowError:  # whole numbers may have any number of digits
        return float("nan")


def _unnested_numbers(row: Row) -> Row:
    """The numbers of a row and of the objects in it, by `object/name`."""
    parts = [(name, part) for name, part in row.items() if isinstance(part, dict)]
    every = {**row, **{f"{name}/{key}": value for name, part in parts for key, value in part.items()}}
    return {name: value for name, value in every.items() if type(value) in (int, float)}
