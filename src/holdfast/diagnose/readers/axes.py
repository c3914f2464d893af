"""What a column of a log says of its rows, whatever its name: their step, that they are of an evaluation, their run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.diagnose.readers.columns import whole
from holdfast.diagnose.readers.names import AXES, COMMON, common

Row = Mapping[str, Any]

_WORDS = ("step", "update", "iteration", "iter", "it", "batch", "round", "rollout", "episode", "generation")
"""What scripts call the counter of their updates, the likeliest first. An epoch may have many rows."""
_OTHERS = re.compile(r"(?:^|[^a-z])(?:time|timestamp|ts|date|elapsed|seconds?|seed|epochs?)(?:$|[^a-z])")
_NUMBER = re.compile(r"[-+]?[\d.,]|nan|inf", re.IGNORECASE)
_PARTS = re.compile(r"[^a-z]+")
_DISTINCT = 0.5
"""Share of the rows in which a counter has a new value. Rows of an evaluation repeat that of training."""
_FALLS = 0.05
"""Share of the rows in which a counter may fall: a run that was resumed, or several in one file."""


def axis_of(names: Iterable[str]) -> str | None:
    """The best of these columns for steps, by its name alone; None if none is one."""
    known = set(names)
    return next((name for name in AXES if name in known), None)


def axis_in(rows: Sequence[Row]) -> str | None:
    """The column of the step: the best known one that moves and that most rows have, else a counter of updates, else
    the best known one. A column that is the same in all rows counts nothing.

    >>> axis_in([{"global_step": 0, "_step": i, "reward": 0.5} for i in range(3)])
    '_step'
    >>> axis_in([{"update": i, "tokens": 512 * i, "reward": 0.5} for i in range(3)])
    'update'
    """
    known = [name for name in AXES if any(name in row for row in rows)]
    if len(rows) < 2:
        return next(iter(known), None)
    moving = [name for name in known if len({whole(row[name]) for row in rows if name in row}) > 1]
    common = [name for name in moving if 2 * sum(row.get(name) is not None for row in rows) >= len(rows)]
    return next(iter((*common, *moving, *filter(_is_of_updates, _counters(rows)), *known)), None)


def counter_in(rows: Sequence[Row]) -> str | None:
    """The likeliest counter of any kind, such as one of samples or of tokens; None if no column counts."""
    return next(iter(_counters(rows)), None)


def _counters(rows: Sequence[Row]) -> list[str]:
    """Names of columns of whole numbers that rise from row to row, the likeliest step first."""
    names = dict.fromkeys(name for row in rows for name in row)
    return sorted(
        (
            name
            for name in names
            if not _OTHERS.search(name.lower())
            and common(name) not in COMMON
            and _counts([row.get(name) for row in rows])
        ),
        key=lambda name: (_likeliness(name), len(name)),
    )


def _counts(values: Sequence[Any]) -> bool:
    numbers = [number for value in values if (number := whole(value)) is not None]
    if len(numbers) < len(values) or len(numbers) < 2:
        return False
    falls = sum(after < before for before, after in pairwise(numbers))
    return falls <= _FALLS * len(numbers) and len(set(numbers)) >= max(2, _DISTINCT * len(numbers))


def _likeliness(name: str) -> int:
    """The rank of a counter's name; the last one for a name without any of the words."""
    parts = {part.removesuffix("s") for part in _PARTS.split(name.lower())}
    return next((rank for rank, word in enumerate(_WORDS) if word in parts), 0 if name.lower().endswith("step") else 99)


def _is_of_updates(name: str) -> bool:
    return _likeliness(name) < len(_WORDS)


# ---- rows of an evaluation

_EVALUATIONS = frozenset({"eval", "evaluation", "evaluate", "val", "valid", "validation", "test", "dev"})


def is_evaluation(text: object) -> bool:
    """Whether a text says that a row is of an evaluation.

    >>> is_evaluation("Eval"), is_evaluation("train"), is_evaluation(1)
    (True, False, False)
    """
    return isinstance(text, str) and text.lower() in _EVALUATIONS


def below_eval(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of an evaluation, with the names by which it is told from one of training."""
    return {f"eval/{name.removeprefix('eval_')}": value for name, value in row.items()}


def phase_in(rows: Sequence[Row]) -> str | None:
    """The column that says which rows are of an evaluation, beside rows that are not; None without one."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if is_evaluation(value))
    return next((name for name in names if not all(is_evaluation(row.get(name)) for row in rows)), None)


# ---- rows of several runs

LABELS = ("run", "run_id", "run_name", "experiment", "experiment_name", "exp", "exp_name", "trial", "seed")
"""What scripts call the column, or the key, that names a run."""
MAX_LABEL = 100
"""Characters of a label, and of the name of a run."""
_MANY = 0.2
"""Share of the mean number of rows that each run must have, for a column of another name to be a label."""


def label_in(rows: Sequence[Row], steps: Sequence[int | None]) -> str | None:
    """The column that tells several runs apart: steps do not fall within each of its values, and come again in others.

    >>> rows = [{"arm": arm, "reward": 0.5} for arm in "ab" for _ in range(3)]
    >>> label_in(rows, [1, 2, 3, 1, 2, 3]), label_in(rows, [1, 2, 3, 4, 5, 6])
    ('arm', None)
    """
    names = [name for name in rows[0] if all(_is_label(name, row.get(name)) for row in rows)]
    named = next((name for name in names if name.lower() in LABELS and isinstance(rows[0][name], str)), None)
    known = [step for step in steps if step is not None]
    if named or len(known) < len(steps) or len(set(known)) == len(known):
        return named
    return next((name for name in names if _tells_apart([row[name] for row in rows], known)), None)


def _is_label(name: str, value: object) -> bool:
    if name.lower() in LABELS and isinstance(value, int | str):
        return True
    return isinstance(value, str) and 0 < len(value) <= MAX_LABEL and not (is_evaluation(value) or _NUMBER.match(value))


def _tells_apart(labels: Sequence[Any], steps: Sequence[int]) -> bool:
    of: dict[Any, list[int]] = {}
    for label, step in zip(labels, steps, strict=True):
        of.setdefault(label, []).append(step)
    rise = all(before <= after for run in of.values() for before, after in pairwise(run))
    return rise and len(of) > 1 and min(map(len, of.values())) >= max(2, _MANY * len(steps) / len(of))
