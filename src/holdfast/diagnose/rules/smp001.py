"""SMP001: another policy sampled the tokens in the loss.

A tail leak, part of it, is probability lost to tokens outside top-p/top-k.

Meaning: The rollouts do not come from the policy that is being trained.

Impact: The sampler has different weights, a different temperature or a truncated distribution, so every importance
ratio is wrong. If top-p or top-k truncates the sampler while log-probs are over the whole vocabulary, probability leaks
to tokens that are never sampled (a tail leak).

Limitations: Mild truncation (top-p 0.95 or 0.9) alone is not a finding, because most such runs stay stable for many
steps. It is a finding if it removes a quarter of the probability. So it is if `advantage/tail_mean` is negative while
the probability inside top-p/top-k shrinks. Numerical differences of 0.01 nats or less are ignored. If the log has only
absolute differences, they must exceed 0.15 nats, or 0.06 in probability, from the first row on. A KL must exceed 0.1
nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Truths, Values, held, highest, lowest, margin, rows_since, trailing_mean
from holdfast.diagnose.rules._parts import ENTROPY, GAP, REWARD
from holdfast.diagnose.rules._parts.sampler import BACK_ROWS, MEASURES, SURPRISE, Measure, of_sampled
from holdfast.diagnose.rules.remedies import OUR_BUG, Remedy, advise, is_truncated
from holdfast.diagnose.rules.rule import Check, Hit, Rows, Rule, Signal, falling

MASS = "sampler/mask_mass"
MASKED = "sampler/mask_in_loss"
CENTRED = "loss/score_centering"
TAIL = "advantage/tail_mean"


def is_broken(rows: Rows, gap: Values, *, measure: Measure) -> Signal:
    """Since the first row, the mismatch is far above rounding."""
    high = gap > measure.broken
    return Signal(np.cumsum(~high) == 0, normal=~high)


def differs(rows: Rows, gap: Values) -> Signal:
    """The log-probs of sampler and trainer differ by more than truncation explains."""
    mass = np.nan_to_num(rows.latest(MASS), nan=1.0)
    explained = TRUNCATION_TIMES * -np.log(np.clip(mass, 1e-6, 1.0))
    beyond = np.where(gap > 0, np.maximum(gap - explained, 0.0), -gap)
    return Signal((beyond > GAP_NATS) & of_sampled(rows), normal=beyond < GAP_NATS / 2)


GAP_NATS = 0.05
"""Nats per token beyond what truncation explains. Rounding between two inference engines makes 0.001 to 0.01."""
TRUNCATION_TIMES = 1.6
"""The mean of -log mass over tokens is up to this many times -log of the mean mass."""


def becomes_broken(rows: Rows, gap: Values, *, level: float) -> Signal:
    """The mismatch is far above rounding from a later row on, in two rows or once by far, and was so before the reward
    fell. What comes later may be the policy: one that breaks samples unlikely tokens, on which engines differ most."""
    size = np.abs(gap)
    high = size > level
    since = np.arange(len(size)) - rows_since(~high)
    first_high = np.minimum(since + 1, np.arange(len(size)))
    where = (
        (held(high, 2) | (size > GROSS_TIMES * level)) & (since >= 0) & ~falling(rows)[first_high] & of_sampled(rows)
    )
    return Signal(
        where,
        words=lambda: {"before": gap[np.maximum(since, 0)]},
        normal=~high,
        began=lambda row: int(first_high[row]),
    )


GROSS_TIMES = 4.0
"""Times the level at which one row is enough."""


def unmasked(rows: Rows) -> Truths:
    """[N]: where the loss can move probability out of what the sampler draws: its log-probs are over the vocabulary,
    and the score is not centred."""
    return np.isnan(rows.latest(MASKED)) & np.isnan(rows.latest(CENTRED))


def leaks_into_tail(rows: Rows, *columns: Values) -> Signal:
    """Both the cause and its effect: a negative advantage in the tail, and a shrinking mass.

    Advantages that are not divided by their standard deviation are smaller, and are found later or never.
    """
    advantage, mass = (trailing_mean(column, LEAK_ROWS) for column in columns)
    lost = highest(mass) - mass
    where = (advantage < LEAK_ADVANTAGE) & (lost > LEAK_MASS) & unmasked(rows)
    return Signal(
        where, lambda: {TAIL: advantage, MASS: mass}, lambda: {"most": highest(mass)}, normal=lost < LEAK_MASS / 2
    )


LEAK_ROWS = 5
LEAK_ADVANTAGE = -0.1
"""Mean advantage in the tail, in standard deviations of the rewards. On the testbed where this was chosen, runs with
reliable searches stay within 0.02 once they have learned to search."""
LEAK_MASS = 0.01
"""Mass lost since its highest value. A policy that sharpens gains mass."""


def truncates_much(rows: Rows, mass: Values) -> Signal:
    """The sampling mask leaves out a quarter of the probability mass or more."""
    smooth = trailing_mean(mass, MASS_ROWS)
    return Signal((smooth < MIN_MASS) & unmasked(rows), lambda: {MASS: smooth}, normal=smooth > (1 + MIN_MASS) / 2)


MIN_MASS = 0.75
"""Probability mass of the sampling mask."""
MASS_ROWS = 3


def samples_unlikely_tokens(rows: Rows, correct: Values, incorrect: Values, entropy: Values, reward: Values) -> Signal:
    """Without the sampler's log-probs: the tokens that a policy samples surprise it by its entropy on average.

    The mean over all rollouts is computed from the means of correct and of incorrect rollouts, weighted by the reward.
    So the reward has to be between 0 and 1.
    """
    is_share = (lowest(reward) >= 0) & (highest(reward) <= 1)
    excess = -(reward * correct + (1 - reward) * incorrect) - entropy
    smooth = trailing_mean(excess, UNLIKELY_ROWS)
    by_chance = np.minimum(margin(excess, UNLIKELY_ROWS, UNLIKELY_ERRORS), CERTAINLY_UNLIKELY_NATS)
    where = smooth > np.maximum(UNLIKELY_NATS, by_chance)
    return Signal(
        where & is_share,
        lambda: {"surprise beyond entropy": smooth, ENTROPY: entropy},
        normal=smooth < UNLIKELY_NATS / 2,
    )


UNLIKELY_NATS = 0.5
"""Nats per token. If the sampler is the policy, the mean of three rows stays below 0.2, with batches of eight rollouts.
At temperature 1.6 it is 1 and more."""
UNLIKELY_ROWS = 3
UNLIKELY_ERRORS = 3.0
"""Standard errors: with eight short rollouts a row, chance makes 0.6."""
CERTAINLY_UNLIKELY_NATS = 1.0
"""Nats per token from which on the first rows are enough, though their noise is not known."""
GROSS_NATS = 1.0
"""Nats per token of a signed difference: the sampler gives an average token a third of its probability, or thrice."""
NOT_TRUNCATED = (
    "Sample at the training temperature, [without top-p and top-k]. Or compute log-probs over the [tokens that the "
    "sampler can draw], as prime-rl and slime do."
)
SAME_WEIGHTS_ALWAYS = (
    "Check that the sampler gets the new weights after every update. If rollouts have to be stale and the old policy "
    "is recomputed, add a [penalty on lost likelihood]. The [importance weights of the sampler] are for small "
    "differences."
)

SAME_POLICY = f"{NOT_TRUNCATED} {SAME_WEIGHTS_ALWAYS}"


def as_truncated(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """Nothing of top-p and top-k where the settings in the log say that they are off."""
    remedy = hit.remedy or RULE.remedy
    return SAMPLED_WHOLE if remedy is RULE.remedy and is_truncated(log) is False else remedy


SAMPLED_WHOLE = advise(f"Sample at the training temperature. {SAME_WEIGHTS_ALWAYS}")

SAME_POLICY_AT_FIRST = advise(
    "Check that sampler and trainer have the same weights, precision, temperature and prompt. Sample [without top-p "
    "and top-k], or compute log-probs over the [tokens that the sampler can draw]. Correct the rest with [importance "
    "weights of the sampler].",
    instead={"holdfast": OUR_BUG},
)

SAME_WEIGHTS = advise(
    "Check that the sampler has the trainer's weights from this step on: ask both for the log-probs of a fixed text. "
    "A failed weight synchronisation, or a resume from another checkpoint, looks like this. A smaller learning rate "
    "would not help.",
    instead={"holdfast": OUR_BUG},
)


RULE = Rule(
    title="sampler and trainer disagree",
    needs=((GAP,), *((measure.series,) for measure in MEASURES), (MASS,), (*SURPRISE, REWARD)),
    checks=(
        Check(
            series=(GAP,),
            signal=differs,
            message="Sampler and trainer disagree: their log-probs of sampled tokens differ by "
            "{sampler/logprob_gap:.2g} nats.",
            rows_running=2,
            rows_normal=BACK_ROWS,
            remedy=advise(  # holdfast's log has the mass of the mask, so truncation is not the cause
                SAME_POLICY,
                instead={
                    "holdfast": "Leave out `train.staleness` and `faults.sampler_8_bits`. To study them, use a "
                    "[penalty on lost likelihood]; [importance weights of the sampler] helped with rollouts one "
                    "batch old, but not four or eight. If neither is set, report a bug."
                },
            ),
        ),
        *(
            Check(
                series=(measure.series,),
                signal=partial(is_broken, measure=measure),
                message=f"Sampler and trainer disagree from the first row on: {measure.text}.",
                remedy=SAME_POLICY_AT_FIRST,
            )
            for measure in MEASURES
        ),
        *(
            Check(
                series=(name,),
                signal=partial(becomes_broken, level=level),
                message=f"Sampler and trainer disagree: {text}, up from {{before:.2g}}.",
                rows_normal=BACK_ROWS,
                remedy=SAME_WEIGHTS,
                kind="logged cause",
            )
            for name, level, text in (
                *((measure.series, measure.broken, measure.text) for measure in MEASURES),
                (GAP, GROSS_NATS, "their log-probs of sampled tokens differ by {sampler/logprob_gap:.2g} nats"),
            )
        ),
        Check(
            series=(TAIL, MASS),
            signal=leaks_into_tail,
            message="Probability leaks to tokens outside top-p/top-k. The share inside fell from {most:.1%} to "
            "{sampler/mask_mass:.1%}. The tokens outside have a mean advantage of {advantage/tail_mean:.2g}, so the "
            "loss causes this.",
            min_rows=LEAK_ROWS,
            rows_running=2,
        ),
        Check(
            series=(MASS,),
            signal=truncates_much,
            message="Top-p or top-k truncates the sampler to {sampler/mask_mass:.0%} of the probability, but the "
            "log-probs in the loss are over the whole vocabulary.",
            min_rows=MASS_ROWS,
        ),
        Check(
            series=(*SURPRISE, REWARD),
            signal=samples_unlikely_tokens,
            message="Sampled tokens are {surprise beyond entropy:.2g} nats less likely than samples of this policy "
            "would be. The sampler probably has another temperature or other weights.",
            rows_running=2,
            rows_normal=BACK_ROWS,
            better=((GAP,), *((measure.series,) for measure in MEASURES)),
            look_at=SURPRISE,
        ),
    ),
    suppressed_by=("MSK001", "SMP003"),  # the sampler has no log-probs of tokens that it did not sample
    remedy=advise(
        SAME_POLICY,
        instead={
            "holdfast": "Sample [without top-p and top-k]. Or compute log-probs over the [tokens that the sampler can "
            "draw], or use [score centering]."
        },
    ),
    remedy_in=as_truncated,
)
