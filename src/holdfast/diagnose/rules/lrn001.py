"""LRN001: updates change nothing, because the learning rate is 0 or far too small.

Meaning: The learning rate is 0 for five rows or more while training goes on. Or the policy still equals its reference
after 30 rows, although the KL is measured.

Impact: The policy learns nothing. Changes of other metrics are noise, or come from the data.

Limitations: A single row of 0 is normal at the start of a warm-up and at the end of a schedule. A small learning rate
may be rounded to 0: a 0 printed with decimals, such as 0.000, does not count, and in a console any 0 counts only after
larger values. If tokens are clipped or the KL more than doubles, the rule takes the 0 for a rounded value too.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.collapse import MIN_FLAT_ROWS
from holdfast.diagnose.log.trailing import Values, held, highest, rows_since
from holdfast.diagnose.rules._parts import CLIPPED, KL, RATE, REWARD
from holdfast.diagnose.rules._parts.moves import kl_grows, policy_moved
from holdfast.diagnose.rules._parts.reward import has_risen
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start


def is_zero(rows: Rows, rate: Values) -> Signal | None:
    """The learning rate has been 0 for five rows, and nothing shows that the weights change."""
    zero = rows.is_zero(RATE)
    if not zero.any():
        return None
    before = np.arange(len(rate)) - rows_since(~zero)
    since = np.minimum(before + 1, np.arange(len(rate)))  # the first row at 0
    # What was rounded before it was logged is 0 too, so other series have a say. The first row's are of the update
    # before it.
    moved = (rows.latest(CLIPPED) > 0) | (policy_moved(rows) == 1)
    moves = kl_grows(rows, before) | (rows_since(moved) < np.arange(len(rate)) - since)
    if rows.log.format in ("console", "table"):  # of whose scripts many round what they print
        moves |= np.cumsum(~zero) == 0
    return Signal(
        held(zero, ZERO_ROWS) & ~moves,
        words=lambda: {
            "since": np.where(
                since == 0, "since the first row", [f"since step {step}" for step in rows.steps[since].tolist()]
            )
        },
        normal=~zero | moves,
        began=lambda row: int(since[row]),
    )


ZERO_ROWS = 5
"""Consecutive rows. A warm-up begins with a row at 0, and a schedule ends with one."""


def changes_nothing(rows: Rows, kl: Values) -> Signal:
    """After 30 updates the policy still equals its reference, nothing is clipped, and the reward has not risen. A KL
    that is 0 in every row is not measured."""
    second_half = trailing_half_mean(kl)
    clipped = rows.latest(CLIPPED, highest)
    moved = (clipped > 0) | (policy_moved(rows) == 1) | has_risen(rows)
    still = (np.abs(second_half) < STILL_NATS) & (np.cumsum(kl != 0) > 0) & ~moved
    rate = rows.latest(RATE, highest)
    shown = np.where(np.isnan(rate), "", [f" (learning rate at most {value:.2g})" for value in rate.tolist()])
    return Signal(
        still & (np.arange(len(kl)) >= MIN_UPDATES - 1),
        lambda: {KL: second_half, RATE: rate},
        lambda: {"rate": shown},
        normal=~still,
        began=from_start,
    )


MIN_UPDATES = MIN_FLAT_ROWS
STILL_NATS = 1e-4
"""Nats per token. Language models that learn leave their reference by 0.0005 and more."""


def trailing_half_mean(values: Values) -> Values:
    """[N]: the mean of the last half of the values so far.

    >>> trailing_half_mean(np.array([4.0, 2.0, 1.0, 3.0])).tolist()
    [4.0, 2.0, 1.5, 2.0]
    """
    sums, count = np.concatenate([[0.0], np.cumsum(values)]), np.arange(1, len(values) + 1)
    return np.asarray((sums[count] - sums[count // 2]) / (count - count // 2))


RULE = Rule(
    title="updates change nothing",
    kind="logged cause",
    needs=((RATE,),),
    checks=(
        Check(
            series=(RATE,),
            signal=is_zero,
            message="The learning rate has been 0 {since}, so the weights do not change.",
        ),
        Check(
            series=(KL,),
            signal=changes_nothing,
            message="The updates change almost nothing{rate}: the KL to the reference is still {kl/reference:.2g} "
            "nats per token, and no token was clipped.",
            remedy=advise(
                "Raise the [learning rate] five times or more. If the KL stays near 0, check that the sampler uses "
                "the trained weights."
            ),
            look_at=(KL, REWARD),
            level="reason",
        ),
    ),
    remedy=advise(
        "Set the [learning rate]. If it was above 0 before, the [schedule] is shorter than the run: set it to the "
        "length of the run, or resume with a new one."
    ),
    leaves=lambda hit: "nothing",
)
