"""LLD004: the first action of correct rollouts loses likelihood before the second.

Meaning: The first action of correct rollouts loses likelihood faster than the second.

Impact: Incorrect rollouts often begin with the same search as correct ones. An update that makes it less likely in one
makes it less likely in the other.

Limitations: Rollouts with one search and with two belong to different questions. If their proportion changes, both
curves change too.
"""

from __future__ import annotations

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values, highest, margin, trailing_mean
from holdfast.diagnose.rules._parts.displacement import (
    DECAYED_SHARE,
    DISPLACEMENT,
    FAST_DECAYED_SHARE,
    FAST_ROWS,
    LOST,
    SLOW_ROWS,
    displaces,
    is_back,
    share_lost,
)
from holdfast.diagnose.rules._parts.reward import long_not_preferred
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, preserve_likelihood
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def first_action_falls_behind(rows: Rows, *columns: Values) -> Signal:
    """The first action of correct rollouts loses more likelihood than the second, and displacement shows it too."""
    change, fraction, likelihood, first, second = columns
    ahead = trailing_mean(first - second, SLOW_ROWS)
    behind = highest(ahead) - ahead
    smooth = trailing_mean(first, FAST_ROWS)
    lost = share_lost(first)
    where = behind > margin(first - second, SLOW_ROWS, FIRST_ACTION_ERRORS)
    where &= behind > FIRST_ACTION_BEHIND_SHARE * -highest(smooth)
    where &= (lost > FAST_DECAYED_SHARE) & (lost > share_lost(second))
    where &= (
        displaces(change, fraction, likelihood) & (share_lost(likelihood) > DECAYED_SHARE) & long_not_preferred(rows)
    )
    evidence = {ACTIONS[0]: smooth, ACTIONS[1]: trailing_mean(second, FAST_ROWS)}
    return Signal(where, lambda: evidence | {f"{LOST} by the first action": lost}, normal=is_back(first))


ACTIONS = ("likelihood/correct/action_1", "likelihood/correct/action_2")
FIRST_ACTION_BEHIND_SHARE = 0.1
"""Share of its best log-likelihood by which the first action has fallen behind the second. The mix of rollouts with one
and with two searches moves the difference too, so displacement has to show as well."""
FIRST_ACTION_ERRORS = 2.1


def may_have_two_actions(log: Log) -> bool:
    """Whether correct rollouts have a second action, as far as the log shows."""
    return ACTIONS[1] in log.series or "likelihood/correct" not in log.series


RULE = Rule(
    title="first action decays faster",
    applies=may_have_two_actions,
    checks=(
        Check(
            series=(*DISPLACEMENT, *ACTIONS),
            signal=first_action_falls_behind,
            rows_normal=SLOW_ROWS,
            message="The first action of correct rollouts becomes less likely faster than the second: its "
            "log-likelihood is {share of log-likelihood lost by the first action:.0%} below its best value.",
            min_rows=SLOW_ROWS,
            look_at=ACTIONS,
        ),
    ),
    suppressed_by=("STP001",),
    phase="decay",
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=preserve_likelihood,
    rollouts="correct",
)
