"""LLD001: the likelihood of correct rollouts stops rising while updates lower it.

Meaning: Updates make most of their own correct rollouts less likely, and the likelihood of correct rollouts has stopped
rising.

Impact: Lazy likelihood displacement begins like this, while the reward still rises (arXiv 2512.04220).

Limitations: This is the weakest of the four LLD codes: a healthy plateau can look the same for a while.
"""

from __future__ import annotations

from holdfast.diagnose.log.trailing import Values, delayed, highest, rows_since, trailing_mean
from holdfast.diagnose.rules._parts.displacement import DISPLACEMENT, FAST_ROWS, SLOW_ROWS, displaces, smoothed
from holdfast.diagnose.rules._parts.reward import long_not_preferred
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, preserve_likelihood
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def stagnates(rows: Rows, change: Values, fraction: Values, likelihood: Values) -> Signal:
    """Updates lower the likelihood of correct rollouts, whose likelihood has stopped rising."""
    smooth = trailing_mean(likelihood, FAST_ROWS)
    flat = rows_since(smooth > delayed(highest(smooth), 1)) >= FAST_ROWS
    where = displaces(change, fraction, likelihood) & flat & long_not_preferred(rows)
    return Signal(where, lambda: smoothed(rows, SLOW_ROWS), normal=~flat)


RULE = Rule(
    title="likelihood of correct rollouts stagnates",
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=stagnates,
            message="The likelihood of correct rollouts has stopped rising, and an update makes "
            "{displacement/fraction:.0%} of them less likely.",
            rows_running=FAST_ROWS,
        ),
    ),
    suppressed_by=("LLD002", "LLD003", "STP001"),
    phase="stagnation",
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=preserve_likelihood,
    rollouts="correct",
)
