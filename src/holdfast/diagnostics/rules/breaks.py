"""A policy that breaks from one row to the next: checks of STP001 on series that every trainer logs.

A single update that is far too large does two things at once: the reward is lost, and the policy is another one. Its
entropy, its length or the share of clipped tokens then jumps in the same rows. A reward that is lost alone has other
causes: harder questions, a grader that went down. Entropy that rises first and slowly is a drift (ENT001).
"""

from __future__ import annotations

import numpy as np

from holdfast.collapse import reward_range
from holdfast.diagnostics.rules.rule import Check, Rows, Signal, long_not_preferred
from holdfast.trailing import Truths, Values, delayed, highest, lowest, margin, trailing_lowest, trailing_mean

REWARD, ENTROPY, LENGTH, CLIPPED = "reward/mean", "entropy/mean", "rollout/length", "clip/fraction"
FAILED_SEARCHES, EMPTY = "retrieval/error_fraction", "retrieval/empty_fraction"
MAX_FAILED_FRACTION, MAX_EMPTY_FRACTION = 0.1, 0.3

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
LENGTH_TIMES = 1.3
CLIPPED_FRACTION = 0.1

FIRST_ROWS = 8
"""A break by the very first updates shows in these rows."""
GONE_SHARE = 0.2
"""Share of the first reward that is left in every later row."""
GONE_ROWS = 2
"""Fewest later rows."""


def breaks_at_once(rows: Rows) -> Signal | None:
    """Within three rows the reward loses half of its range and entropy jumps."""
    reward, entropy = rows.columns
    pay, nats = (delayed(trailing_mean(column, USUAL_ROWS), BREAK_ROWS) for column in (reward, entropy))
    lost = pay - trailing_mean(reward, 2)
    most = -trailing_lowest(-entropy, BREAK_ROWS)
    by_chance, more = (delayed(margin(column, 2, BREAK_ERRORS), BREAK_ROWS) for column in (reward, entropy))
    where = (lost > LOST_SHARE * reward_range(pay, lowest(reward))) & (lost > by_chance)
    where &= (most > ENTROPY_TIMES * nats) & (most - nats > np.maximum(more, ENTROPY_NATS))
    where &= (np.arange(len(reward)) >= FEWEST_ROWS + BREAK_ROWS - 1) & searches_work(rows) & long_not_preferred(rows)
    if not where.any():
        return None
    return Signal(where, lambda: {REWARD: pay - lost, ENTROPY: most, "reward before": pay, "entropy before": nats})


def searches_work(rows: Rows) -> Truths:
    """[N]: where no retriever fails, as far as the log shows. Other observations raise entropy at once too."""
    return ~((rows.latest(FAILED_SEARCHES) > MAX_FAILED_FRACTION) | (rows.latest(EMPTY) > MAX_EMPTY_FRACTION))


def breaks_at_first(rows: Rows) -> Signal:
    """After the first row the reward is gone for good, and the policy is not what it was."""
    (reward,) = rows.columns
    row = np.arange(len(reward))
    gone = (reward <= GONE_SHARE * reward[0]) & (reward[0] > 0) | (row == 0)
    early = (np.cumsum(~gone) == 0) & (row >= GONE_ROWS) & (row < FIRST_ROWS)
    return Signal(
        early & is_another_policy(rows), lambda: {REWARD: reward}, lambda: {"first": reward[:1].repeat(len(row))}
    )


def is_another_policy(rows: Rows) -> Truths:
    """[N]: where entropy or length is far from its first value, or many tokens were clipped so far."""
    entropy, length = rows.latest(ENTROPY, times_first), rows.latest(LENGTH, times_first)
    # NaN, where one is not logged, shows nothing.
    return (
        (entropy > ENTROPY_TIMES)
        | (entropy < 1 / ENTROPY_TIMES)
        | (length > LENGTH_TIMES)
        | (length < 1 / LENGTH_TIMES)
        | (rows.latest(CLIPPED, highest) > CLIPPED_FRACTION)
    )


def times_first(values: Values) -> Values:
    """[N]: the mean of the last three values as a multiple of the first value."""
    return trailing_mean(values, BREAK_ROWS) / np.maximum(np.abs(values[:1]), 1e-9)


BREAKS = (
    Check(
        series=(REWARD,),
        signal=breaks_at_first,
        message="The first updates broke the policy: the reward was {first:.3g} in the first row and is "
        "{reward/mean:.3g} since.",
        look_at=(REWARD, ENTROPY, LENGTH),
    ),
    Check(
        series=(REWARD, ENTROPY),
        signal=breaks_at_once,
        message="The policy broke within a few rows: the reward fell from {reward before:.3g} to {reward/mean:.3g}, "
        "while entropy rose from {entropy before:.2g} to {entropy/mean:.2g} nats.",
    ),
)
"""The checks of STP001 that need neither displacement nor ratios."""
