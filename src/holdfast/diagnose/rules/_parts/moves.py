"""Whether the policy moves, as far as the log shows it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import finite
from holdfast.diagnose.log.trailing import Truths, Values
from holdfast.diagnose.rules._parts import KL
from holdfast.diagnose.rules.rule import Rows

RATIO = "ratio/max"
DECREASE = "penalty/mean_decrease"


def policy_moved(rows: Rows) -> Values:
    """[N]: 1 where the policy differs from the policy that sampled, 0 where it does not, NaN where the log does not
    show it."""
    result = np.full(len(rows.steps), np.nan)
    for name, still in ((RATIO, 1.0), (DECREASE, 0.0)):
        if name in rows.log.series:
            logged = finite(rows.log.series[name])
            at = np.isin(rows.steps, logged.steps, assume_unique=True)
            differs = logged.values[np.searchsorted(logged.steps, rows.steps[at])] > still
            result[at] = np.fmax(result[at], differs)
    return result


def kl_grows(rows: Rows, since: NDArray[np.int64]) -> Truths:
    """[N]: where the KL to the reference has grown since the last row with a gradient."""
    kl = rows.latest(KL)
    return np.asarray(kl > KL_MOVES + 2 * kl[np.minimum(since + 1, len(kl) - 1)])


KL_MOVES = 1e-4
"""Nats. A KL that more than doubles, by more than this, shows that the policy moves: the norm is not measured."""
