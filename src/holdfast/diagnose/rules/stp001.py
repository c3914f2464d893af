"""STP001: a step that is too large, and a policy that breaks from one row to the next.

A single update that is far too large does two things at once: the reward is lost, and the policy changes. Its entropy,
its length or the share of clipped tokens jumps in the same rows. A reward that is lost alone has other causes: harder
questions, or a grader that went down. Entropy that rises first and slowly is a drift (ENT001).

Meaning: One update changes the policy so much that the reward falls within a few steps. No slow decay comes before it.

Impact: The optimizer overshoots. Likelihood-preserving penalties delay this, but do not prevent it if the step size is
the cause.

Limitations: If the log has neither displacement nor `ratio/log_product`, the rule uses weaker evidence. Either an
update clips more than 10 % of the tokens, and the reward falls or no earlier update clipped half as many. Or the reward
collapses within three rows while entropy or clipping jumps. Sequence-level clipping always clips that many tokens; it
is a finding only if the reward falls too. After LLD001 to LLD003, a jump is the end of that decay, and this rule
reports nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from holdfast.diagnose.log.smoothed import reward_range
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
from holdfast.diagnose.rules._parts import (
    CLIPPED,
    CORRECT,
    EMPTY_SEARCHES,
    ENTROPY,
    FAILED_SEARCHES,
    KL,
    LENGTH,
    LOG_RATIO,
    LOSS,
    RATE,
    REWARD,
)
from holdfast.diagnose.rules._parts.reward import (
    ROWS_TO_FORGET,
    did_no_harm,
    has_risen,
    is_near_best,
    long_not_preferred,
)
from holdfast.diagnose.rules._parts.tools import MAX_EMPTY_FRACTION, MAX_FAILED_FRACTION
from holdfast.diagnose.rules.remedies import SMALLER_STEPS
from holdfast.diagnose.rules.rule import Check, Condition, Rows, Rule, Signal, falling

DISPLACEMENT = "displacement/correct"


def from_first_update(signal: Condition) -> Condition:
    """The signal without rows up to which the learning rate was exactly 0, where no step can be too large."""

    def found(rows: Rows, *columns: Values) -> Signal | None:
        made = signal(rows, *columns)
        return made and replace(made, where=made.where & (np.cumsum(~rows.is_zero(RATE)) > 0))

    return found


def unusual(change: Values) -> Truths:
    """[N]: where the absolute value is far above its mean in the rows before; never in the first rows."""
    size = np.abs(change)
    return (size > UNUSUAL_TIMES * delayed(trailing_mean(size, USUAL_ROWS), 1)) & (np.arange(len(size)) >= MIN_ROWS)


USUAL_ROWS = 8
"""Rows before an update, or a break, whose mean is the usual value."""
MIN_ROWS = 3
"""Fewest such rows."""
UNUSUAL_TIMES = 8.0
"""Times the usual size of an update."""


def lowers_likelihood_at_once(rows: Rows, change: Values, likelihood: Values) -> Signal:
    """One update lowers the likelihood of correct rollouts much more than those before it."""
    at_first = (-change > FIRST_JUMP_NATS) & (np.arange(len(change)) < MIN_ROWS)
    where = (at_first | ((-change > JUMP_NATS) & unusual(change))) & (-change > JUMP_SHARE * -likelihood)
    return Signal(where, words=lambda: {"taken": -change}, normal=did_no_harm(rows))


JUMP_NATS = 0.12
"""Nats per token by which one update lowers the likelihood of correct rollouts. Displacement collapses reach 0.16,
but long after they are found."""
FIRST_JUMP_NATS = 0.4
"""The same in the first rows, where nothing is usual yet. Short rollouts move by up to 0.3 in runs that learn."""
JUMP_SHARE = 0.15
"""The same as a share of their log-likelihood."""


def ratio_falls_at_once(rows: Rows, product: Values, length: Values) -> Signal:
    """The ratio per token falls suddenly, or is low from the first rows on."""
    per_token = product / np.maximum(length, 1.0)
    at_first = held(per_token < FIRST_RATIO_JUMP_NATS, 2) & (np.arange(len(per_token)) < FIRST_ROWS)
    where = at_first | ((per_token < RATIO_JUMP_NATS) & unusual(per_token))
    ratio = np.exp(np.minimum(per_token, 0.0))
    return Signal(
        where,
        lambda: {LOG_RATIO: product, "log-ratio per token": per_token},
        lambda: {"ratio": ratio},
        normal=did_no_harm(rows),
    )


RATIO_JUMP_NATS = -0.15
"""Nats per sampled token, from the product of ratios. Single updates of a displacement collapse reach -0.11."""
FIRST_RATIO_JUMP_NATS = -0.06
"""The same in two consecutive rows of the first five, before any decay. Runs that learn begin above -0.002."""
FIRST_ROWS = 5


def clips_much(rows: Rows, clipped: Values, reward: Values) -> Signal | None:
    """One update clips many tokens, either suddenly or while the reward falls."""
    before = delayed(highest(clipped), 1)
    if not (clipped > CLIPPED_FRACTION).any():
        return None
    where = (clipped > CLIPPED_FRACTION) & ((clipped > CLIPPED_TIMES * before) | falling(rows))
    return Signal(
        where,
        lambda: {CLIPPED: clipped, "most before": before, REWARD: reward},
        normal=did_no_harm(rows),
    )


CLIPPED_FRACTION = 0.1
"""Share of the tokens that one update clips. Harder questions clip 3 %, healthy runs with small batches up to 12 %."""
CLIPPED_TIMES = 2.0
"""Times the largest share before."""


def breaks_at_once(rows: Rows, reward: Values, entropy: Values) -> Signal | None:
    """Within three rows the reward loses half of its range, and entropy or the share of clipped tokens jumps."""
    mean_reward, mean_entropy = (usual_before(column) for column in (reward, entropy))
    lost = mean_reward - trailing_mean(reward, 2)
    by_chance, more = (delayed(margin(column, 2, BREAK_ERRORS), BREAK_ROWS) for column in (reward, entropy))
    most, rise = (trailing_highest(column, BREAK_ROWS) for column in (entropy, leaps(entropy)))
    jumps = (most > ENTROPY_TIMES * mean_entropy) & (most - mean_entropy > np.maximum(more, ENTROPY_NATS))
    jumps &= rise > STEEPEST_SHARE * (most - mean_entropy)
    where = (lost > LOST_SHARE * reward_range(mean_reward, lowest(reward))) & (lost > by_chance)
    where &= (jumps | rows.where(CLIPPED, clip_jumps)) & searches_work(rows) & long_not_preferred(rows)
    where &= ~(rows.latest(LOSS, lambda loss: -trailing_mean(loss, USUAL_ROWS)) > LONG_PREFERRED_LOSS)
    where &= np.arange(len(reward)) >= MIN_ROWS + BREAK_ROWS - 1
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
LONG_PREFERRED_LOSS = 0.08
"""Minus the loss, in the mean of eight rows. Where the loss is a mean over tokens, that is their mean advantage:
long rollouts are preferred. An entropy bonus makes the loss negative too. Either is a different cause."""


def leaps(values: Values) -> Values:
    """[N]: the rise since the row before, if that row was as usual; else 0."""
    before = delayed(values, 1)
    calm = before <= CALM_TIMES * delayed(trailing_mean(values, USUAL_ROWS), 1)
    return np.where(calm, values - before, 0.0)


CALM_TIMES = 1.25
"""The row before a leap is as usual if it is at most this many times the mean of the rows before it."""


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


CLIP_JUMP_FRACTION, CLIP_JUMP_TIMES = 0.08, 4.0
"""Share of clipped tokens, and times its usual value. Harder questions clip up to 6 %."""


def searches_work(rows: Rows) -> Truths:
    """[N]: where no retriever fails, as far as the log shows. One that fails raises entropy too."""
    return ~((rows.latest(FAILED_SEARCHES) > MAX_FAILED_FRACTION) | (rows.latest(EMPTY_SEARCHES) > MAX_EMPTY_FRACTION))


def breaks_at_first(rows: Rows, reward: Values) -> Signal:
    """The reward is gone in one of the first rows and in the next, and the policy has changed."""
    row = np.arange(len(reward))
    first = delayed(trailing_mean(reward, EARLY_ROWS), 2)  # the mean of all rows before the last two
    before = np.maximum(row - 1, 1)  # rows; the noise is that of a difference between their mean and that of two rows
    in_both = trailing_mean(reward, EARLY_ROWS)
    by_chance = BREAK_ERRORS * binary_noise(in_both, 2 * before / (before + 2) * count_of(reward))
    height = np.maximum(first, 0.0) - np.minimum(lowest(reward), 0.0)  # so few rows do not show how low rewards may be
    gone = held(first - reward >= GONE_SHARE * height, 2) & (first - reward > by_chance)
    sudden = (first - delayed(reward, 2) < LOST_SHARE * height) | clips_much_so_far(rows)
    gone &= (row >= 2) & (row < EARLY_ROWS) & sudden & long_not_preferred(rows)
    where = gone & is_another_policy(rows)
    return Signal(where, words=lambda: {"first": first}, normal=is_near_best(reward))


EARLY_ROWS = 6
"""A break by the very first updates shows in these rows. There are too few of them to know the noise."""
GONE_SHARE = 0.8
"""Share of its range that the reward has lost in two rows, since the mean of the rows before."""


def is_another_policy(rows: Rows) -> Truths:
    """[N]: where entropy or length is far from its first value, or many tokens were clipped so far."""
    entropy, length = rows.latest(ENTROPY, most_times_first), rows.latest(LENGTH, most_times_first)
    # A series that is not logged is NaN, and every comparison with it is false.
    return (entropy > ENTROPY_TIMES) | (length > LENGTH_TIMES) | clips_much_so_far(rows)


LENGTH_TIMES = 1.3


def clips_much_so_far(rows: Rows) -> Truths:
    """[N]: where a row so far clipped many tokens."""
    return rows.latest(CLIPPED, highest) > CLIPPED_FRACTION


def most_times_first(values: Values) -> Values:
    """[N]: how many times the first value, or what part of it, the most deviant of the last three values is. A policy
    that breaks may pass through long rambling and end in silence, which a mean would hide."""
    times = np.maximum(np.abs(values), 1e-9) / np.maximum(np.abs(values[:1]), 1e-9)
    return trailing_highest(np.maximum(times, 1 / times), BREAK_ROWS)


def leaps_away(rows: Rows, kl: Values) -> Signal:
    """The KL is far above that of the first row within the first rows, and stays there."""
    far = (kl - kl[0] > LEAP_NATS) & (np.arange(len(kl)) > 0)
    where = held(far, BREAK_ROWS) & (np.arange(len(kl)) < EARLY_ROWS + BREAK_ROWS - 1)
    return Signal(where, words=lambda: {"first": np.full(len(kl), kl[0])}, normal=has_risen(rows) & ~far)


LEAP_NATS = 1.0
"""Nats per token that the policy is away from where it began after a few updates. Language models that learn stay below
0.3 for their whole run."""
CHECKS = (
    Check(
        series=(DISPLACEMENT, CORRECT),
        signal=lowers_likelihood_at_once,
        rows_normal=ROWS_TO_FORGET,
        message="One update suddenly lowered the likelihood of its own correct rollouts by {taken:.2g} nats per token.",
        look_at=(DISPLACEMENT, REWARD),
    ),
    Check(
        series=(LOG_RATIO, LENGTH),
        signal=ratio_falls_at_once,
        rows_normal=ROWS_TO_FORGET,
        message="The importance ratio suddenly fell to {ratio:.2f} per sampled token within one rollout batch.",
        look_at=(LOG_RATIO, REWARD),
    ),
    Check(
        series=(CLIPPED, REWARD),
        signal=clips_much,
        rows_normal=ROWS_TO_FORGET,
        message="An update clipped {clip/fraction:.0%} of the tokens. No earlier update clipped more than "
        "{most before:.1%}.",
        better=((LOG_RATIO,),),
    ),
    Check(
        series=(REWARD,),
        signal=breaks_at_first,
        message="The first updates broke the policy: the reward was {first:.3g} at first and is now {reward/mean:.3g}.",
        look_at=(REWARD, ENTROPY, LENGTH),
    ),
    Check(
        series=(REWARD, ENTROPY),
        signal=breaks_at_once,
        message="The policy broke within a few rows: the reward fell from {reward before:.3g} to {reward/mean:.3g}, "
        "while entropy changed from {entropy before:.2g} to {entropy/mean:.2g} nats.",
        look_at=(REWARD, ENTROPY, CLIPPED),
    ),
    Check(
        series=(KL,),
        signal=leaps_away,
        message="The first updates moved the policy far away: the KL to the reference is {kl/reference:.2g} nats per "
        "token, up from {first:.2g} in the first row.",
        rows_normal=ROWS_TO_FORGET,
        look_at=(KL, REWARD),
    ),
)


RULE = Rule(
    title="step too large",
    needs=((DISPLACEMENT, CORRECT), (LOG_RATIO, LENGTH), (CLIPPED, REWARD)),
    checks=tuple(replace(check, signal=from_first_update(check.signal)) for check in CHECKS),
    # With TRN001, correct rollouts are the short ones, and lose likelihood because long ones gain it. With SMP001, the
    # samples are another policy's.
    suppressed_by=("TRN001", "SMP001"),
    # In a policy that decays slowly, a jump is the end of that decay.
    suppressed_by_earlier=("LLD001", "LLD002", "LLD003", "ISD001", "ENT001"),
    remedy=SMALLER_STEPS,
)
