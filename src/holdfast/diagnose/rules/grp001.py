"""GRP001: all rollouts of a group have the same reward, since the start or from one row on.

Meaning: From the start of the run, or from some step on, all rollouts of almost every group have the same reward.

Impact: Group-relative advantages are then 0, so the policy learns nothing. From the start: the task is too hard or too
easy, or the reward function does not distinguish rollouts. From one step on, with unchanged entropy and length: the
reward function broke. If the policy had failed, entropy or length would change too.

Limitations: Groups that become equal as the policy learns, at a high reward, are only a note. A reward with a small
random part hides the problem, because no two rewards are equal. A short log gets only a note, because rewards in small
batches may be equal by chance. If the log has only the largest and smallest rewards, the rule needs all rewards to be
equal. It recognises a broken reward function only if the function fails for every rollout and the log has entropy or
length. If all rollouts are truncated, TRN001 reports that instead, and RWD002 if none answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log, finite, has
from holdfast.diagnose.log.collapse import MIN_FLAT_ROWS
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    clear_break_in,
    highest,
    last_where,
    lowest,
    rows_since,
    trailing_mean,
)
from holdfast.diagnose.rules._parts import MIXED, NORM, REWARD, TRUNCATED
from holdfast.diagnose.rules._parts.contrast import (
    BROKEN_ROWS,
    CONTRAST,
    MIXED_EVER,
    MIXED_NOW,
    break_of,
    is_unlikely,
    stretch_of,
)
from holdfast.diagnose.rules._parts.reward import (
    MUCH_FRACTION,
    has_risen,
    is_cut_off,
    is_down,
    is_low,
    is_near_best,
    is_solved,
    more_is_earned,
    shows_no_rise,
)
from holdfast.diagnose.rules.remedies import CHECK_REWARD, Remedy, advise
from holdfast.diagnose.rules.rule import Check, Ending, Hit, Left, Rows, Rule, Signal, falling, from_start


def becomes_constant(rows: Rows, reward: Values) -> Signal:
    """From one row on every rollout has the same low reward, for more rows than chance explains."""
    seen = break_of(rows)
    where = seen.suspected & is_unlikely(seen.stretch)
    then = last_where(where)
    half = (seen.level[then] + reward[then]) / 2
    return Signal(
        where,
        lambda: {REWARD: reward, "before": seen.level},
        lambda: {"since": rows.steps[seen.stretch.begins]},
        normal=~seen.stretch.flat & (trailing_mean(reward, BROKEN_ROWS) >= half),
        began=lambda row: int(seen.stretch.begins[row]),
    )


def compares_in_groups(log: Log) -> bool:
    """Whether advantages compare rollouts within their group."""
    return log.settings.get("loss.advantage") not in ("reinforce", "gae")


def never_differ(rows: Rows, *columns: Values, zero: bool, sure: bool) -> Signal:
    """Almost no group has had different rewards since the start.

    With `zero`, only rows up to which every reward was 0 count; without it, only the others. With `sure`, it takes
    enough rows to rule out chance; without it, the newest row decides.
    """
    share = CONTRAST[rows.names](*columns)
    smooth = trailing_mean(share, ROWS)
    never = (smooth <= MIXED_NOW) & (highest(smooth) <= MIXED_EVER)
    reward = rows.latest(REWARD)
    never &= ~falling(rows)  # then it is a consequence
    never &= ~is_cut_off(rows)
    never &= (highest(np.abs(np.nan_to_num(reward, nan=1.0))) == 0) == zero
    if sure:
        never &= are_enough(rows)
    else:
        never = np.full(len(never), never[-1])
    differs = highest(np.nan_to_num(reward, nan=-np.inf)) > lowest(np.nan_to_num(reward, nan=np.inf))
    alone = np.where(differs, BY_PROMPT, "")
    return Signal(
        never,
        lambda: rows.by_name | {REWARD: reward},
        lambda: {"equal": 1 - smooth, "alone": alone},
        normal=smooth > MIXED_EVER,
        began=from_start,
    )


def are_enough(rows: Rows) -> Truths:
    """[N]: where the rows so far have too many rollouts for chance to give all of a group the same reward."""
    span = rows.steps - rows.steps[0]
    enough: Truths = np.arange(len(span)) >= ROWS - 1
    return enough & (span >= FEW_ROLLOUTS_STEPS) if rows.log.host == "trl" else enough


ROWS = 5
FEW_ROLLOUTS_STEPS = 19
"""Steps that a log of TRL has to span. A row may be one group of four: if a twentieth of the rollouts is correct, five
such rows have no contrast in one run of three, and twenty in one of sixty."""
BY_PROMPT = (
    " The mean reward does vary, so either it depends on the prompt alone, or each question is always or never "
    "answered."
)


def loses_contrast(rows: Rows, *columns: Values, learned: bool) -> Signal:
    """Groups had different rewards, and for more rows than chance explains almost none has. With `learned`, only where
    all are correct, or the reward had risen before and is high; without it, only elsewhere. Where the reward is down,
    RWD001 says so.
    """
    share = CONTRAST[rows.names](*columns)
    smooth = trailing_mean(share, ROWS)
    few = share <= MIXED_NOW
    seen = stretch_of(few, rows_since(~few))
    where = is_unlikely(seen) & (seen.running >= LONG_ROWS) & (highest(smooth) > MIXED_EVER) & ~is_cut_off(rows)
    where &= rows.where(REWARD, np.isfinite) & ~is_down(rows)
    level = rows.latest(REWARD, lambda reward: trailing_mean(reward, ROWS))
    low = rows.where(REWARD, partial(is_low, window=ROWS))
    is_share = rows.where(REWARD, lambda reward: (lowest(reward) >= 0) & (highest(reward) <= 1))
    correct, incorrect = is_share & (level >= CORRECT_REWARD), is_share & (level <= 1 - CORRECT_REWARD)
    rose = has_risen(rows)[np.maximum(seen.begins - 1, 0)] & rows.where(REWARD, is_near_best) & ~low
    return Signal(
        where & ((correct | rose) == learned),
        lambda: rows.by_name | {REWARD: level},
        lambda: {
            "since": rows.steps[seen.begins],
            "are": np.select([correct, incorrect], ["are all correct", "are all incorrect"], "have the same reward"),
        },
        normal=smooth > MIXED_EVER,
        began=lambda row: int(seen.begins[row]),
    )


LONG_ROWS = 20
"""Rows that show how few groups have different rewards, or that none has any longer. A row may be one group."""
CORRECT_REWARD = 0.9
"""Mean reward from which on groups without contrast are all correct. They are all incorrect below 1 minus that."""


def seldom_differ(rows: Rows, *columns: Values, teaches: bool) -> Signal:
    """Few groups have had different rewards since the start, though more than almost none. Without `teaches`,
    where there is much to learn and the reward has not risen; with it, elsewhere."""
    share = CONTRAST[rows.names](*columns)
    smooth, row = trailing_mean(share, LONG_ROWS), np.arange(len(share))
    so_far = np.cumsum(share) / (row + 1)
    where = (so_far <= MIXED_EVER) & (smooth > MIXED_NOW) & (row >= LONG_ROWS - 1)
    reward = rows.latest(REWARD)
    cut = rows.latest(TRUNCATED, lambda truncated: trailing_mean(truncated, LONG_ROWS)) >= MUCH_FRACTION
    cut &= ~more_is_earned(rows)  # TRN001 says why
    where &= (is_low(reward, LONG_ROWS) & shows_no_rise(rows) & ~cut & (row >= MIN_FLAT_ROWS - 1)) != teaches
    return Signal(
        where & ~falling(rows),
        lambda: {MIXED: smooth, REWARD: reward},
        lambda: {"equal": 1 - smooth},
        normal=smooth > MIXED_EVER,
        began=from_start,
    )


def equal_in_most(rows: Rows, *columns: Values) -> Signal:
    """In half of the groups or more all rollouts have the same reward by now. The reward has not risen, and is no share
    that leaves little to gain."""
    share = CONTRAST[rows.names](*columns)
    smooth = trailing_mean(share, LONG_ROWS)
    risen = has_risen(rows)
    top = np.where(highest(level := rows.latest(REWARD, partial(trailing_mean, window=LONG_ROWS))) > 1, np.inf, 1.0)
    risen |= (level > (1 - ROOM_SHARE) * top) & rows.where(REWARD, lambda reward: lowest(reward) >= 0)
    where = (smooth <= HALF) & ~risen & (np.arange(len(share)) >= MIN_FLAT_ROWS - 1)
    return Signal(
        where,
        lambda: rows.by_name | {REWARD: rows.latest(REWARD)},
        lambda: {"equal": 1 - smooth},
        normal=risen | (smooth > HALF),
        began=lambda row: clear_break_in(share, row),
    )


ROOM_SHARE = 0.25
"""Share of the highest possible reward that is left to gain, if much is."""
HALF = 0.5
"""Share of the groups with different rewards below which most rollouts teach nothing."""


def stands_still(rows: Rows, reward: Values, *, zero: bool, measured: bool) -> Signal:
    """The mean reward is the same in every row, so rewards are equal. With `zero`, only where it is 0; without it, only
    elsewhere, and not where it is as high as it can be. With `measured`, only where the gradient is exactly 0, which
    proves it; without it, only where no gradient is logged."""
    same = (np.cumsum(reward != reward[0]) == 0) & (not rows.log.series[REWARD].rounded) & ~is_cut_off(rows)
    known = np.cumsum(~rows.is_zero(NORM)) == 0 if measured else np.isnan(rows.latest(NORM))
    enough = are_enough(rows) if measured else np.arange(len(reward)) >= LONG_ROWS - 1
    return Signal(
        same & known & enough & ((reward == 0) == zero) & ~is_solved(rows),
        lambda: {REWARD: reward, NORM: rows.latest(NORM)},
        normal=~same,
        began=from_start,
    )


def is_seldom_paid(rows: Rows, reward: Values) -> Signal:
    """The mean reward is exactly 0 in most rows, so every rollout of those has reward 0; it has not risen."""
    paid, row = np.cumsum(reward != 0) / (np.arange(len(reward)) + 1), np.arange(len(reward))
    where = (paid <= MIXED_EVER) & (lowest(reward) >= 0) & (highest(reward) > 0) & (row >= MIN_FLAT_ROWS - 1)
    return Signal(
        where & shows_no_rise(rows) & ~falling(rows),
        lambda: {REWARD: trailing_mean(reward, LONG_ROWS), PAID: paid},
        lambda: {"unpaid": 1 - paid},
        normal=paid > MIXED_EVER,
        began=from_start,
    )


PAID = "share of rows with a reward"


def for_contrast(log: Log, hit: Hit, before: Sequence[Finding]) -> Remedy:
    """All incorrect and all correct groups need opposite remedies. A mean reward from 0 to 1 tells them apart."""
    reward = hit.evidence.get(REWARD, np.nan)
    if hit.remedy is not None or not 0 <= reward <= 1:
        return hit.remedy or RULE.remedy
    return EASIER if reward <= 1 - CORRECT_REWARD else HARDER if reward >= CORRECT_REWARD else RULE.remedy


EASIER = advise(
    "Use easier questions, a [denser reward] or a [better policy] to start from, and leave out questions that no "
    "rollout answers. A larger [group size] finds rare successes. Check what the reward returns."
)
HARDER = advise(
    "Use harder questions, and leave out those that every rollout answers. Or stop here: the task is learned."
)
REPAIR_REWARD: Remedy = advise(
    "Check the services and files that the reward function needs, and let it raise an error instead of returning 0. "
    "Then resume from the last checkpoint: its weights are intact.",
    instead={
        "holdfast": "Check what the reward depends on, and read [rollouts] of that step. Then `holdfast resume` the "
        "run: its weights are intact."
    },
)


def is_left(hit: Hit) -> Left | None:
    """Nothing where hardly any group has different rewards; little where most rows earn nothing."""
    if PAID in hit.evidence:
        return "little"
    return "nothing" if hit.evidence.get(MIXED, 0.0) <= MIXED_NOW else None


def contrast_is_lost(log: Log, step: int) -> bool:
    """Whether hardly any group has had different rewards since a step; not where contrasts were rare all along."""
    rewards = finite(log.series[REWARD]).steps if has(log, REWARD) else log.steps
    if (rewards < step).mean() < ALL_ALONG_SHARE:
        return False
    if not has(log, MIXED):
        return True
    mixed = finite(log.series[MIXED])
    return bool(mixed.values[mixed.steps >= step].mean() <= MIXED_NOW)


ALL_ALONG_SHARE = 0.1
"""Share of a run before the step, below which it was so all along."""

LATE_CHECKS = (
    *(
        Check(
            series=names,
            signal=partial(loses_contrast, learned=learned),
            message="Since step {since}, the rollouts of almost every group {are}, so no advantage is left to learn "
            "from.",
            better=tuple(CONTRAST)[:rank],
            look_at=(*names, REWARD),
            level="note" if learned else "finding",
        )
        for learned in (False, True)
        for rank, names in enumerate(CONTRAST)
    ),
    *(
        Check(
            series=(MIXED,),
            signal=partial(seldom_differ, teaches=teaches),
            message="In {equal:.0%} of the groups all rollouts have the same reward, so few rollouts teach anything"
            + ("." if teaches else ", and the reward has not risen since the log began."),
            look_at=(MIXED, REWARD),
            level="note" if teaches else "finding",
        )
        for teaches in (False, True)
    ),
)
"""Contrast that is lost late, or that was rare from the start."""
REWARD_CHECKS = (
    *(
        Check(
            series=(REWARD,),
            signal=partial(stands_still, zero=zero, measured=measured),
            message=(
                "Every rollout has had reward 0 since the log began"
                if zero
                else "The mean reward has been exactly {reward/mean:.3g} since the log began"
            )
            + (", and the gradient is exactly 0." if measured else "."),
            better=tuple(CONTRAST),
            remedy=CHECK_REWARD,
            level="finding" if measured else "reason",
        )
        for zero in (True, False)
        for measured in (True, False)
    ),
    Check(
        series=(REWARD,),
        signal=is_seldom_paid,
        message="In {unpaid:.0%} of the rows every rollout has had reward 0, so few rollouts teach anything, and the "
        "reward has not risen since the log began.",
        better=tuple(CONTRAST),
        remedy=EASIER,
        level="reason",
    ),
    *(
        Check(
            series=names,
            signal=equal_in_most,
            message="In {equal:.0%} of the groups all rollouts have the same reward, so these teach nothing.",
            better=tuple(CONTRAST)[:rank],
            look_at=(*names, REWARD),
            level="reason",
        )
        for rank, names in enumerate(CONTRAST)
    ),
)
"""What the mean reward alone shows; and a lack of contrast that is no fault, but explains a reward that stays flat."""


RULE = Rule(
    title="rewards equal within groups",
    needs=tuple(CONTRAST),
    applies=compares_in_groups,
    checks=(
        Check(
            series=(REWARD,),
            signal=becomes_constant,
            rows_normal=1,  # a function that rewards again works
            message="The reward function broke: since step {since}, every rollout has reward {reward/mean:.3g}. The "
            "mean was {before:.3g} before, and the rollouts themselves did not change.",
            remedy=REPAIR_REWARD,
            look_at=(REWARD, MIXED),
        ),
        # For each kind of evidence: findings, then notes for logs that are too short for one.
        *(
            Check(
                series=names,
                signal=partial(never_differ, zero=zero, sure=sure),
                message=(
                    "Every rollout has had reward 0 since the log began."
                    if zero
                    else "In {equal:.0%} of the groups all rollouts have the same reward, so their advantages are "
                    "0.{alone}"
                )
                + ("" if sure else " A longer log would show whether this is chance."),
                better=tuple(CONTRAST)[:rank],
                remedy=CHECK_REWARD if zero else None,
                level="finding" if sure else "note",
            )
            for sure in (True, False)
            for rank, names in enumerate(CONTRAST)
            for zero in (True, False)
        ),
        *LATE_CHECKS,
        *REWARD_CHECKS,
    ),
    remedy_in=for_contrast,
    kind="logged cause",
    remedy=advise(
        "Raise the [group size], use easier or harder questions, or a [denser reward]. Check what the reward returns.",
        also={"holdfast": "Or start from a [better policy]."},
    ),
    leaves=is_left,
    looks_like_learning=True,
    ending=Ending(
        fact="no contrast since",
        words="step {step:.0f}, from which on no group has different rewards",
        is_final=contrast_is_lost,
    ),
)
