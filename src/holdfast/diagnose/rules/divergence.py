"""The policy leaves its reference: KLD001.

Trainers log the KL to the reference per token, most of them as the estimate r - 1 - log r with r = reference / policy
(Schulman's k3). It is never negative, and a single token that the reference finds absurd makes a spike of any height.
So what counts is whether a row is above a level, not how far.
"""

from __future__ import annotations

import numpy as np

from holdfast.base.collapse import reward_range
from holdfast.base.trailing import Truths, Values, highest, lowest, mean_at_first, trailing_mean
from holdfast.diagnose.log import Log, has
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, falling

KL, REWARD = "kl/reference", "reward/mean"
ROWS = 5
MOST_ROWS = 0.8
"""Share of these rows that must be above the level: four of five."""

BAND_NATS = 1.0
"""Nats per token. Language models that learn stay between 0.0005 and 0.3. At 1, the reference gives an average token of
the policy a third of the probability that the policy gives it."""
LEARNED_SHARE = 0.25
"""Share of its range that the reward has gained. A small model that learns a task from scratch leaves its reference and
is healthy."""

RUNAWAY_TIMES = 5.0
"""Times the KL when the reward was first near its best. Ordinary learning multiplies it before that."""
NEAR_BEST_SHARE = 0.1
"""How far below its best the reward still was then, as a share of its range."""
RUNAWAY_NATS = 0.3
"""Nats per token. Below that the policy is still near its reference."""


def has_kl(log: Log) -> bool:
    """Whether the run measures the KL to a reference."""
    return has(log, KL)


def stays_above(values: Values, level: float | Values) -> Truths:
    """[N]: where four of the last five rows are above a level. It takes five rows."""
    often = trailing_mean((values > level).astype(float), ROWS) >= MOST_ROWS
    return often & (np.arange(len(values)) >= ROWS - 1)


def has_learned(rows: Rows) -> Truths:
    """[N]: where the reward has gained a quarter of its range since the first rows."""

    def gained(reward: Values) -> Truths:
        mean = trailing_mean(reward, ROWS)
        gain = mean - mean_at_first(reward, ROWS)
        return gain > LEARNED_SHARE * reward_range(highest(mean), lowest(reward))

    return rows.where(REWARD, gained)


def leaves_band(rows: Rows) -> Signal:
    """The KL stays above what a language model needs, and the reward has gained little."""
    (kl,) = rows.columns
    smooth, learned = trailing_mean(kl, ROWS), has_learned(rows)
    return Signal(stays_above(kl, BAND_NATS) & ~learned, lambda: {KL: smooth}, normal=~stays_above(kl, BAND_NATS / 2))


def runs_away(rows: Rows) -> Signal:
    """The KL is several times as high as when the reward was first near its best, and the reward falls."""
    kl, reward = rows.columns
    smooth, mean_reward = trailing_mean(kl, ROWS), trailing_mean(reward, ROWS)
    best = highest(mean_reward)
    near = best - NEAR_BEST_SHARE * reward_range(best, lowest(reward))
    then = smooth[np.searchsorted(best, near)]  # the best so far never falls, so this is the first row near it
    level = np.maximum(RUNAWAY_NATS, RUNAWAY_TIMES * then)
    down = falling(rows)
    return Signal(stays_above(kl, level) & down, lambda: {KL: smooth, "then": then, REWARD: mean_reward}, normal=~down)


KLD001 = Rule(
    code="KLD001",
    title="policy far from its reference",
    kind="symptom",
    needs=((KL,),),
    applies=has_kl,
    checks=(
        Check(
            series=(KL,),
            signal=leaves_band,
            message="The KL to the reference is {kl/reference:.2g} nats per token, but the reward has hardly risen.",
            look_at=(KL, REWARD),
        ),
        Check(
            series=(KL, REWARD),
            signal=runs_away,
            message="The KL to the reference grows while the reward falls: {kl/reference:.2g} nats per token, up "
            "from {then:.2g} when the reward was first near its best.",
        ),
    ),
    # These say why the policy leaves, and what to change.
    suppressed_by=("MSK001", "SMP001", "STP001"),
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001", "RWD001"),
    meaning="The policy is far from its reference although the reward has hardly risen. Or it moves away while the "
    "reward falls.",
    impact="The policy no longer writes like its reference: its text degenerates and gradients spike. If the KL is "
    "part of the loss or of the reward, it outweighs the task.",
    remedy=advise(
        "Lower the [learning rate], or raise the [coefficient of the KL]. Go back to a checkpoint from before the KL "
        "rose."
    ),
    limitations="The threshold of 1 nat per token suits language models. A small model trained from scratch may "
    "exceed it, so the rule is silent once the reward has gained a quarter of its range. Single spikes "
    "are ignored, because one token can cause them. Without a reference (`beta=0`), no trainer measures "
    "this KL.",
)
