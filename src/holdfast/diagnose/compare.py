"""What differs first between two runs: their settings, and each series that both log, by the step where they part.

Two runs of the same settings and other seeds differ by noise at every step. So a difference counts if the mean of some
rows is further from 0 than the noise of such a mean explains, for more rows than one outlier can move it. How often two
draws of one run seem to differ all the same is measured by `python -m holdfast_research.null_pairs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series, finite
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.log.trailing import MEAN_SECOND_DIFF, MEDIAN_SECOND_DIFF, Values, first, held, trailing_mean
from holdfast.diagnose.readers.reader import dotted

WINDOWS = (5, 10, 40, 160)
"""Rows of the means: few show a large difference soon, many show a small one."""
MIN_WINDOWS = 4
"""Windows in a log for a mean to be used."""
BY_CHANCE = 0.01
"""Probability that two runs that differ by noise alone seem to differ, over all series and rows together. |N(0, 1)|
exceeds z with a probability below exp(-z²/2), and there are as many tries as series times windows."""
ENOUGH_WINDOWS, UNSEEN = 20, 2.0
"""In a log of fewer windows the noise may be this many times as large as it looks. Noise that lasts from row to row
looks like a course there: where neighbours are correlated by 0.9, one break explains half of what 20 rows show."""
TWO_BREAKS_FROM = 100
"""Windows from which on a difference may also come and go: two breaks, each a course and not noise. In shorter logs the
second break would take too much of the noise away."""
_LEFT_OUT = ("time/", "perf/", "timing", "tokens_per_", "epoch", "num_tokens", "total_flos", "train_")
"""Beginnings of the names of what counts or times, and says nothing about the policy."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that differs. A run that does not log it has None."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A series in which two runs differ."""

    series: str
    step: int
    """The first step at which the mean of the last rows differs, and keeps differing."""
    a: float
    """That mean in the first run."""
    b: float
    rows: int
    """Rows in the mean."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs between two runs."""

    settings: tuple[Setting, ...]
    """By name."""
    differences: tuple[Difference, ...]
    """By step."""
    series: int
    """Series that both runs log at 20 steps or more, which were compared."""


def compare(a: Log, b: Log) -> Comparison:
    """What differs between two runs. Series are compared at the steps that both have logged."""
    one, other = (joined(log).series for log in (a, b))
    names = (name for name in one if name in other and not name.startswith(_LEFT_OUT))
    shared = {name: rows for name in names if (rows := _at_shared_steps(finite(one[name]), finite(other[name])))}
    found = (_difference(name, *pair, tries=len(shared)) for name, pair in shared.items())
    differences = sorted((one for one in found if one is not None), key=lambda one: (one.step, one.series))
    settings = tuple(Setting(name, *values) for name, values in differing_settings([a, b]).items())
    return Comparison(settings, tuple(differences), len(shared))


def _at_shared_steps(a: Series, b: Series) -> tuple[NDArray[np.int64], Values, Values] | None:
    """(steps, values of a, values of b) of the steps that both have; None if these are too few for any mean."""
    steps, at, other = np.intersect1d(a.steps, b.steps, assume_unique=True, return_indices=True)
    return (steps, a.values[at], b.values[other]) if len(steps) >= MIN_WINDOWS * WINDOWS[0] else None


def _difference(name: str, steps: NDArray[np.int64], a: Values, b: Values, *, tries: int) -> Difference | None:
    rows = {window: row for window in WINDOWS if (row := parts_at(a - b, window, tries)) is not None}
    if not rows:
        return None
    window = min(rows, key=lambda one: rows[one])
    row = rows[window]
    of_a, of_b = (float(values[max(row + 1 - window, 0) : row + 1].mean()) for values in (a, b))
    return Difference(name, int(steps[row]), of_a, of_b, window)


def parts_at(difference: Values, window: int, tries: int = 1) -> int | None:
    """The first row from which on the mean of `window` rows of a difference is beyond its noise, for one row more than
    an outlier moves it. `tries` is the number of series.

    >>> apart = np.tile([-0.1, 0.1], 50) + np.where(np.arange(100) < 60, 0.0, 1.0)
    >>> parts_at(apart, 5), parts_at(apart[:60], 5)
    (62, None)
    """
    rows = len(difference)
    if rows < MIN_WINDOWS * window:
        return None
    errors = math.sqrt(2 * math.log(tries * rows / window / BY_CHANCE))
    errors *= 1.0 if rows >= ENOUGH_WINDOWS * window else UNSEEN
    beyond = np.abs(trailing_mean(difference, window)) > errors * noise_of_difference(difference, window)
    beyond[: window - 1] = False
    end = first(held(beyond, window + 1))
    return None if end is None else end - window


def noise_of_difference(difference: Values, window: int) -> float:
    """Standard deviation of the mean of `window` rows around the course of the difference, which is constant but for
    one break, or two in a long log. It is the larger of two estimates: from neighbouring rows, as if rows were
    independent, and from the means themselves."""
    count, rows = len(difference), np.abs(np.diff(difference, 2))
    of_rows = float(np.median(rows)) / MEDIAN_SECOND_DIFF or float(rows.mean()) / MEAN_SECOND_DIFF  # mostly zeros
    of_rows = max(of_rows, _ROUNDING * float(np.abs(difference).max())) / math.sqrt(window)
    parts = [difference]
    for _ in range(2 if count >= TWO_BREAKS_FROM * window else 1):
        parts = _broken(parts, window)
    rest = np.concatenate([part - part.mean() for part in parts])
    windows = count / window
    of_means = float(np.square(trailing_mean(rest, window)[window - 1 :]).mean())
    return max(of_rows, math.sqrt(of_means * windows / (windows - len(parts))))


def _broken(parts: list[Values], least: int) -> list[Values]:
    """The parts of a series with one more break, where it explains most; none within `least` rows of an end."""
    best: tuple[float, int, int] | None = None
    for number, part in enumerate(parts):
        at = np.arange(least, len(part) - least + 1)
        if len(at):
            sums, total = np.cumsum(part), len(part)
            explained = (sums[at - 1] - sums[-1] * at / total) ** 2 * total / (at * (total - at))
            here = float(explained.max()), number, int(at[np.argmax(explained)])
            best = here if best is None or here > best else best
    if best is None:
        return parts
    _, number, at_row = best
    return [*parts[:number], parts[number][:at_row], parts[number][at_row:], *parts[number + 1 :]]


# ---- settings


def differing_settings(logs: Sequence[Log]) -> dict[str, list[str | None]]:
    """Name -> its value in each log, of the settings that differ; None in a log without it."""
    settings = [settings_of(log) for log in logs]
    names = sorted({name for of_log in settings for name in of_log} - {"run.name"})
    values = {name: [of_log.get(name) for of_log in settings] for name in names}
    return {name: row for name, row in values.items() if len(set(row)) > 1}


def with_what_came(differing: Mapping[str, Sequence[str | None]]) -> dict[str, list[str]]:
    """Each setting that was changed -> those that came or went with it: of its section, and absent from a run.

    >>> with_what_came({"loss.penalty.coef": [None, "0.2"], "loss.penalty.name": ["none", "llds"], "lr": ["1", "2"]})
    {'loss.penalty.name': ['loss.penalty.coef'], 'lr': []}
    """
    everywhere = [name for name, values in differing.items() if None not in values]
    sections = {section: name for name in everywhere if (section := name.rpartition(".")[0])}
    came: dict[str, list[str]] = {name: [] for name in everywhere}
    for name in differing.keys() - came.keys():
        within = [section for section in sections if name.startswith(f"{section}.")]
        owner = sections[max(within, key=len)] if within else name
        came.setdefault(owner, [])
        if owner != name:
            came[owner].append(name)
    return {name: sorted(came[name]) for name in sorted(came)}


def settings_of(log: Log) -> dict[str, str]:
    """Dotted name -> value as text."""
    values = {name: value for name, value in dotted(log.settings).items() if value != {}}
    return {name: value if isinstance(value, str) else json.dumps(value, default=str) for name, value in values.items()}


def first_difference(comparison: Comparison, a: str = "A", b: str = "B") -> str:
    """What differs first, in a sentence. `a` and `b` are what it calls the runs."""
    if not comparison.series:
        return "The runs have no metric with 20 or more steps in common, so their curves cannot be compared."
    shared = f"{comparison.series} metrics" if comparison.series > 1 else "1 metric"
    if not comparison.differences:
        return f"Both runs log {shared}, and no difference exceeds the noise."
    one = comparison.differences[0]
    more = f" Of {shared}, {len(comparison.differences)} differ."
    return f"{one.series} differs first, at step {one.step}: {one.a:.3g} in {a}, {one.b:.3g} in {b}.{more}"
