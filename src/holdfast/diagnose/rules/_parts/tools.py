"""Calls of tools and searches: when a retriever fails, and how many turns a rollout without a call has."""

from __future__ import annotations

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values, held, trailing_mean
from holdfast.diagnose.rules._parts import FAILED_ROLLOUTS
from holdfast.diagnose.rules.rule import Rows, Signal


def searches(log: Log) -> bool:
    """Whether rollouts of the run search, or the log says how many fail: others have no retriever."""
    marks = ("retrieval/", "rollout/searches", "tools/", FAILED_ROLLOUTS)
    return log.host == "holdfast" or any(name.startswith(marks) for name in log.series)


def happens_often(rows: Rows, share: Values, *, most: float, running: int) -> Signal:
    """The share of searches or rollouts is above `most`, in each of the latest rows and in the mean of three."""
    smooth = trailing_mean(share, SEARCH_ROWS)
    where = (smooth > most) & held(share > most, running)
    return Signal(where, lambda: {rows.names[0]: smooth}, normal=smooth < most / 2)


SEARCH_ROWS = 3
ONE_TURN: dict[str, float] = {"verl": 2.0, "verl-async": 2.0}
"""Turns of a rollout without a call, where it is not 1. verl counts the question too."""
USED_TURNS = 0.5
"""Turns above that, in ten rows, from which on an agent takes turns."""
MAX_FAILED_FRACTION = 0.1
MAX_EMPTY_FRACTION = 0.3
"""In the latest rows and in the mean of three rows."""
