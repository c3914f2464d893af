"""Nothing is learned: a learning rate of 0 (LRN001), and a reward that never rose (RWD004)."""

from __future__ import annotations

import numpy as np

from holdfast.base.trailing import Values, held, noise_of_mean, rows_since, trailing_mean
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

RATE, REWARD, KL, CLIPPED = "lr", "reward/mean", "kl/reference", "clip/fraction"

ZERO_ROWS = 5
"""Consecutive rows. A warm-up begins with a row at 0, and a schedule ends with one."""
KL_MOVES = 1e-4
"""Nats. A KL that grows by more than this shows that the weights change, so the 0 is a rounded one."""

FEWEST_ROWS = 30
"""Rows in which a reward should have risen: thirds that do not overlap."""
PART = 3
"""The first third is compared with the last one."""
RISE_ERRORS = 3.0
"""Standard errors of their difference that show a rise. Below half of that, nothing suggests one."""
SOLVED = 0.9
"""A mean reward between 0 and 1 from which on there is little left to gain."""


def is_zero(rows: Rows) -> Signal | None:
    """The learning rate has been 0 for five rows, and nothing shows that the weights change."""
    (rate,) = rows.columns
    zero = rate == 0
    if not zero.any():
        return None
    since = np.minimum(np.arange(len(rate)) - rows_since(~zero) + 1, np.arange(len(rate)))  # the first row at 0
    kl = rows.latest(KL)
    moves = np.zeros(len(rate), bool)
    if rows.log.format in ("console", "table"):  # which may print 0.000
        moves = (np.cumsum(~zero) == 0) | (kl - kl[since] > KL_MOVES) | (rows.latest(CLIPPED) > 0)
    return Signal(
        held(zero, ZERO_ROWS) & ~moves,
        lambda: {RATE: rate},
        lambda: {
            "since": np.where(
                since == 0, "since the first row", [f"since step {step}" for step in rows.steps[since].tolist()]
            )
        },
        normal=~zero | moves,
    )


LRN001 = Rule(
    code="LRN001",
    title="learning rate is 0",
    kind="logged cause",
    needs=((RATE,),),
    checks=(
        Check(
            series=(RATE,),
            signal=is_zero,
            message="The learning rate has been 0 {since}, so the weights do not change.",
        ),
    ),
    meaning="The learning rate is 0 for five rows or more while training goes on.",
    impact="The policy learns nothing. Whatever else the series show is noise, or comes from the data.",
    remedy=advise(
        "Set the [learning rate]. If it was above 0 before, the [schedule] is shorter than the run: give it the number "
        "of steps that the run has, or resume with a new one."
    ),
    limitations="A single row of 0 is normal at the start of a warm-up and at the end of a schedule. Some consoles "
    "print 0.000 for a small learning rate, so in a console a 0 counts only after larger values.",
)


def never_rose(rows: Rows) -> Signal:
    """So far the reward is not higher than at first by more than noise. The newest row decides."""
    (reward,) = rows.columns
    count = len(reward)
    third = max(count // PART, 1)
    early, late = float(reward[:third].mean()), float(reward[count - third :].mean())
    visible = RISE_ERRORS * np.sqrt(2) * float(noise_of_mean(reward, third)[-1])
    flat = count >= FEWEST_ROWS and visible > 0 and abs(late - early) <= visible / 2 and not is_solved(reward)
    where = np.arange(count) == (count - 1 if flat else -1)

    def every(value: float) -> Values:
        return np.full(count, value)

    return Signal(where, lambda: {REWARD: every(late)}, lambda: {"early": every(early), "visible": every(visible)})


def is_solved(reward: Values) -> bool:
    """Whether the reward cannot rise much: a share near 1."""
    return bool(reward.min() >= 0 and reward.max() <= 1 and trailing_mean(reward, ZERO_ROWS).max() >= SOLVED)


RWD004 = Rule(
    code="RWD004",
    title="reward has not risen",
    kind="symptom",
    needs=((REWARD,),),
    checks=(
        Check(
            series=(REWARD,),
            signal=never_rose,
            message="The reward has not risen: {early:.3g} in the first third, {reward/mean:.3g} in the last. A rise "
            "of {visible:.2g} or more would show above the noise.",
            level="note",
        ),
    ),
    # These say why nothing is learned, or that the reward went down.
    suppressed_by=("LRN001", "GRD003", "GRP001", "SMP003", "ENT003", "TRN001", "RWD001"),
    meaning="The last third of the rewards is not higher than the first, beyond their noise.",
    impact="The policy may not learn at all, or so slowly that this log cannot show it. Many sound runs look like this "
    "for a long time.",
    remedy=advise(
        "Compare evaluations before and after. If they did not rise either, check that some groups have different "
        "rewards ([group size]), use easier questions, or raise the [learning rate]."
    ),
    limitations="This is a note, not a finding: it needs 30 rows, and the reward of a row is noisy. The message says "
    "how large a rise would have been visible.",
)
