"""A policy that breaks from one row to the next: checks of STP001 on series that every trainer logs.

A single update that is far too large does two things at once: the reward is lost, and the policy changes. Its entropy,
its length or the share of clipped tokens jumps in the same rows. A reward that is lost alone has other causes: harder
questions, or a grader that went down. Entropy that rises first and slowly is a drift (ENT001).
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.collapse import reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    binary_noise,
    count_of,
    delayed,
    held,
    highest,
    lowest,
    margin,
    trailing_lowest,
    trailing_mean,
)
from holdfast.diagnose.rules.rule import (
    ROWS_TO_FORGET,
    Check,
    Rows,
    Signal,
    has_risen,
    is_near_best,
    long_not_preferred,
)
from holdfast.diagnose.rules.tools import EMPTY, FAILED_SEARCHES, MAX_EMPTY_FRACTION, MAX_FAILED_FRACTION

REWARD, KL, ENTROPY, LENGTH = "reward/mean", "kl/reference", "entropy/mean", "rollout/length"
CLIPPED, LOSS = "clip/fraction", "loss"

USUAL_ROWS = 8
"""Rows before a break whose mean is the usual value."""
FEWEST_ROWS = 3
"""Fewest such rows."""
BREAK_ROWS = 3
"""Rows within which everything happens."""
LOST_SHARE = 0.5
"""Share of its range that the reward loses in them."""
BREAK_ERRORS = 3.0
"""Standard errors of the loss, and of the jump of entropy, by the noise before them. Three are enough, as both are
needed at once."""
ENTROPY_TIMES = 1.5
"""Times the usual entropy. A batch of harder questions raises it by a tenth."""
ENTROPY_NATS = 0.1
"""Nats per token by which it must rise too."""
STEEPEST_SHARE = 0.4
"""Share of that rise that comes from one row to the next. A drift takes many rows."""
CALM_TIMES = 1.25
"""The row before a leap is as usual if it is at most this many times the mean of the rows before it."""
LENGTH_TIMES = 1.3
CLIPPED_FRACTION = 0.1
CLIP_JUMP_FRACTION, CLIP_JUMP_TIMES = 0.08, 4.0
"""Share of clipped tokens, and times its usual value. Harder questions clip up to 6 %."""
LONG_PREFERRED_LOSS = 0.08
"""Minus the loss, in the mean of eight rows. Where the loss is a mean over tokens, that is their mean advantage:
long rollouts are preferred. An entropy bonus makes the loss negative too. Either is a different cause."""

FIRST_ROWS = 6
"""A break by the very first updates shows in these rows. There are too few of them to know the noise."""
GONE_SHARE = 0.8
"""Share of its range that the reward has lost in two rows, since the mean of the rows before."""


def breaks_at_once(rows: Rows) -> Signal | None:
    """Within three rows the reward loses half of its range, and entropy or the share of clipped tokens jumps."""
    reward, entropy = rows.columns
    mean_reward, mean_entropy = (usual_before(column) for column in (reward, entropy))
    lost = mean_reward - trailing_mean(reward, 2)
    by_chance, more = (delayed(margin(column, 2, BREAK_ERRORS), BREAK_ROWS) for column in (reward, entropy))
    most, rise = (trailing_highest(column, BREAK_ROWS) for column in (entropy, leaps(entropy)))
    jumps = (most > ENTROPY_TIMES * mean_entropy) & (most - mean_entropy > np.maximum(more, ENTROPY_NATS))
    jumps &= rise > STEEPEST_SHARE * (most - mean_entropy)
    where = (lost > LOST_SHARE * reward_range(mean_reward, lowest(reward))) & (lost > by_chance)
    where &= (jumps | rows.where(CLIPPED, clip_jumps)) & searches_work(rows) & long_not_preferred(rows)
    where &= ~(rows.latest(LOSS, lambda loss: -trailing_mean(loss, USUAL_ROWS)) > LONG_PREFERRED_LOSS)
    where &= np.arange(len(reward)) >= FEWEST_ROWS + BREAK_ROWS - 1
    if not where.any():
        return None
    return Signal(
        where,
        lambda: {
            REWARD: mean_reward - lost,
            ENTROPY: most,
            "reward before": mean_reward,
            "entropy before": mean_entropy,
        },
        normal=is_near_best(reward),
    )


def leaps(values: Values) -> Values:
    """[N]: the rise since the row before, if that row was as usual; else 0."""
    before = delayed(values, 1)
    calm = before <= CALM_TIMES * delayed(trailing_mean(values, USUAL_ROWS), 1)
    return np.where(calm, values - before, 0.0)


def usual_before(values: Values) -> Values:
    """[N]: the mean of the rows before the last three."""
    return delayed(trailing_mean(values, USUAL_ROWS), BREAK_ROWS)


def trailing_highest(values: Values, window: int) -> Values:
    """The maximum of the last `window` values."""
    return -trailing_lowest(-values, window)


def clip_jumps(clipped: Values) -> Truths:
    """[N]: where the share of clipped tokens is many times its usual value, in the last three rows."""
    high = np.maximum(CLIP_JUMP_FRACTION, CLIP_JUMP_TIMES * usual_before(clipped))
    return trailing_highest(clipped, BREAK_ROWS) > high


def searches_work(rows: Rows) -> Truths:
    """[N]: where no retriever fails, as far as the log shows. One that fails raises entropy too."""
    return ~((rows.latest(FAILED_SEARCHES) > MAX_FAILED_FRACTION) | (rows.latest(EMPTY) > MAX_EMPTY_FRACTION))


def breaks_at_first(rows: Rows) -> Signal:
    """The reward is gone in one of the first rows and in the next, and the policy has changed."""
    (reward,) = rows.columns
    row = np.arange(len(reward))
    first = delayed(trailing_mean(reward, FIRST_ROWS), 2)  # the mean of all rows before the last two
    by_chance = BREAK_ERRORS * binary_noise(first, 2 * count_of(reward))
    height = np.maximum(first, 0.0) - np.minimum(lowest(reward), 0.0)  # so few rows do not show how low rewards may be
    gone = held(first - reward >= GONE_SHARE * height, 2) & (first - reward > by_chance)
    sudden = (first - delayed(reward, 2) < LOST_SHARE * height) | clips_much_so_far(rows)
    gone &= (row >= 2) & (row < FIRST_ROWS) & sudden & long_not_preferred(rows)
    where = gone & is_another_policy(rows)
    return Signal(where, lambda: {REWARD: reward}, lambda: {"first": first}, is_near_best(reward))


def is_another_policy(rows: Rows) -> Truths:
    """[N]: where entropy or length is far from its first value, or many tokens were clipped so far."""
    entropy, length = rows.latest(ENTROPY, most_times_first), rows.latest(LENGTH, most_times_first)
    # A series that is not logged is NaN, and every comparison with it is false.
    return (entropy > ENTROPY_TIMES) | (length > LENGTH_TIMES) | clips_much_so_far(rows)


def clips_much_so_far(rows: Rows) -> Truths:
    """[N]: where a row so far clipped many tokens."""
    return rows.latest(CLIPPED, highest) > CLIPPED_FRACTION


def most_times_first(values: Values) -> Values:
    """[N]: how many times the first value, or what part of it, the most deviant of the last three values is. A policy
    that breaks may pass through long rambling and end in silence, which a mean would hide."""
    times = np.maximum(np.abs(values), 1e-9) / np.maximum(np.abs(values[:1]), 1e-9)
    return trailing_highest(np.maximum(times, 1 / times), BREAK_ROWS)


LEAP_NATS = 1.0
"""Nats per token that the policy is away from where it began after a few updates. Language models that learn stay below
0.3 for their whole run."""


def leaps_away(rows: Rows) -> Signal:
    """The KL is far above that of the first row within the first rows, and stays there."""
    (kl,) = rows.columns
    far = (kl - kl[0] > LEAP_NATS) & (np.arange(len(kl)) > 0)
    where = held(far, BREAK_ROWS) & (np.arange(len(kl)) < FIRST_ROWS + BREAK_ROWS - 1)
    return Signal(where, lambda: {KL: kl}, lambda: {"first": np.full(len(kl), kl[0])}, normal=has_risen(rows) & ~far)


BREAKS = (
    Check(
        series=(REWARD,),
        signal=breaks_at_first,
        message="The first updates broke the policy: the reward began at {first:.3g} and is {reward/mean:.3g}.",
        look_at=(REWARD, ENTROPY, LENGTH),
    ),
    Check(
        series=(REWARD, ENTROPY),
        signal=breaks_at_once,
        message="The policy broke within a few rows: the reward fell from {reward before:.3g} to {reward/mean:.3g}, "
        "while entropy went from {entropy before:.2g} to {entropy/mean:.2g} nats.",
        look_at=(REWARD, ENTROPY, CLIPPED),
    ),
    Check(
        series=(KL,),
        signal=leaps_away,
        message="The first updates moved the policy far away: the KL to the reference is {kl/reference:.2g} nats per "
        "token, after {first:.2g} in the first row.",
        rows_normal=ROWS_TO_FORGET,
        look_at=(KL, REWARD),
    ),
)
"""The checks of STP001 that need neither displacement nor ratios."""
