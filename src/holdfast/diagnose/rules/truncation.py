"""How many rollouts are truncated, whether that rises or not: checks of TRN001."""

from __future__ import annotations

import numpy as np

from holdfast.base.collapse import FEWEST_FLAT
from holdfast.base.trailing import Truths, highest, trailing_mean
from holdfast.diagnose.rules.hacking import FORM, functions_of
from holdfast.diagnose.rules.rule import Check, Rows, Signal, has_risen, is_low

TRUNCATED, REWARD, MIXED = "rollout/truncated_fraction", "reward/mean", "rollout/mixed_group_fraction"

MUCH_FRACTION = 0.5
"""Half of the rollouts. Reasoning runs often begin with a tenth to a third, and learn to be shorter."""
MOST_FRACTION = 0.75
"""Three quarters of them, for truncation to limit the reward. Runs with half or two thirds may be healthy."""
ALL_FRACTION = 0.95
"""As good as all of them."""
ROWS_IF_ALL = 10
"""Rows within which the reward may begin to rise although all rollouts are truncated."""
ROWS_WITHOUT_CONTRAST = 3
"""The same if the rollouts of each group all have the same reward, because then nothing can be learned."""
LEAST_MIXED = 0.05
ROWS_IF_MOST = 20
"""The same if three quarters or more are truncated."""
LATE_ROWS = 20
"""Rows in the mean of the truncated share, where half are truncated by now."""
REWARD_ROWS = 5
EARNED_BY_TRUNCATED = 0.05
"""Reward that truncated rollouts may earn, as a share of the highest possible. Where they earn more, being truncated
costs them little. The highest possible reward is 1, or the highest mean so far if that is more."""


def more_is_earned(rows: Rows) -> Truths:
    """[N]: where the reward has risen. Where its functions are logged, one that is not named after form has: a format
    can be learned in a text that is cut."""
    functions = functions_of(rows.log)
    parts = [name for name in functions if not FORM.search(name)] if len(functions) > 1 else []
    return np.asarray(np.any([has_risen(rows, name) for name in parts or [REWARD]], axis=0))


def all_are_truncated(rows: Rows) -> Signal:
    """As good as all are truncated since the first row, and the reward does not rise."""
    (share,) = rows.columns
    row, risen = np.arange(len(share)), more_is_earned(rows)
    same_rewards = rows.latest(MIXED, lambda mixed: trailing_mean(mixed, ROWS_WITHOUT_CONTRAST)) <= LEAST_MIXED
    enough = (row >= ROWS_IF_ALL - 1) | (same_rewards & (row >= ROWS_WITHOUT_CONTRAST - 1))
    return Signal(
        (np.cumsum(share < ALL_FRACTION) == 0) & enough & ~risen,
        lambda: {TRUNCATED: share},
        normal=risen | (share < MUCH_FRACTION),
    )


def many_are_truncated(rows: Rows) -> Signal:
    """Half or more are truncated since the first row."""
    (share,) = rows.columns
    return Signal(np.cumsum(share < MUCH_FRACTION) == 0, lambda: {TRUNCATED: share})


def truncation_limits_reward(rows: Rows) -> Signal:
    """Most are truncated since the first row. The reward does not rise, or exceed what the other rollouts can earn."""
    share, reward = rows.columns
    smooth, mean_reward = trailing_mean(share, REWARD_ROWS), trailing_mean(reward, REWARD_ROWS)
    top = np.maximum(highest(reward), 1.0)
    limited = mean_reward <= (1 - smooth + EARNED_BY_TRUNCATED) * top
    risen = more_is_earned(rows)
    return Signal(
        (np.cumsum(share < MOST_FRACTION) == 0) & limited & ~risen,
        lambda: {TRUNCATED: smooth, REWARD: mean_reward},
        normal=risen | (share < MUCH_FRACTION),
    )


def half_are_truncated(rows: Rows) -> Signal:
    """Half or more are truncated by now, and the reward is low and has not risen since the log began."""
    share, reward = rows.columns
    smooth, risen = trailing_mean(share, LATE_ROWS), more_is_earned(rows)
    return Signal(
        (smooth >= MUCH_FRACTION) & is_low(reward, LATE_ROWS) & ~risen,
        lambda: {TRUNCATED: smooth},
        normal=risen | (smooth < MUCH_FRACTION / 2),
    )


LEVELS = (
    Check(
        series=(TRUNCATED,),
        signal=all_are_truncated,
        message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens, and nearly all have "
        "since the log began.",
    ),
    Check(
        series=(TRUNCATED, REWARD),
        signal=truncation_limits_reward,
        message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens, and most have since "
        "the log began. The reward does not rise, and does not exceed what the other rollouts can earn.",
        min_rows=ROWS_IF_MOST,
    ),
    Check(
        series=(TRUNCATED, REWARD),
        signal=half_are_truncated,
        message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens (mean of 20 rows), and "
        "the reward has not risen since the log began.",
        min_rows=FEWEST_FLAT,
    ),
    Check(
        series=(TRUNCATED,),
        signal=many_are_truncated,
        message="{rollout/truncated_fraction:.0%} of the rollouts run out of turns or tokens. If they make sense, "
        "they lose their reward because they were cut off, not because they are incorrect.",
        level="note",
    ),
)
"""The checks of TRN001 on the level of the truncated share."""
