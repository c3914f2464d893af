"""LLD002: correct rollouts become less likely, slowly and steadily.

Meaning: Every update makes most correct rollouts less likely, and correct rollouts are less likely than before.

Impact: Correct answers become improbable, and unlikely rollouts make the next updates noisier. In published runs, the
reward falls dozens of steps later.

Limitations: Runs with a weak penalty can stay in this state for a long time. `likelihood/correct` alone proves nothing,
because the set of correct rollouts changes with the accuracy. So the decrease per update and the decrease since the
best value must both exceed their noise.
"""

from __future__ import annotations

from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts.displacement import (
    DECAYED_SHARE,
    DISPLACEMENT,
    DRIFT,
    DRIFT_SCALE,
    FAST_ROWS,
    LOST,
    SLOW_ROWS,
    displaces,
    is_back,
    share_lost,
    smoothed,
    takes_slowly,
)
from holdfast.diagnose.rules._parts.reward import long_not_preferred
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, preserve_likelihood
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def decays(rows: Rows, *columns: Values) -> Signal:
    """Correct rollouts lose likelihood steadily: by displacement, or by drift, which has no fraction of rollouts."""
    change, *fraction, likelihood = columns
    lost = share_lost(likelihood)
    if fraction:
        where = displaces(change, fraction[0], likelihood) & long_not_preferred(rows)
    else:
        where = takes_slowly(change, likelihood, DRIFT_SCALE)
    where &= lost > DECAYED_SHARE
    return Signal(where, lambda: smoothed(rows, SLOW_ROWS) | {LOST: lost}, normal=is_back(likelihood))


RULE = Rule(
    title="likelihood of correct rollouts decays",
    checks=(
        Check(
            series=DISPLACEMENT,
            signal=decays,
            rows_normal=SLOW_ROWS,
            message="Correct rollouts become less likely: an update lowers the likelihood of "
            "{displacement/fraction:.0%} of them, and their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=FAST_ROWS,
        ),
        Check(
            series=DRIFT,
            signal=decays,
            rows_normal=SLOW_ROWS,
            message="Updates make rollouts with positive advantage less likely. Their log-likelihood is "
            "{share of log-likelihood lost:.1%} below its best value.",
            min_rows=SLOW_ROWS,
            better=(DISPLACEMENT,),
        ),
    ),
    suppressed_by=("LLD003", "STP001"),
    phase="decay",
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=preserve_likelihood,
    rollouts="correct",
)
