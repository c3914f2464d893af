"""Likelihood displacement of correct rollouts (arXiv 2512.04220): what LLD001 to LLD004 share.

In recorded displacement collapses, dozens of updates each take 0.2 to 2 % off the log-likelihood of correct rollouts. A
step that is too large takes 15 % or more at once, from a policy that was not decaying. So these codes and STP001
exclude each other: the first one counts.

The local trainer, and TRL with our observer, log the displacement of correct rollouts. A loss inside verl cannot see
the policy before and after an update. There the drift of rollouts with positive advantage replaces displacement: a mean
over the optimizer steps of an update.
"""

from __future__ import annotations

import math

import numpy as np

from holdfast.diagnose.log.trailing import Truths, Values, highest, margin, needed, trailing_mean
from holdfast.diagnose.rules.rule import Rows

DISPLACEMENT = ("displacement/correct", "displacement/fraction", "likelihood/correct")
DRIFT = ("drift/positive", "likelihood/positive")
LOST = "share of log-likelihood lost"


def share_lost(likelihood: Values) -> Values:
    """[N]: share of its best five-row mean that a log-likelihood has lost; 0 while the loss is tiny or noise."""
    smooth = trailing_mean(likelihood, FAST_ROWS)
    best = highest(smooth)
    lost = best - smooth
    clear = lost > np.maximum(DECAYED_NATS, margin(likelihood, FAST_ROWS, DECAYED_ERRORS))
    return np.where(clear, lost / np.maximum(-best, 1e-6), 0.0)


FAST_ROWS = 5
"""Rows over which a spiral is judged and likelihood is smoothed."""
DECAYED_SHARE = 0.02
"""Share of its best log-likelihood that the correct set has lost. Changes in which rollouts are correct make less."""
DECAYED_NATS = 0.01
"""The same in nats per token, for a policy whose correct answers are nearly certain."""
DECAYED_ERRORS = 1.8
"""The same in standard errors. More than for an update, because the best of many means is an extreme."""


def is_back(likelihood: Values) -> Truths:
    """[N]: where a log-likelihood is nearly at its best five-row mean, within half of what counts as a decay. It takes
    `SLOW_ROWS` such rows: which rollouts are correct changes from row to row."""
    smooth = trailing_mean(likelihood, FAST_ROWS)
    best = highest(smooth)
    return best - smooth < DECAYED_SHARE / 2 * np.maximum(-best, 1e-6)


def pace(change: Values, likelihood: Values, window: int) -> Values:
    """[N]: share of the log-likelihood that an update takes, in the mean of `window` rows; below 0 where it adds."""
    return -trailing_mean(change, window) / np.maximum(-trailing_mean(likelihood, window), 1e-6)


def takes_slowly(change: Values, likelihood: Values, scale: float) -> Truths:
    """[N]: where updates lower likelihood at the pace of a slow decay; `scale` is the visible share of an update."""
    enough = -trailing_mean(change, SLOW_ROWS) > scale * SLOW_NATS
    return (pace(change, likelihood, SLOW_ROWS) > scale * SLOW_SHARE) & enough


SLOW_ROWS = 8
"""Rows over which a slow decay is judged. On a plateau about half of the correct rollouts lose likelihood in any
update, so five such rows prove little."""
SLOW_SHARE = 0.002
"""Share of the log-likelihood that an update takes. 0.2 % an update is a fifth in a hundred updates. Controls with a
suitable learning rate stay below 0.05 %."""
SLOW_NATS = 0.0005
"""Nats per token that an update takes. A sharp policy, whose tokens are nearly certain, has only a tiny share."""


def steady(change: Values, window: int) -> Truths:
    """[N]: where the mean of the last rows is below 0 by more than their scatter. A single row cannot cause that."""
    mean = trailing_mean(change, window)
    scatter = np.sqrt(np.maximum(trailing_mean(change**2, window) - mean**2, 0.0))
    return -mean > needed(STEADY_ERRORS, window, len(change)) * scatter / math.sqrt(window - 1)


STEADY_ERRORS = 2.0
"""Standard errors by which the mean of the last updates is below 0. Two are enough: the likelihood must also be low."""


def displaces(change: Values, fraction: Values, likelihood: Values) -> Truths:
    """[N]: where updates lower the likelihood of most correct rollouts, slowly but steadily."""
    most = trailing_mean(fraction, SLOW_ROWS) > SLOW_DISPLACED
    return steady(change, SLOW_ROWS) & takes_slowly(change, likelihood, 1.0) & most


SLOW_DISPLACED = 0.58
"""Share of correct rollouts that lose likelihood. Healthy plateaus stay near 0.5 and reach 0.56 (means of 8)."""


def smoothed(rows: Rows, window: int) -> dict[str, Values]:
    """The series as evidence: means of `window` rows for changes, of five rows for likelihood (the last series)."""
    *changes, likelihood = rows.columns
    means = [*(trailing_mean(change, window) for change in changes), trailing_mean(likelihood, FAST_ROWS)]
    return dict(zip(rows.names, means, strict=True))


DRIFT_SCALE = 0.5
"""The mean drift over the optimizer steps of an update is about half of the change by the whole update."""
FAST_DECAYED_SHARE = 0.05
