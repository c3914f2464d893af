"""Whether advantages prefer long rollouts: what then rises and sinks is no disease of the policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.causal import Truths, as_of, finite, trailing_mean
from holdfast.diagnostics.log import Log, Series

ADVANTAGE = "advantage/token_mean"
WINDOW = 8
FAVOURED = 0.03
"""Mean advantage per token. Above, long rollouts are preferred: right ones sink because others are pulled up, which is
a slip in the reward and no lazy displacement. Where displacement collapses were found it was below 0.01."""


def fair(log: Log, steps: NDArray[np.int64]) -> Truths:
    """[len(steps)]: where advantages do not prefer long rollouts, as far as the log tells."""
    if ADVANTAGE not in log.series:
        return np.ones(len(steps), bool)
    known = finite(log.series[ADVANTAGE])
    mean = as_of(Series(known.steps, trailing_mean(known.values, WINDOW)), steps)
    return ~(mean > FAVOURED)
