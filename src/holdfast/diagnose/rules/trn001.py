"""TRN001: rollouts run out of turns or tokens.

Meaning: Rollouts run out of turns or tokens, or grow towards that limit, but the reward does not rise.

Impact: A truncated rollout has no answer and no reward. So the policy learns to avoid long rollouts, whatever they
contain, or the agent stops learning when to end.

Limitations: The rule finds a rising share, a share of 75 % or more from the start, ten rows in which nearly all are
truncated, and growth caused by advantages. Late in other collapses, rollouts ramble, and truncation is only a symptom:
look at earlier findings. Long rollouts are not reported while the reward rises with them.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log.collapse import DROPPED_SHARE, MIN_FLAT_ROWS, curve_of
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    clear_break_in,
    delayed,
    held,
    highest,
    last_where,
    lowest,
    margin,
    rows_since,
    trailing_mean,
)
from holdfast.diagnose.rules._parts import ADVANTAGE, LENGTH, MIXED, REWARD, TRUNCATED
from holdfast.diagnose.rules._parts.reward import ALL_TRUNCATED, MUCH_FRACTION, is_down, is_low, more_is_earned
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start


def all_are_truncated(rows: Rows, share: Values, *, at_first: bool) -> Signal:
    """As good as all are truncated for some rows, and the reward has not risen. With `at_first`, only since the first
    row; without it, only since a later one, and not where RWD001 says that the reward is down, which rambling follows.
    """
    row, risen = np.arange(len(share)), more_is_earned(rows)
    running = rows_since(share < ALL_TRUNCATED)
    silent = np.zeros(len(share), bool) if at_first else is_down(rows)
    same_rewards = rows.latest(MIXED, lambda mixed: trailing_mean(mixed, ROWS_WITHOUT_CONTRAST)) <= MIN_MIXED
    enough = (running >= ROWS_IF_ALL) | (same_rewards & at_first & (running >= ROWS_WITHOUT_CONTRAST))
    return Signal(
        enough & ((running > row) == at_first) & ~risen & ~silent,
        words=lambda: {"since": rows.steps[np.minimum(row - running + 1, row)]},
        normal=risen | (share < MUCH_FRACTION),
        began=lambda at: int(at - running[at] + 1),
    )


ROWS_IF_ALL = 10
"""Rows within which the reward may begin to rise although all rollouts are truncated."""
ROWS_WITHOUT_CONTRAST = 3
"""The same if the rollouts of each group all have the same reward, because then nothing can be learned."""
MIN_MIXED = 0.05


def many_are_truncated(rows: Rows, share: Values) -> Signal:
    """Half or more are truncated since the first row."""
    return Signal(np.cumsum(share < MUCH_FRACTION) == 0, normal=share < MUCH_FRACTION)


def truncation_limits_reward(rows: Rows, share: Values, reward: Values) -> Signal:
    """Most are truncated since the first row. The reward does not rise, or exceed what the other rollouts can earn."""
    smooth, mean_reward = trailing_mean(share, REWARD_ROWS), trailing_mean(reward, REWARD_ROWS)
    top = np.maximum(highest(reward), 1.0)
    limited = mean_reward <= (1 - smooth + EARNED_BY_TRUNCATED) * top
    risen = more_is_earned(rows)
    return Signal(
        (np.cumsum(share < MOST_FRACTION) == 0) & limited & ~risen,
        lambda: {TRUNCATED: smooth, REWARD: mean_reward},
        normal=risen | (share < MUCH_FRACTION),
        began=from_start,
    )


MOST_FRACTION = 0.75
"""Three quarters of them, for truncation to limit the reward. Runs with half or two thirds may be healthy."""
REWARD_ROWS = 5
EARNED_BY_TRUNCATED = 0.05
"""Reward that truncated rollouts may earn, as a share of the highest possible. Where they earn more, being truncated
costs them little. The highest possible reward is 1, or the highest mean so far if that is more."""


def half_are_truncated(rows: Rows, share: Values, reward: Values) -> Signal:
    """Half or more are truncated by now, and the reward is low and has not risen since the log began."""
    smooth, risen = trailing_mean(share, LATE_ROWS), more_is_earned(rows)
    return Signal(
        (smooth >= MUCH_FRACTION) & is_low(reward, LATE_ROWS) & ~risen,
        lambda: {TRUNCATED: smooth},
        normal=risen | (smooth < MUCH_FRACTION / 2),
        began=lambda row: clear_break_in(share, row),
    )


LATE_ROWS = 20
"""Rows in the mean of the truncated share, where half are truncated by now."""


def grow_without_reward(rows: Rows, *columns: Values) -> Signal:
    """Rollouts grow because advantages prefer long ones."""
    advantage, length = (trailing_mean(column, GROWTH_ROWS) for column in columns)
    advantage_margin, length_margin = (margin(column, GROWTH_ROWS, RISE_ERRORS) for column in columns)
    grown = length - lowest(length)
    where = (advantage > GROWTH_ADVANTAGE) & (advantage > advantage_margin)
    rises = reward_rises(rows)
    where &= (grown > LENGTH_RISE * length) & (grown > length_margin) & ~rises
    return Signal(
        where,
        lambda: {LENGTH: length, ADVANTAGE: advantage},
        lambda: {"before": length - grown},
        normal=rises,
    )


RISE_ERRORS = 4.0
"""Standard errors of a difference that a rise has to exceed."""
GROWTH_ROWS = 5
GROWTH_ADVANTAGE = 0.1
"""Mean advantage per token. If correct answers are longer than incorrect ones, it is as high early in a run. But then
the reward rises with the length."""
LENGTH_RISE = 0.03
"""Growth of rollouts, as a share of their length."""


def more_are_truncated(rows: Rows, share: Values, *, costs: bool) -> Signal | None:
    """The truncated fraction rises, and the reward does not rise with it. With `costs`, only where the reward has
    dropped, as far as it is logged."""
    smooth = trailing_mean(share, TRUNCATED_ROWS)
    low = lowest(smooth)
    rise = smooth - low
    if not (rise > TRUNCATED_RISE).any():
        return None
    where = (rise > TRUNCATED_RISE) & (rise > margin(share, TRUNCATED_ROWS, RISE_ERRORS))
    where &= held(share > low + TRUNCATED_RISE / 2, 2)
    slow = trailing_mean(share, TRUNCATED_LONG_ROWS)
    slow_rise = slow - lowest(slow)
    where |= (slow_rise > TRUNCATED_RISE) & (slow_rise > margin(share, TRUNCATED_LONG_ROWS, RISE_ERRORS))
    is_back = (share < low + TRUNCATED_RISE) & (slow_rise < TRUNCATED_RISE)
    where &= does_not_pay(rows, costs=costs)
    before = last_where(smooth <= low)
    return Signal(
        where,
        lambda: {TRUNCATED: smooth},
        lambda: {"before": smooth - rise, "then": rows.steps[before]},
        is_back,
        lambda row: break_in(share, int(before[row]), row),
    )


TRUNCATED_ROWS, TRUNCATED_LONG_ROWS = 3, 10
TRUNCATED_RISE = 0.15
"""Rise of the truncated fraction above its lowest value."""


def does_not_pay(rows: Rows, *, costs: bool) -> Truths:
    """[N]: where the reward does not rise. With `costs`, only where it has dropped, as far as it is logged."""
    no_rise = ~reward_rises(rows)
    return no_rise & ~rows.where(REWARD, has_not_dropped) if costs else no_rise


def has_not_dropped(reward: Values) -> Truths:
    """[N]: where the reward is near its best, or below it by no more than noise."""
    return ~curve_of(reward).short.has_lost(DROPPED_SHARE, 2.0)


def reward_rises(rows: Rows) -> Truths:
    """[N]: where the reward is above its best before the last rows. Long rollouts are fine if they earn more."""

    def rises(reward: Values) -> Truths:
        mean = trailing_mean(reward, GROWTH_ROWS)
        return mean > delayed(highest(mean), GROWTH_ROWS)

    return rows.where(REWARD, rises)


ROWS_IF_MOST = 20
"""Rows within which the reward may begin to rise although three quarters or more are truncated."""

CUT_FROM_THE_START = advise(
    "Read some [rollouts]. If they make sense, raise the [limits of tokens and turns]. If they are noise, check the "
    "checkpoint and its chat template, or start from a [better policy]."
)


RULE = Rule(
    title="rollouts truncated",
    needs=((TRUNCATED,), (ADVANTAGE, LENGTH)),
    checks=(
        *(
            Check(
                series=(TRUNCATED,),
                signal=partial(all_are_truncated, at_first=at_first),
                rows_normal=REWARD_ROWS,
                message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens. Nearly all "
                "have done so since " + ("the log began." if at_first else "step {since}. The reward has not risen."),
                kind="from the start" if at_first else None,
                remedy=CUT_FROM_THE_START if at_first else None,
            )
            for at_first in (True, False)
        ),
        Check(
            series=(TRUNCATED, REWARD),
            signal=truncation_limits_reward,
            rows_normal=REWARD_ROWS,
            message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens. Most have done so "
            "since the log began. The reward does not rise, and does not exceed what the remaining rollouts can earn.",
            min_rows=ROWS_IF_MOST,
            kind="from the start",
            remedy=CUT_FROM_THE_START,
        ),
        Check(
            series=(TRUNCATED, REWARD),
            signal=half_are_truncated,
            message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens (mean of 20 rows), "
            "and the reward has not risen since the log began.",
            min_rows=MIN_FLAT_ROWS,
        ),
        Check(
            series=(TRUNCATED,),
            signal=many_are_truncated,
            message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens. If they make sense, "
            "they lose their reward because they were cut off, not because they are incorrect.",
            rows_normal=REWARD_ROWS,
            remedy=CUT_FROM_THE_START,
            level="reason",
        ),
        Check(
            series=(ADVANTAGE, LENGTH),
            signal=grow_without_reward,
            rows_normal=GROWTH_ROWS,
            message="Rollouts grow towards the token limit, from {before:.3g} to {rollout/length:.3g} tokens. Long "
            "rollouts have higher advantages, but the reward does not rise.",
            min_rows=GROWTH_ROWS,
            look_at=(LENGTH, ADVANTAGE),
        ),
        *(
            Check(
                series=(TRUNCATED,),
                signal=partial(more_are_truncated, costs=costs),
                rows_normal=TRUNCATED_ROWS,
                message="More rollouts run out of turns or tokens: {rollout/truncated_fraction:.0%}, up from "
                "{before:.0%} at step {then}." + ("" if costs else " The reward has not dropped so far."),
                min_rows=TRUNCATED_ROWS,
                level="finding" if costs else "reason",
            )
            for costs in (True, False)
        ),
    ),
    suppressed_by=("ENT003",),  # noise runs until the limit, and a higher limit would not end it
    remedy=advise(
        "Read some [rollouts]. If they make sense, raise the [limits of tokens and turns]. If they are noise, this "
        "is a symptom: go back to an earlier checkpoint and lower the [learning rate].",
        also={
            "verl": "The agent loop `holdfast_search` has `max_turns` in the file named by "
            "`actor_rollout_ref.rollout.agent.agent_loop_config_path`.",
        },
    ),
    rollouts="truncated",
)
