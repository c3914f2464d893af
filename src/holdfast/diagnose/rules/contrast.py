"""Whether rewards differ within groups, and since when they do not: what GRP001, RWD001 and others ask of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log.collapse import reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    delayed,
    highest,
    last_where,
    lowest,
    noise,
    rows_since,
    trailing_mean,
)
from holdfast.diagnose.rules.rule import Rows, Signal, is_low
from holdfast.diagnose.rules.truncation import more_is_earned

Rank = NDArray[np.int64]

REWARD, MIXED = "reward/mean", "rollout/mixed_group_fraction"
ENTROPY, LENGTH, TRUNCATED = "entropy/mean", "rollout/length", "rollout/truncated_fraction"
ANSWERED = "rollout/answered_fraction"

CONTRAST: Mapping[tuple[str, ...], Callable[..., Values]] = {
    (MIXED,): lambda mixed: mixed,
    ("reward/group_std",): lambda deviation: (deviation > 0).astype(float),
    ("reward/std",): lambda deviation: (deviation > 0).astype(float),
    ("reward/max", "reward/min"): lambda largest, smallest: (largest > smallest).astype(float),
}
"""Series that show whether rewards differ, the best first -> the share of groups with different rewards, or 1 where any
rewards differ and 0 where none do."""

ROWS = 5
MIXED_NOW, MIXED_EVER = 0.05, 0.2
"""Shares of the groups with different rewards: the latest mean, and the highest so far. Groups that are all correct at
the end of learning were mixed before."""
ALL_TRUNCATED, NONE_ANSWERED = 0.95, 0.05
"""Shares of the rollouts from which on, and up to which, a reward of 0 needs no other explanation."""
BROKEN_ROWS = 3
BROKEN_LOST_SHARE = 0.5
"""Share of the range that the reward loses when it becomes constant."""
BEFORE_LOST_SHARE = 0.4
"""Share of the range that it may have lost before. A policy that decays loses more, step by step."""
ROWS_TO_DECIDE = 8
"""Rows without contrast after which a break is either found or ruled out."""
CHANCE = 1e-2
"""Probability of so many consecutive rows without contrast, given how common they were before, at any row so far."""
SAME_TEXT_SHARE, SAME_TEXT_ERRORS = 0.3, 4.0
"""Change of entropy and length, as a share or in standard deviations, within which the rollouts are as before."""


def contrast_of(rows: Rows) -> Values:
    """[N]: the share of groups with different rewards, or 1 and 0, by the best series so far; NaN without one."""
    result = np.full(len(rows.steps), np.nan)
    for names, share in CONTRAST.items():
        columns = [rows.latest(name) for name in names]
        result = np.where(np.isnan(result) & ~np.isnan(columns).any(0), share(*columns), result)
    return result


@dataclass(frozen=True, slots=True)
class Stretch:
    """For each row the stretch of rows without contrast that ends there, [N] each."""

    flat: Truths
    """Whether the row has no contrast."""
    running: Rank
    """Rows in the stretch; 0 where the row has contrast."""
    begins: Rank
    """The first of them."""


def stretch_of(flat: Truths, running: Rank) -> Stretch:
    """The stretches of `flat` rows, from the number of rows in succession."""
    running = np.where(flat, running, 0)
    return Stretch(flat, running, np.arange(len(flat)) - np.maximum(running, 1) + 1)


@dataclass(frozen=True, slots=True)
class Break:
    """Rows at which every rollout has the same low reward, [N] each."""

    stretch: Stretch
    suspected: Truths
    """The reward was higher before these rows, and the rollouts did not change."""
    level: Values
    """The mean reward before."""


def break_of(rows: Rows) -> Break:
    """Where the reward becomes constant, at a low value, while the rollouts are as before."""
    (reward,) = rows.columns
    contrast = contrast_of(rows)
    flat = (contrast == 0) | (np.isnan(contrast) & (reward == 0))
    goes_on = flat & delayed(flat, 1) & (reward == delayed(reward, 1)) & (np.arange(len(flat)) > 0)
    stretch = stretch_of(flat, rows_since(~goes_on) + 1)
    begins = stretch.begins
    before = np.maximum(begins - 2, 0)  # a row may average over steps from before and after the break
    mean = trailing_mean(reward, ROWS)
    peak, level = highest(mean)[before], mean[before]
    height = reward_range(peak, np.minimum(lowest(reward)[before], reward))
    low = (level - reward >= BROKEN_LOST_SHARE * height) & (peak - level <= BEFORE_LOST_SHARE * height)
    suspected = flat & low & (begins >= ROWS) & same_text(rows, begins, before) & ~without_answers(rows)[begins]
    return Break(stretch, suspected, level)


def becomes_constant(rows: Rows) -> Signal:
    """From one row on every rollout has the same low reward, for more rows than chance explains."""
    seen = break_of(rows)
    where = seen.suspected & is_unlikely(seen.stretch)
    (reward,) = rows.columns
    then = last_where(where)
    half = (seen.level[then] + reward[then]) / 2
    return Signal(
        where,
        lambda: {REWARD: reward, "before": seen.level},
        lambda: {"since": rows.steps[seen.stretch.begins]},
        normal=~seen.stretch.flat & (trailing_mean(reward, BROKEN_ROWS) >= half),
        began=lambda row: int(seen.stretch.begins[row]),
    )


def is_unlikely(seen: Stretch) -> Truths:
    """[N]: where so many consecutive rows without contrast are unlikely by chance."""
    earlier = np.maximum(seen.begins - 1, 0)
    usual = (np.cumsum(seen.flat)[earlier] + 0.5) / (seen.begins + 1)
    longest = np.maximum.accumulate(seen.running)[earlier]
    return (seen.begins * usual**seen.running <= CHANCE) & (seen.running >= 2 * longest + BROKEN_ROWS)


def may_be_broken(rows: Rows) -> Truths:
    """[N]: where GRP001 reports a broken reward function, or may still do so. RWD001 is silent there."""
    seen = break_of(rows)
    return seen.suspected & (is_unlikely(seen.stretch) | (seen.stretch.running <= ROWS_TO_DECIDE))


def without_answers(rows: Rows) -> Truths:
    """[N]: where no rollout comes to an answer, which TRN001 or RWD002 reports."""
    return without_room(rows) | (rows.latest(ANSWERED) <= NONE_ANSWERED)


def without_room(rows: Rows) -> Truths:
    """[N]: where as good as every rollout is truncated."""
    return rows.latest(TRUNCATED) >= ALL_TRUNCATED


def is_cut_off(rows: Rows) -> Truths:
    """[N]: where TRN001 says why rewards are equal: as good as every rollout is truncated, and they earn little."""
    return without_room(rows) & rows.where(REWARD, partial(is_low, window=ROWS)) & ~more_is_earned(rows)


def same_text(rows: Rows, begins: Rank, before: Rank) -> Truths:
    """[N]: where entropy and length did not change when the reward became constant, as far as one of them is logged."""
    same, known = np.ones(len(begins), bool), np.zeros(len(begins), bool)
    for name in (ENTROPY, LENGTH):
        values = rows.latest(name)
        usual, spread = trailing_mean(values, ROWS)[before], noise(values, ROWS)[before]
        change = np.abs(values[begins] - usual)
        same &= ~(change > np.fmax(SAME_TEXT_SHARE * np.abs(usual), SAME_TEXT_ERRORS * spread))
        known |= ~np.isnan(change)
    return same & known
