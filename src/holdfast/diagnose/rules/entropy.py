"""Entropy: a surge (ENT001), a collapse (ENT002), and a policy that samples noise (ENT003)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.log.collapse import curve_of
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    held,
    highest,
    last_where,
    lowest,
    margin,
    mean_at_first,
    most_since,
    trailing_lowest,
    trailing_mean,
)
from holdfast.diagnose.rules.contrast import without_room
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, Remedy, advise, setting
from holdfast.diagnose.rules.rule import Check, Hit, Rows, Rule, Signal, falling, is_solved, long_not_preferred

ENTROPY, LENGTH, MIXED = "entropy/mean", "rollout/length", "rollout/mixed_group_fraction"
REWARD = "reward/mean"
ROWS = 5
LENGTH_KEPT = ", while rollouts kept their length"

SURGE_TIMES = 1.25
"""Times the lowest five-row mean so far. Healthy plateaus vary by up to a tenth, and by more if entropy is near 0."""
SURGE_NATS = 0.35
"""Nats per token: 1.4 times as many likely tokens. A factor alone is not enough. Healthy runs that still learn vary by
up to 0.3 nats, which may be more than the whole entropy of a sharp policy."""
SURGE_ERRORS = 3.5
"""Standard errors above the lowest of many means, which is an extreme."""
SURGE_WITHOUT_STEEPEST_ROW = 0.1
"""What is left of the rise without its steepest row, as a share of the lowest value. A rise within a single row means
other questions, another sampler or another retriever, not a policy that drifts."""
LENGTH_TIMES = 1.3
"""The length may have grown by this factor since entropy was lowest, or by less than entropy. Rambling follows a surge.
If rollouts grow first, they are of another kind and may have another entropy."""

DIFFERENT_FRACTION = 0.2
"""Share of the groups with different rewards from which on the rollouts of a question are not nearly identical."""
LARGEST_GROUP = 64
"""Rollouts of a question: few runs sample more."""
NOISY_ROWS = 20
"""Rows in the means that show a noisy reward. A row may be one group."""
MOST_DIFFERENT = 0.9
"""Share of the groups above which twenty rows prove no more: at 0.9, one such mean of eight is 1 by chance."""
EXHAUSTED_NATS = 0.1
"""Nats of a whole rollout: nine of ten rollouts are then the most likely one."""
EXHAUSTED_SHARE, EXHAUSTED_TOKEN_NATS = 0.03, 0.02
"""Share of the highest five-row mean, and nats per token. Both are needed if the length is not known."""


def surges(rows: Rows) -> Signal | None:
    """Entropy is far above its lowest value, and neither one row nor longer rollouts explain it. A reward that fell
    meanwhile and came back ends it."""
    (entropy,) = rows.columns
    smooth = trailing_mean(entropy, ROWS)
    low = lowest(smooth)
    rise = smooth - low
    risen = (smooth > SURGE_TIMES * low) & (rise > SURGE_NATS)
    if not risen.any():
        return None
    risen &= rise > margin(entropy, ROWS, SURGE_ERRORS)
    risen &= (smooth > mean_at_first(entropy, ROWS)) | falling(rows)
    steps_up = np.diff(entropy, prepend=entropy[:1])
    rest = trailing_mean(entropy, 2) - low - most_since(steps_up, smooth <= low)
    lowest_at = last_where(smooth <= low)
    # NaN, if the length is not known, excludes nothing.
    length = trailing_mean(rows.latest(LENGTH), ROWS)
    grown = length / np.maximum(length[lowest_at], 1e-9)
    longer = (grown > LENGTH_TIMES) & (grown > smooth / np.maximum(low, 1e-9))
    below_half = (smooth < (1 + SURGE_TIMES) / 2 * low) | (rise < SURGE_NATS / 2)
    recovered = has_recovered(rows, risen, below_half)
    where = risen & (rest > SURGE_WITHOUT_STEEPEST_ROW * low) & ~longer & long_not_preferred(rows) & ~recovered

    def words() -> dict[str, NDArray[np.generic]]:
        with np.errstate(all="ignore"):
            times = smooth / low
        kept = np.where(np.abs(np.log(np.maximum(grown, 1e-9))) < math.log(LENGTH_TIMES), LENGTH_KEPT, "")
        return {"times": times, "kept": np.where(np.isnan(grown) | without_room(rows), "", kept)}

    return Signal(
        where,
        lambda: {ENTROPY: smooth, "lowest so far": low},
        words,
        normal=below_half | recovered,
        began=lambda row: break_in(entropy, int(lowest_at[row]), row),
    )


def has_recovered(rows: Rows, risen: Truths, over: Truths) -> Truths:
    """[N]: where the reward has fallen while entropy had risen, which is not over, and then come back to its peak."""
    down, back = risen & falling(rows), rows.where(REWARD, lambda reward: curve_of(reward).back)
    fell, came_back = last_where(down), last_where(back)
    return np.asarray(down[fell] & (fell > last_where(over)) & (came_back > fell))


def without_highest(values: Values) -> Values:
    """[N]: the mean of the last five rows without the highest of them, which may be an odd row."""
    rows = np.minimum(np.arange(1, len(values) + 1), ROWS)
    total = rows * trailing_mean(values, ROWS) + trailing_lowest(-values, ROWS)
    return np.asarray(total / np.maximum(rows - 1, 1))


def runs_out(rows: Rows, *, solved: bool) -> Signal:
    """Entropy is near 0, per token or per rollout. With `solved`, only where the reward is near 1; without it, only
    elsewhere."""
    (entropy,) = rows.columns
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


def least_nats(mixed: Values) -> Values:
    """[N]: the least entropy of a whole rollout, in nats, with which this share of the groups can have different
    rewards, if a rollout has one reward.

    If the most likely rollout of a question has the probability p, all n rollouts of a group are that one with p^n. So
    at most 1 - p^n of its groups are mixed, and its entropy is -log p or more: -log(1 - mixed) / n or more. That is
    convex, so it holds for the means over questions too.

    >>> least_nats(np.array([0.2, 0.5, 1.0])).round(4).tolist()
    [0.0035, 0.0108, 0.036]
    """
    return np.asarray(-np.log1p(-np.minimum(mixed, MOST_DIFFERENT)) / LARGEST_GROUP)


def is_noisy_reward(rows: Rows) -> Signal:
    """Entropy is too low for rollouts that differ, and yet many groups have different rewards. An entropy of exactly 0
    was rounded."""
    entropy, length, mixed = (trailing_mean(column, NOISY_ROWS) for column in rows.columns)
    one = (entropy > 0) & (entropy * length < least_nats(mixed)) & (mixed > DIFFERENT_FRACTION)
    return Signal(one, lambda: {ENTROPY: entropy, LENGTH: length, MIXED: mixed}, normal=~one)


def for_surge(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """An entropy bonus in the settings is the cause that the log names."""
    bonus = setting(log, "entropy bonus")
    if bonus is None or bonus <= 0:
        return PRESERVE_LIKELIHOOD
    return {host: text.replace("{bonus}", f"{bonus:g}") for host, text in LESS_BONUS.items()}


LESS_BONUS = advise(
    "The log has an [entropy bonus] of {bonus}: set it to 0. If entropy rises without it, lower the [learning rate], "
    "or preserve correct rollouts with a [penalty on lost likelihood]."
)

ENT001 = Rule(
    code="ENT001",
    title="entropy surge",
    kind="symptom",
    needs=((ENTROPY, LENGTH), (ENTROPY,)),
    equal_needs=True,
    checks=(
        Check(
            series=(ENTROPY,),
            signal=surges,
            message="Entropy rose to {entropy/mean:.3g} nats, {times:.2g} times its lowest value{kept}.",
            min_rows=ROWS,
            look_at=(ENTROPY, LENGTH),
        ),
    ),
    meaning="Entropy rises far above its lowest value, and longer rollouts do not explain it.",
    impact="The policy becomes uncertain but does nothing new: probability moves to tokens that it rarely samples. "
    "In published collapses, this comes before the reward falls.",
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=for_surge,
    limitations="Entropy must rise by a quarter and by 0.35 nats per token. So a policy with very low entropy is not "
    "reported, even if it doubles. If the reward falls meanwhile and comes back, this is a note, wherever entropy "
    "stays. New data or another temperature also raise entropy. If the settings in the log have an entropy bonus, the "
    "finding says so.",
)

ENT002 = Rule(
    code="ENT002",
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
                "Score the same rollout twice: if its reward changes, remove what is random from the reward function. "
                "Read some [rollouts] of one question."
            ),
        ),
        *(
            Check(
                series=(ENTROPY,),
                signal=partial(runs_out, solved=solved),
                message="Entropy is only {entropy/mean:.2g} nats per token, so the rollouts of a question are nearly "
                "identical" + (", as they may be when the task is solved." if solved else "."),
                min_rows=ROWS,
                level="note" if solved else "finding",
            )
            for solved in (False, True)
        ),
    ),
    meaning="Entropy is so low that the rollouts of a question are nearly identical.",
    impact="If all rollouts of a group are alike, their rewards are equal and the advantages are 0. Learning stops, "
    "whatever the reward is.",
    remedy=advise(
        "Stop here and take the best checkpoint, or raise the [entropy bonus], the [coefficient of the KL] or the "
        "[upper clip]."
    ),
    limitations="A solved task looks the same and is not a failure. With a mean reward of 0.9 or more, out of 1, or of "
    "90 out of 100, it is a note. With other rewards the rule cannot tell.",
)


NOISE_NATS = 5.0
"""Nats per token: a choice among 148 equally likely tokens, at every token. Language models that are prompted as they
were trained begin between 0.05 and 1.5, base models below 3. A small model that knows nothing has the logarithm of its
vocabulary, such as 4.2 for 64 symbols, and may learn all the same."""
NOISE_ROWS = 2
"""Consecutive rows. The first row alone is enough, because it comes before any update that could have caused it."""
SANE_NATS = 3.0


def is_noise(rows: Rows) -> Signal:
    """Entropy is beyond that of any text."""
    (entropy,) = rows.columns
    high = entropy > NOISE_NATS
    where = held(high, NOISE_ROWS) | (high & (np.arange(len(high)) == 0))
    tokens = np.exp(np.clip(entropy, 0.0, 20.0))
    return Signal(where, lambda: {ENTROPY: entropy}, lambda: {"tokens": tokens}, normal=entropy < SANE_NATS)


ENT003 = Rule(
    code="ENT003",
    title="policy samples noise",
    kind="symptom",
    needs=((ENTROPY,),),
    checks=(
        Check(
            series=(ENTROPY,),
            signal=is_noise,
            message="The policy samples noise: an entropy of {entropy/mean:.2g} nats is as high as that of "
            "{tokens:.0f} equally likely tokens.",
        ),
    ),
    suppressed_by_earlier=("MSK001", "SMP001", "STP001", "LLD003", "ISD001", "KLD001", "ENT001", "GRD002", "RWD001"),
    meaning="Entropy is far higher than that of text: the policy chooses each token among hundreds of likely ones.",
    impact="Such rollouts are noise, and their rewards teach nothing. If entropy is this high from the first row on, "
    "the model does not load as intended: a wrong checkpoint, a wrong chat template, or broken weights.",
    remedy=advise(
        "Read some [rollouts]. Check the checkpoint, its chat template, and that its weights load in `bf16` or full "
        "precision, not `fp16`.",
        instead={"holdfast": "Check `model.path` and `model.chat_template`, and read some [rollouts]."},
    ),
    limitations="The threshold is 5 nats per token, in two rows or in the first one. A model with a large vocabulary "
    "that is trained from scratch starts above it. The threshold does not apply if the trainer sums "
    "entropy over tokens.",
)
