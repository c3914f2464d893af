"""Nothing is learned: a learning rate of 0 (LRN001), a reward that never rose (RWD004), a function that never gave any
(RWD005)."""

from __future__ import annotations

import re

import numpy as np

from holdfast.diagnose.log import finite, reward_curve
from holdfast.diagnose.log.collapse import FEWEST_FLAT, TREND_ERRORS, WINDOW, course, is_flat
from holdfast.diagnose.log.trailing import Values, held, highest, rows_since, trailing_mean
from holdfast.diagnose.readers.text import listed
from holdfast.diagnose.rules.groups import CHECK_REWARD, LONG_ROWS
from holdfast.diagnose.rules.hacking import functions_of, has_functions
from holdfast.diagnose.rules.penalty import policy_moved
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, from_start, has_risen
from holdfast.diagnose.rules.zeros import kl_grows

RATE, REWARD, CLIPPED, KL = "lr", "reward/mean", "clip/fraction", "kl/reference"

ZERO_ROWS = 5
"""Consecutive rows. A warm-up begins with a row at 0, and a schedule ends with one."""


def is_zero(rows: Rows) -> Signal | None:
    """The learning rate has been 0 for five rows, and nothing shows that the weights change."""
    (rate,) = rows.columns
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
        lambda: {RATE: rate},
        lambda: {
            "since": np.where(
                since == 0, "since the first row", [f"since step {step}" for step in rows.steps[since].tolist()]
            )
        },
        normal=~zero | moves,
        began=lambda row: int(since[row]),
    )


FEWEST_UPDATES = FEWEST_FLAT
STILL_NATS = 1e-4
"""Nats per token. Language models that learn leave their reference by 0.0005 and more."""


def changes_nothing(rows: Rows) -> Signal:
    """After 30 updates the policy still equals its reference, nothing is clipped, and the reward has not risen. A KL
    that is 0 in every row is not measured."""
    (kl,) = rows.columns
    second_half = trailing_half_mean(kl)
    clipped = rows.latest(CLIPPED, highest)
    moved = (clipped > 0) | (policy_moved(rows) == 1) | has_risen(rows)
    still = (np.abs(second_half) < STILL_NATS) & (np.cumsum(kl != 0) > 0) & ~moved
    rate = rows.latest(RATE, highest)
    told = np.where(np.isnan(rate), "", [f" (learning rate at most {value:.2g})" for value in rate.tolist()])
    return Signal(
        still & (np.arange(len(kl)) >= FEWEST_UPDATES - 1),
        lambda: {KL: second_half, RATE: rate},
        lambda: {"rate": told},
        normal=~still,
        began=from_start,
    )


def trailing_half_mean(values: Values) -> Values:
    """[N]: the mean of the last half of the values so far.

    >>> trailing_half_mean(np.array([4.0, 2.0, 1.0, 3.0])).tolist()
    [4.0, 2.0, 1.5, 2.0]
    """
    sums, count = np.concatenate([[0.0], np.cumsum(values)]), np.arange(1, len(values) + 1)
    return np.asarray((sums[count] - sums[count // 2]) / (count - count // 2))


LRN001 = Rule(
    code="LRN001",
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
            message="The updates change next to nothing{rate}: the KL to the reference is still {kl/reference:.2g} "
            "nats per token, and no token was clipped.",
            remedy=advise(
                "Raise the [learning rate] five times or more. If the KL stays near 0, check that the trained weights "
                "are those that sample."
            ),
            look_at=(KL, REWARD),
            level="reason",
        ),
    ),
    meaning="The learning rate is 0 for five rows or more while training goes on. Or the policy still equals its "
    "reference after 30 rows, although the KL is measured.",
    impact="The policy learns nothing. Whatever else the series show is noise, or comes from the data.",
    remedy=advise(
        "Set the [learning rate]. If it was above 0 before, the [schedule] is shorter than the run: give it the number "
        "of steps that the run has, or resume with a new one."
    ),
    limitations="A single row of 0 is normal at the start of a warm-up and at the end of a schedule. A small learning "
    "rate may be rounded to 0: a 0 printed with decimals, such as 0.000, does not count, and in a console any 0 counts "
    "only after larger values. If tokens are clipped or the KL more than doubles, the rule assumes the same.",
)


def never_rose(rows: Rows) -> Signal | None:
    """So far the reward is flat (`holdfast.diagnose.log.collapse.is_flat`). The newest row decides."""
    curve = reward_curve(rows.log, REWARD)
    assert curve is not None
    if not is_flat(curve, went := course(curve)):
        return None
    count = len(rows.steps)

    def every(value: float) -> Values:
        return np.full(count, value)

    return Signal(
        np.arange(count) == count - 1,
        lambda: {REWARD: trailing_mean(curve.rewards, WINDOW)},
        lambda: {"change": every(went.change), "error": every(went.error), "visible": every(TREND_ERRORS * went.error)},
        began=from_start,
    )


RWD004 = Rule(
    code="RWD004",
    title="reward has not risen",
    kind="symptom",
    needs=((REWARD,),),
    checks=(
        Check(
            series=(REWARD,),
            signal=never_rose,
            message="The reward has not risen: it changed by {change:+.2g} ± {error:.2g} over the run. A rise of "
            "{visible:.2g} or more would show above the noise.",
            level="note",
        ),
    ),
    # These say why nothing is learned, or that the reward went down.
    suppressed_by=("LRN001", "GRD003", "GRP001", "SMP003", "ENT003", "TRN001", "RWD001"),
    meaning="The line through all rewards does not rise beyond their noise, in 30 rows or more.",
    impact="The policy may not learn at all, or so slowly that this log cannot show it. Many sound runs look like this "
    "for a long time.",
    remedy=advise(
        "Compare an evaluation before and after, on the same questions. If it did not rise either, raise the [learning "
        "rate], or use easier questions or a [denser reward]."
    ),
    limitations="This is a note where the log does not show why. It needs 30 rows, and the reward of a row is noisy: "
    "the message says how large a rise would have been visible.",
)


PENALTY = re.compile(r"penal|punish|overlong|repet", re.IGNORECASE)
"""Names of functions of which 0 is the best."""


def never_earned(rows: Rows) -> Signal | None:
    """A reward function has given every rollout 0 so far. The newest row decides."""
    known = {name: finite(rows.log.series[name]).values for name in functions_of(rows.log) if not PENALTY.search(name)}
    zero = [name for name, values in known.items() if len(values) >= LONG_ROWS and not values.any()]
    if not zero:
        return None
    count = len(rows.steps)
    named = listed([name.removeprefix("rewards/").removesuffix("/mean") for name in zero])
    return Signal(
        np.ones(count, bool),
        lambda: {name: rows.latest(name) for name in zero},
        lambda: {"named": np.full(count, named)},
        began=from_start,
    )


RWD005 = Rule(
    code="RWD005",
    title="reward function always 0",
    kind="from the start",
    needs=((REWARD,),),
    applies=has_functions,
    checks=(
        Check(
            series=(REWARD,),
            signal=never_earned,
            message="Every rollout so far got 0 from {named}, so nothing is learned from that part of the reward.",
            min_rows=LONG_ROWS,
            level="note",
        ),
    ),
    suppressed_by=("GRP001",),
    meaning="One of several reward functions has given 0 to every rollout since the log began, in 20 rows or more.",
    impact="If it is the one that rewards correctness, the policy learns only what the others reward, such as a "
    "format.",
    remedy=CHECK_REWARD,
    limitations="This is a note, not a finding. The task may be too hard for now, or the function may only penalise: "
    "of one that is named after a penalty, 0 is taken for the best. The rule needs `rewards/<function>/mean` of two "
    "functions.",
)
