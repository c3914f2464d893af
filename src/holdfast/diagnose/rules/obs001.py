"""OBS001: the observer in TRL counts all rollouts as correct, or all as incorrect.

Meaning: The observer counts nearly all rollouts as correct, or nearly all as incorrect, although rewards differ.

Impact: LLD001 to LLD004 compare correct rollouts before and after an update. If no rollout counts as correct, they find
nothing and a penalty preserves nothing. If all do, they find little and a penalty preserves everything.

Limitations: This is a note, not a finding. It needs five rows in which rewards differ within groups.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts import CORRECT, INCORRECT, MIXED, K
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def is_observed(log: Log) -> bool:
    """Whether it is a log of TRL with the observer."""
    return log.host == "trl" and K in log.series


def is_one_sided(rows: Rows, _: Values, mixed: Values) -> Signal:
    """Rewards differ within groups, and yet all rollouts count as correct, or all as incorrect."""
    differ = mixed > 0
    with_correct, with_incorrect = (
        np.isin(rows.steps, part.steps if (part := rows.log.series.get(name)) is not None else ())
        for name in (CORRECT, INCORRECT)
    )
    seen = np.cumsum(differ)
    none = np.cumsum(differ & ~with_correct) >= ONE_SIDED_SHARE * seen
    every = np.cumsum(differ & ~with_incorrect) >= ONE_SIDED_SHARE * seen
    where = (seen >= OBSERVED_ROWS) & (none != every)
    return Signal(where, lambda: {MIXED: mixed}, lambda: {"which": np.where(none, "incorrect", "correct")}, ~where)


OBSERVED_ROWS = 5
ONE_SIDED_SHARE = 0.8
"""Share of the rows with different rewards in which all rollouts count as correct, or all as incorrect."""


RULE = Rule(
    title="correct and incorrect rollouts not distinguished",
    applies=is_observed,
    checks=(
        Check(
            series=(K, MIXED),
            signal=is_one_sided,
            message="Rewards within groups differ, but nearly all rollouts count as {which}.",
            level="note",
        ),
    ),
    remedy=advise(
        "Set the threshold for a correct rollout between the rewards of incorrect and correct rollouts.",
        also={"trl": "It is `with_penalties(..., correct_above=X)`, by default 0.5, which suits rewards of 0 and 1."},
    ),
)
