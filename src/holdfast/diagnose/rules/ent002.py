"""ENT002: entropy collapses, or is too low for rewards that differ.

Meaning: Entropy is so low that the rollouts of a question are nearly identical.

Impact: If all rollouts of a group are alike, their rewards are equal and their advantages are 0. Learning stops,
however low the reward is.

Limitations: A solved task looks the same and is not a failure. If the mean reward is at least 0.9 out of 1, or 90 out
of 100, this is a note. On other scales the rule cannot tell.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log.trailing import Values, break_in, highest, trailing_lowest, trailing_mean
from holdfast.diagnose.rules._parts import ENTROPY, LENGTH, MIXED
from holdfast.diagnose.rules._parts.reward import is_solved
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def without_highest(values: Values) -> Values:
    """[N]: the mean of the last five rows without the highest of them, which may be an odd row."""
    rows = np.minimum(np.arange(1, len(values) + 1), ROWS)
    total = rows * trailing_mean(values, ROWS) + trailing_lowest(-values, ROWS)
    return np.asarray(total / np.maximum(rows - 1, 1))


ROWS = 5


def runs_out(rows: Rows, entropy: Values, *, solved: bool) -> Signal:
    """Entropy is near 0, per token or per rollout. With `solved`, only where the reward is near 1; without it, only
    elsewhere."""
    smooth = trailing_mean(entropy, ROWS)
    start = highest(smooth)
    where = (smooth < EXHAUSTED_SHARE * start) & (smooth < EXHAUSTED_TOKEN_NATS)
    of_rollout = trailing_mean(rows.latest(LENGTH), ROWS) * smooth
    where |= of_rollout < EXHAUSTED_NATS
    # Rewards that differ within groups belong to rollouts that differ.
    differ = rows.latest(MIXED, lambda mixed: trailing_mean(mixed, ROWS)) > DIFFERENT_FRACTION
    rest = without_highest(entropy)
    back = (rest > 2 * EXHAUSTED_TOKEN_NATS) & ~(trailing_mean(rows.latest(LENGTH), ROWS) * rest < 2 * EXHAUSTED_NATS)
    back |= differ | (is_solved(rows) != solved)
    return Signal(
        where & ~back,
        lambda: {ENTROPY: smooth, "highest so far": start},
        normal=back,
        began=lambda row: break_in(entropy, int(smooth[: row + 1].argmax()), row),
    )


DIFFERENT_FRACTION = 0.2
"""Share of the groups with different rewards from which on the rollouts of a question are not nearly identical."""
EXHAUSTED_NATS = 0.1
"""Nats of a whole rollout: nine of ten rollouts are then the most likely one."""
EXHAUSTED_SHARE, EXHAUSTED_TOKEN_NATS = 0.03, 0.02
"""Share of the highest five-row mean, and nats per token. Both are needed if the length is not known."""


def least_nats(mixed: Values) -> Values:
    """[N]: the least entropy of a whole rollout, in nats, with which this share of the groups can have different
    rewards, if a rollout has one reward.

    If the most likely rollout of a question has the probability p, all n rollouts of a group are that one with p^n. So
    at most 1 - p^n of its groups are mixed, and its entropy is -log p or more: -log(1 - mixed) / n or more. That is
    convex, so it holds for the means over questions too.

    >>> least_nats(np.array([0.2, 0.5, 1.0])).round(4).tolist()
    [0.0035, 0.0108, 0.036]
    """
    return np.asarray(-np.log1p(-np.minimum(mixed, MAX_DIFFERENT)) / MAX_GROUP)


MAX_GROUP = 64
"""Rollouts of a question: few runs sample more."""
MAX_DIFFERENT = 0.9
"""Share of the groups above which twenty rows prove no more: at 0.9, one such mean of eight is 1 by chance."""


def is_noisy_reward(rows: Rows, *columns: Values) -> Signal:
    """Entropy is too low for rollouts that differ, and yet many groups have different rewards. An entropy of exactly 0
    was rounded."""
    entropy, length, mixed = (trailing_mean(column, NOISY_ROWS) for column in columns)
    one = (entropy > 0) & (entropy * length < least_nats(mixed)) & (mixed > DIFFERENT_FRACTION)
    return Signal(one, lambda: {ENTROPY: entropy, LENGTH: length, MIXED: mixed}, normal=~one)


NOISY_ROWS = 20
"""Rows in the means that show a noisy reward. A row may be one group."""


RULE = Rule(
    title="entropy collapse",
    kind="symptom",
    needs=((ENTROPY,),),
    checks=(
        Check(
            series=(ENTROPY, LENGTH, MIXED),
            signal=is_noisy_reward,
            message="The rollouts of a question are nearly identical ({entropy/mean:.2g} nats per token), but their "
            "rewards differ in {rollout/mixed_group_fraction:.0%} of the groups: the reward is noisy.",
            min_rows=NOISY_ROWS,
            rows_normal=NOISY_ROWS + 1,  # an odd row moves the means for so many less one
            remedy=advise(
                "Score the same rollout twice: if its reward changes, remove the randomness from the reward "
                "function. Read some [rollouts] of one question."
            ),
        ),
        *(
            Check(
                series=(ENTROPY,),
                signal=partial(runs_out, solved=solved),
                message="Entropy is only {entropy/mean:.2g} nats per token, so the rollouts of a question are nearly "
                "identical" + (", which is normal once the task is solved." if solved else "."),
                min_rows=ROWS,
                level="note" if solved else "finding",
            )
            for solved in (False, True)
        ),
    ),
    remedy=advise(
        "Stop here and take the best checkpoint, or raise the [entropy bonus], the [coefficient of the KL] or the "
        "[upper clip]."
    ),
)
