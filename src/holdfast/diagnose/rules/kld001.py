"""KLD001: the policy leaves its reference.

Trainers log the KL to the reference per token, most of them as the estimate r - 1 - log r with r = reference / policy
(Schulman's k3). It is never negative, and a single token that the reference finds absurd makes a spike of any height.
So what counts is whether a row is above a level, not how far.

Meaning: The policy has moved far from its reference although the reward has not risen. Or it moves away while the
reward falls.

Impact: The policy no longer writes like its reference: its text degenerates and gradients spike. If the KL is part of
the loss or of the reward, it outweighs the task.

Limitations: The threshold, 1 nat per token above the first five rows, suits language models. A small model trained from
scratch may exceed it, so the rule waits for ten rows and is silent once the reward has risen. Single spikes are
ignored, because one token can cause them. Without a reference (`beta=0`), no trainer measures this KL.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log import has
from holdfast.diagnose.log.smoothed import reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    highest,
    lowest,
    mean_at_first,
    trailing_mean,
    trend,
)
from holdfast.diagnose.rules._parts import KL, REWARD
from holdfast.diagnose.rules._parts.reward import has_risen
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal, falling


def stays_above(values: Values, level: float | Values) -> Truths:
    """[N]: where four of the last five rows are above a level. It takes five rows."""
    often = trailing_mean((values > level).astype(float), ROWS) >= ABOVE_SHARE
    return often & (np.arange(len(values)) >= ROWS - 1)


ROWS = 5
ABOVE_SHARE = 0.8
"""Share of these rows that must be above the level: four of five."""


def leaves_start(rows: Rows, kl: Values) -> Signal:
    """The KL stays far above that of the first rows, and the reward has not risen."""
    rise = kl - lowest(kl)[np.minimum(np.arange(len(kl)), ROWS - 1)]
    smooth, risen = trailing_mean(kl, ROWS), has_risen(rows)
    return Signal(
        stays_above(rise, RISE_NATS) & ~risen,
        lambda: {KL: smooth},
        lambda: {"first": smooth - trailing_mean(rise, ROWS)},
        normal=risen | ~stays_above(rise, RISE_NATS / 2),
        began=lambda row: break_in(kl, 0, row),
    )


RISE_NATS = 1.0
"""Nats per token above the lowest of the first rows: a reference need not be the start. Language models that learn rise
by 0.0005 to 0.3. At 1, the reference gives an average token a third of the probability that it gave at first."""


def runs_away(rows: Rows, kl: Values, reward: Values) -> Signal:
    """The KL is several times as high as when the reward was first near its best, and the reward falls."""
    smooth, mean_reward = trailing_mean(kl, ROWS), trailing_mean(reward, ROWS)
    best = highest(mean_reward)
    near = best - NEAR_BEST_SHARE * reward_range(best, lowest(reward))
    then = smooth[np.searchsorted(best, near)]  # the best so far never falls, so this is the first row near it
    level = np.maximum(RUNAWAY_NATS, RUNAWAY_TIMES * then)
    down = falling(rows)
    return Signal(stays_above(kl, level) & down, lambda: {KL: smooth, "then": then, REWARD: mean_reward}, normal=~down)


RUNAWAY_TIMES = 5.0
"""Times the KL when the reward was first near its best. Ordinary learning multiplies it before that."""
NEAR_BEST_SHARE = 0.1
"""How far below its best the reward still was then, as a share of its range."""
RUNAWAY_NATS = 0.3
"""Nats per token. Below that the policy is still near its reference."""


def drifts(rows: Rows, kl: Values) -> Signal:
    """The KL has risen far beyond its noise since the first rows, and the reward has not."""
    smooth, first, risen = trailing_mean(kl, LONG_ROWS), mean_at_first(kl, LONG_ROWS), has_risen(rows)
    change, error = trend(kl)
    further = (smooth - first > RUNAWAY_NATS) & (change > RUNAWAY_NATS) & (change > DRIFT_ERRORS * error)
    return Signal(
        further & ~risen,
        lambda: {KL: smooth},
        lambda: {"first": first},
        normal=risen | ~further,
        began=lambda row: break_in(kl, 0, row),
    )


LONG_ROWS, DRIFT_ERRORS = 10, 3.0
"""Rows in the means, and standard errors of the trend, of a drift that explains a reward that does not rise."""
MIN_ROWS = 10
"""Rows in which the reward may begin to rise. A small model that learns a task from scratch leaves its reference and is
healthy."""


RULE = Rule(
    title="policy far from its reference",
    kind="symptom",
    needs=((KL,),),
    applies=lambda log: has(log, KL),
    checks=(
        Check(
            series=(KL,),
            signal=leaves_start,
            message="The KL to the reference is {kl/reference:.2g} nats per token, up from {first:.2g} in the first "
            "rows, but the reward has not risen.",
            min_rows=MIN_ROWS,
            look_at=(KL, REWARD),
        ),
        Check(
            series=(KL, REWARD),
            signal=runs_away,
            message="The KL to the reference grows while the reward falls: {kl/reference:.2g} nats per token, up "
            "from {then:.2g} when the reward was first near its best.",
        ),
        Check(
            series=(KL,),
            signal=drifts,
            message="The policy drifts without learning: the KL to the reference is {kl/reference:.2g} nats per token, "
            "up from {first:.2g} in the first rows, and the reward has not risen.",
            min_rows=2 * LONG_ROWS,
            look_at=(KL, REWARD),
            level="reason",
        ),
    ),
    # These say why the policy leaves, and what to change.
    suppressed_by=("MSK001", "SMP001", "STP001"),
    suppressed_by_earlier=COLLAPSING,
    remedy=advise(
        "Lower the [learning rate], or raise the [coefficient of the KL]. Go back to a checkpoint from before the KL "
        "rose."
    ),
)
