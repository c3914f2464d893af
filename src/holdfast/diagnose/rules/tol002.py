"""TOL002: calls of tools fail.

Meaning: Many tool calls fail, are malformed, or return nothing.

Impact: The agent gets errors instead of results, so its reward falls although its weights may be intact. It then learns
not to call the tool.

Limitations: TRL counts malformed calls as failures too, so the share does not tell the two apart. While a model learns
to write calls, the share is high but falls; this is reported only if 90 % fail in ten rows. Half of the turns without
a usable action are a reason only where the reward does not rise. Other trainers do not log
the share. For them the rule uses the rollout length, which must include tool results, as in verl. If the tool stops
answering, the length drops at once while the number of turns stays the same.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log import has
from holdfast.diagnose.log.smoothed import reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    delayed,
    held,
    highest,
    lowest,
    margin,
    trailing_mean,
)
from holdfast.diagnose.rules._parts import CALLS, LENGTH, REWARD, TURNS
from holdfast.diagnose.rules._parts.reward import MUCH_FRACTION
from holdfast.diagnose.rules._parts.tools import ONE_TURN, USED_TURNS
from holdfast.diagnose.rules.remedies import USABLE_FORM, advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start

FAILED, INVALID = "rollout/failed_call_fraction", "rollout/invalid_fraction"


def fails_more(rows: Rows, share: Values) -> Signal:
    """More and more calls fail."""
    low, where = lowest(trailing_mean(share, ROWS)), np.zeros(len(share), bool)
    for window, enough in FAILED_SHARES.items():
        mean = trailing_mean(share, window)
        many = (mean > enough) & (share > enough)
        if many.any():
            many &= (_logits(mean) - _logits(low) > FAILED_LOGITS) & (
                mean - low > margin(share, window, RISE_OF_FAILURES_ERRORS)
            )
        where |= many
    now = trailing_mean(share, ROWS)
    return Signal(
        where,
        lambda: {FAILED: trailing_mean(share, min(FAILED_SHARES))},
        lambda: {"before": low},
        normal=(_logits(now) - _logits(low) < FAILED_LOGITS / 2) & was_called(rows),
        began=lambda row: break_in(share, int(now[: row + 1].argmin()), row),
    )


ROWS = 5
FAILED_SHARES = {3: 0.5, 10: 0.3}
"""Rows in a mean -> the share of the calls that fail in them. A row may have a single call."""
FAILED_LOGITS, MIN_SHARE = 1.5, 0.02
"""How far the log-odds of a failure are above their lowest: 5 % become 20 %, 50 % become 82 %. A share near one half
varies more than one near 0. Below the least share, the log-odds of few calls mean nothing. A model that learns to write
calls begins with many malformed ones, and the share falls."""
RISE_OF_FAILURES_ERRORS = 5.0
"""Standard errors, as many as a fall of the reward takes."""


def results_are_missing(rows: Rows, length: Values, turns: Values, reward: Values) -> Signal:
    """Rollouts become far shorter from one row to the next and earn less, although the agent takes as many turns. A
    length that counts observations shows so that the tool returns little or nothing."""
    usual, taken, earned = (delayed(trailing_mean(column, ROWS), 2) for column in (length, turns, reward))
    calls = taken - ONE_TURN.get(rows.log.host, 1.0)
    short = held(length < SHORT_SHARE * usual, 2) & (delayed(length, 2) > SHORT_SHARE * usual)
    alike = held(np.abs(turns - taken) < SAME_TURNS_SHARE * calls, 2) & (calls > USED_TURNS)
    lost = earned - trailing_mean(reward, 2)
    costs = lost > np.maximum(
        GONE_SHARE * reward_range(earned, lowest(reward)), delayed(margin(reward, 2, GONE_ERRORS), 2)
    )
    return Signal(
        short & alike & costs,
        lambda: {LENGTH: length, TURNS: turns, REWARD: trailing_mean(reward, 2)},
        lambda: {"before": usual},
        normal=length > (1 + SHORT_SHARE) / 2 * highest(usual),
    )


SHORT_SHARE = 0.6
"""Share of the usual length that is left in two rows, if the tool's results are missing from it."""
SAME_TURNS_SHARE = 0.1
"""Change of the turns, as a share of those with a call, within which the agent acts as before."""
GONE_SHARE, GONE_ERRORS = 0.3, 3.0
"""Share of its range that the reward has lost in the same rows, and standard errors of that."""


def _logits(share: Values) -> Values:
    """Log-odds of a share."""
    share = np.clip(share, MIN_SHARE, 1 - MIN_SHARE)
    return np.asarray(np.log(share / (1 - share)))


def always_fails(rows: Rows, share: Values) -> Signal:
    """Nearly every call has failed since the log began."""
    often = share > ALWAYS_FAILED
    since = np.cumsum(~often) == 0
    return Signal(
        since & (np.arange(len(share)) >= ALWAYS_ROWS - 1),
        lambda: {FAILED: trailing_mean(share, ROWS)},
        normal=(trailing_mean(share, ROWS) < ALWAYS_FAILED / 2) & was_called(rows),
        began=from_start,
    )


ALWAYS_FAILED, ALWAYS_ROWS = 0.9, 10
"""Share of the calls that fail in each of the first rows, if the tool never worked. A model that only writes malformed
calls at first writes some that work by then."""


def is_often_invalid(rows: Rows, share: Values) -> Signal:
    """Half of the turns or more have had no usable action since the log began."""
    mean = trailing_mean(share, INVALID_ROWS)
    often = lowest(mean) >= MUCH_FRACTION
    enough = np.arange(len(share)) >= INVALID_ROWS - 1
    return Signal(often & enough, lambda: {INVALID: mean}, normal=~often, began=from_start)


INVALID_ROWS = 10
"""Rows of the mean, and before the first finding: a policy that soon learns the form writes more usable turns
by then."""


def was_called(rows: Rows) -> Truths:
    """[N]: where there were calls, as far as the log shows: a share of no calls is logged as 0."""
    calls = rows.latest(CALLS)
    return np.asarray(~((calls == 0) | (delayed(calls, 1) == 0)))


RULE = Rule(
    title="tool calls fail",
    kind="logged cause",
    applies=lambda log: has(log, FAILED) or has(log, INVALID) or has(log, LENGTH, TURNS, REWARD),
    checks=(
        Check(
            series=(FAILED,),
            signal=fails_more,
            message="Tools fail or calls are malformed: {rollout/failed_call_fraction:.0%} of the calls, up from "
            "{before:.0%}.",
            min_rows=ROWS,
            look_at=(FAILED, CALLS),
        ),
        Check(
            series=(FAILED,),
            signal=always_fails,
            message="Tools have failed, or calls have been malformed, since the log began: "
            "{rollout/failed_call_fraction:.0%} of the calls.",
            look_at=(FAILED, CALLS),
        ),
        Check(
            series=(LENGTH, TURNS, REWARD),
            signal=results_are_missing,
            message="The tool seems to have stopped answering: within two rows, rollouts shrank from {before:.3g} to "
            "{rollout/length:.3g} tokens and earn less, although the agent takes as many turns as before.",
            min_rows=ROWS + 2,
            better=((FAILED,),),
        ),
        Check(
            series=(INVALID,),
            signal=is_often_invalid,
            message="{rollout/invalid_fraction:.0%} of the turns have no call, answer or other action that the "
            "environment can use, and about as many have had none since the log began.",
            min_rows=INVALID_ROWS,
            remedy=USABLE_FORM,
            level="reason",
        ),
    ),
    remedy=advise(
        "Repeat a tool call from one of the latest [rollouts] by hand. If it fails, repair the tool, such as the "
        "[retriever], and resume from a checkpoint before this step: a smaller learning rate would not help. If the "
        "calls are malformed, check the chat template and the tool's schema, and whether the [limits of tokens and "
        "turns] cut calls off."
    ),
)
