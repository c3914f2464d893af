"""STL001: series stand still to the last digit, whatever they are called.

Meaning: A metric that varied from row to row has had exactly one value since some step. Or it has the same value in
every row.

Impact: A metric of sampled rollouts has noise. Without noise, the metric is no longer computed, is the same for all
rollouts, or the policy always does the same.

Limitations: The rule reports nothing once the reward has risen. Schedules and counters have no noise, so a metric
counts only if it rose and fell before. A value that is the same from the first row on is a note, because a logged
setting looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from holdfast.diagnose.log import REWARDS, Log, Series, finite, glossary_entry
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.readers.names import CUMULATIVE
from holdfast.diagnose.readers.text import listed
from holdfast.diagnose.rules._parts import REWARD
from holdfast.diagnose.rules._parts.reward import functions_of, has_risen
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, in_newest


def able(log: Log) -> Iterator[tuple[str, Series]]:
    """The series that are measured, or may be."""
    functions = functions_of(log)
    for name, series in log.series.items():
        if name in (*OF_OURS, *functions, *REWARDS) or name.startswith("eval/") or glossary_entry(name) is None:
            yield name, finite(series)


OF_OURS = ("loss", "entropy/mean", "grad/norm", "rollout/length")
"""Series of the glossary that never stand still while a policy is sampled. The others have rules, or may rest at 0."""


def stopped_at(series: Series) -> int | None:
    """The row from which on a measured series has one value to the end; None if it moves, or never moved as noise does.

    >>> noise = [0.1, 0.4, 0.2, 0.5, 0.3] * 8
    >>> [stopped_at(Series(np.arange(65), np.array([*noise, *[x] * 25]))) for x in (0.45, 0.0)]
    [40, None]
    """
    values = series.values
    if len(values) < 2 * LONG_ROWS or values[-1] != values[-2]:
        return None
    moves = np.flatnonzero(values != values[-1])
    begins = int(moves[-1]) + 1 if len(moves) else 0
    before, count = values[:begins], len(values) - begins
    rests = values[-1] == 0 and (values >= 0).all()  # a share of faults that has become 0
    if begins < LONG_ROWS or count < max(LONG_ROWS, TIMES_LONGEST * _longest(before)) or rests:
        return None
    return begins if _is_noisy(before) else None


LONG_ROWS, MIN_EVALUATIONS = 20, 4
"""Rows, and evaluations, that chance does not make equal."""
TIMES_LONGEST = 3
"""Times the longest stretch of equal values before."""


def _longest(values: Values) -> int:
    """Rows in the longest stretch of equal values."""
    ends = np.flatnonzero(np.diff(values) != 0)
    return int(np.diff([-1, *ends, len(values) - 1]).max())


def _is_noisy(values: Values) -> bool:
    steps = np.diff(values)
    turns = (steps[1:] * steps[:-1] < 0).mean() if len(steps) > 1 else 0.0
    return bool(turns >= TURNS_SHARE)


TURNS_SHARE = 0.25
"""Share of the rows before in which the curve turns. What is measured has noise; schedules and counters have none."""


def never_moved(log: Log, name: str, series: Series) -> bool:
    """Whether a series has one value in every row, though it is measured: a function of the reward, an evaluation, or
    under an unknown name a share that is no setting."""
    values = series.values
    known = name in functions_of(log) or name.startswith(EVALUATION)
    if name in CUMULATIVE or name.endswith(EXTREMES):
        return False
    if len(values) < (MIN_EVALUATIONS if name.startswith(EVALUATION) else LONG_ROWS) or (values != values[0]).any():
        return False
    value = float(values[0])
    is_setting = value in [one for one in log.settings.values() if isinstance(one, int | float)]
    return value != 0 and (known or 0.01 < value <= 1) and not is_setting and not series.rounded


EVALUATION, EXTREMES = ("eval/", "eval_"), ("max", "min")
"""Beginnings of evaluations' names; and ends of those of extremes, which often are all the same."""


def stands_still(rows: Rows, _: Values) -> Signal | None:
    """Series that stand still by now, where the reward has not risen."""
    if has_risen(rows)[-1]:
        return None
    stopped = {
        name: (one, at) for name, one in able(rows.log) if (at := stopped_at(one)) is not None and name != REWARD
    }
    if not stopped:
        return None
    values = {name: float(one.values[-1]) for name, (one, _) in stopped.items()}
    steps = {name: int(one.steps[at]) for name, (one, at) in stopped.items()}
    named = listed([f"{name} at {values[name]:.3g} since step {step}" for name, step in steps.items()])
    return in_newest(rows, values, {"named": named}, int(np.searchsorted(rows.steps, min(steps.values()))))


def stood_still(rows: Rows, _: Values) -> Signal | None:
    """Series that never moved, where the reward has not risen."""
    if has_risen(rows)[-1]:
        return None
    still = {
        name: float(one.values[0]) for name, one in able(rows.log) if len(one) and never_moved(rows.log, name, one)
    }
    if not still:
        return None
    return in_newest(rows, still, {"named": listed([f"{name} at {value:.3g}" for name, value in still.items()])})


RULE = Rule(
    title="metric does not change",
    checks=(
        Check(
            series=(REWARD,),
            signal=stands_still,
            message="A measured value that used to vary no longer changes, not even in its last digit: {named}.",
            level="reason",
        ),
        Check(
            series=(REWARD,),
            signal=stood_still,
            message="A value has never changed, not even in its last digit: {named}. If it is measured, it does not "
            "distinguish rollouts.",
            level="note",
        ),
    ),
    suppressed_by=("GRP001", "LRN001", "GRD003", "RWD001"),
    remedy=advise(
        "Find out where this value comes from, and call the function that computes it on two rollouts that should "
        "differ. Read some [rollouts] from before and after that step."
    ),
)
