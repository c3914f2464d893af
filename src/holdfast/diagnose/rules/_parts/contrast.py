"""Whether rewards differ within groups, and since when they do not: what GRP001, RWD001 and others ask of the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log.smoothed import reward_range
from holdfast.diagnose.log.trailing import Truths, Values, delayed, highest, lowest, noise, rows_since, trailing_mean
from holdfast.diagnose.rules._parts import ANSWERED, ENTROPY, LENGTH, MIXED
from holdfast.diagnose.rules._parts.reward import without_room
from holdfast.diagnose.rules.rule import Rows

Rank = NDArray[np.int64]


def contrast_of(rows: Rows) -> Values:
    """[N]: the share of groups with different rewards, or 1 and 0, by the best series so far; NaN without one."""
    result = np.full(len(rows.steps), np.nan)
    for names, share in CONTRAST.items():
        columns = [rows.latest(name) for name in names]
        result = np.where(np.isnan(result) & ~np.isnan(columns).any(0), share(*columns), result)
    return result


CONTRAST: Mapping[tuple[str, ...], Callable[..., Values]] = {
    (MIXED,): lambda mixed: mixed,
    ("reward/group_std",): lambda deviation: (deviation > 0).astype(float),
    ("reward/std",): lambda deviation: (deviation > 0).astype(float),
    ("reward/max", "reward/min"): lambda largest, smallest: (largest > smallest).astype(float),
}
"""Series that show whether rewards differ, the best first -> the share of groups with different rewards, or 1 where any
rewards differ and 0 where none do."""


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


ROWS = 5
BROKEN_LOST_SHARE = 0.5
"""Share of the range that the reward loses when it becomes constant."""
BEFORE_LOST_SHARE = 0.4
"""Share of the range that it may have lost before. A policy that decays loses more, step by step."""


def is_unlikely(seen: Stretch) -> Truths:
    """[N]: where so many consecutive rows without contrast are unlikely by chance."""
    earlier = np.maximum(seen.begins - 1, 0)
    usual = (np.cumsum(seen.flat)[earlier] + 0.5) / (seen.begins + 1)
    longest = np.maximum.accumulate(seen.running)[earlier]
    return (seen.begins * usual**seen.running <= CHANCE) & (seen.running >= 2 * longest + BROKEN_ROWS)


BROKEN_ROWS = 3
CHANCE = 1e-2
"""Probability of so many consecutive rows without contrast, given how common they were before, at any row so far."""


def without_answers(rows: Rows) -> Truths:
    """[N]: where no rollout comes to an answer, which TRN001 or RWD002 reports."""
    return without_room(rows) | (rows.latest(ANSWERED) <= NONE_ANSWERED)


NONE_ANSWERED = 0.05
"""Share of the rollouts up to which a reward of 0 needs no other explanation."""


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


SAME_TEXT_SHARE, SAME_TEXT_ERRORS = 0.3, 4.0
"""Change of entropy and length, as a share or in standard deviations, within which the rollouts are as before."""
MIXED_NOW, MIXED_EVER = 0.05, 0.2
"""Shares of the groups with different rewards: the latest mean, and the highest so far. Groups that are all correct at
the end of learning were mixed before."""
