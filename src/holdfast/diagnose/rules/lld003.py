"""LLD003: correct rollouts become less likely ever faster.

Meaning: Correct rollouts lose likelihood faster and faster: each update lowers their likelihood more than the one
before.

Impact: Displacement lowers the likelihood of correct rollouts, and low likelihood makes displacement worse. The reward
falls at about this time.

Limitations: This finding comes late: in a fast collapse, the reward falls at the same step.
"""

from __future__ import annotations

from holdfast.diagnose.log.trailing import Truths, Values, delayed, trailing_mean
from holdfast.diagnose.rules._parts.displacement import (
    DISPLACEMENT,
    DRIFT,
    DRIFT_SCALE,
    FAST_DECAYED_SHARE,
    FAST_ROWS,
    LOST,
    SLOW_ROWS,
    is_back,
    pace,
    share_lost,
    smoothed,
    steady,
)
from holdfast.diagnose.rules._parts.reward import long_not_preferred
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, preserve_likelihood
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def accelerates(change: Values, likelihood: Values, scale: float) -> Truths:
    """[N]: where the last updates take much more likelihood than earlier ones."""
    now = pace(change, likelihood, FAST_ROWS)
    before = delayed(pace(change, likelihood, SLOW_ROWS), FAST_ROWS)
    fast = (now > scale * FAST_SHARE) & (-trailing_mean(change, FAST_ROWS) > scale * FAST_NATS)
    often = trailing_mean((-change > scale * FAST_NATS).astype(float), FAST_ROWS) > FAST_ROWS_SHARE
    return fast & often & steady(change, FAST_ROWS) & (now > ACCELERATION_TIMES * before)


FAST_SHARE = 0.01
FAST_NATS = 0.0025
FAST_ROWS_SHARE = 0.5
"""Share of the rows that lose `FAST_NATS`: one bad update is not a spiral."""
ACCELERATION_TIMES = 2.0
"""Times the pace of the rows before."""


def spirals(rows: Rows, *columns: Values) -> Signal:
    """The loss of likelihood accelerates: by displacement, or by drift."""
    change, *fraction, likelihood = columns
    lost = share_lost(likelihood)
    where = accelerates(change, likelihood, 1.0 if fraction else DRIFT_SCALE) & (lost > FAST_DECAYED_SHARE)
    if fraction:
        where &= (trailing_mean(fraction[0], FAST_ROWS) > FAST_DISPLACED) & long_not_preferred(rows)
    return Signal(
        where,
        lambda: smoothed(rows, FAST_ROWS) | {LOST: lost},
        lambda: {"pace": pace(change, likelihood, FAST_ROWS)},
        normal=is_back(likelihood),
    )


FAST_DISPLACED = 0.65


RULE = Rule(
    title="death spiral",
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=spirals,
            rows_normal=SLOW_ROWS,
            message="Correct rollouts lose likelihood faster and faster: an update now lowers their log-likelihood "
            "by {pace:.1%}, and affects {displacement/fraction:.0%} of them.",
            min_rows=FAST_ROWS,
        ),
        Check(
            series=DRIFT,
            signal=spirals,
            rows_normal=SLOW_ROWS,
            message="Rollouts with positive advantage lose likelihood faster and faster: their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=FAST_ROWS,
            better=(DISPLACEMENT,),
        ),
    ),
    suppressed_by=("STP001",),
    phase="collapse",
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=preserve_likelihood,
    rollouts="correct",
)
