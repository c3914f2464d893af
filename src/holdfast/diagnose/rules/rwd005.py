"""RWD005: a reward function never gave anything.

Meaning: One of several reward functions has given 0 to every rollout since the log began, in 20 rows or more.

Impact: If it is the one that rewards correctness, the policy learns only what the others reward, such as a format.

Limitations: This is a note, not a finding. The task may be too hard for now, or the function may only penalise: if its
name suggests a penalty, the rule takes 0 for its best value. The rule needs `rewards/<function>/mean` of two functions.
"""

from __future__ import annotations

import re

import numpy as np

from holdfast.diagnose.log import finite
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.readers.text import listed
from holdfast.diagnose.rules._parts import REWARD
from holdfast.diagnose.rules._parts.reward import functions_of, has_functions, plain_name
from holdfast.diagnose.rules.remedies import CHECK_REWARD
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start


def never_earned(rows: Rows, _: Values) -> Signal | None:
    """A reward function has given every rollout 0 so far. The newest row decides."""
    known = {name: finite(rows.log.series[name]).values for name in functions_of(rows.log) if not PENALTY.search(name)}
    zero = [name for name, values in known.items() if len(values) >= LONG_ROWS and not values.any()]
    if not zero:
        return None
    count = len(rows.steps)
    named = listed([plain_name(name) for name in zero])
    return Signal(
        np.ones(count, bool),
        lambda: {name: rows.latest(name) for name in zero},
        lambda: {"named": np.full(count, named)},
        began=from_start,
    )


LONG_ROWS = 20
"""A row may be one group."""
PENALTY = re.compile(r"penal|punish|overlong|repet", re.IGNORECASE)
"""Names of functions of which 0 is the best."""


RULE = Rule(
    title="reward function always 0",
    kind="from the start",
    applies=has_functions,
    checks=(
        Check(
            series=(REWARD,),
            signal=never_earned,
            message="Every rollout so far got 0 from {named}, so nothing is learned from that part of the reward.",
            min_rows=LONG_ROWS,
            level="note",
        ),
    ),
    suppressed_by=("GRP001",),
    remedy=CHECK_REWARD,
)
