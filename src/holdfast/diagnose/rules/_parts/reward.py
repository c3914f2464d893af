"""What the reward does, and what advantages prefer: conditions that most rules need."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from holdfast.diagnose.log.collapse import TREND_ERRORS, curve_of
from holdfast.diagnose.log.smoothed import reward_range
from holdfast.diagnose.log.trailing import Truths, Values, highest, lowest, mean_at_first, trailing_mean, trend
from holdfast.diagnose.rules._parts import ADVANTAGE, REWARD
from holdfast.diagnose.rules.rule import Rows


def may_lose(reward: Values) -> Values:
    """[N]: how much a reward may lose and still count as holding."""
    return HOLDS_WITHIN_SHARE * (highest(reward) - lowest(reward))


HOLDS_WITHIN_SHARE = 0.1
"""Share of its range that a reward may lose and still count as holding."""


def long_not_preferred(rows: Rows) -> Truths:
    """[N]: where advantages do not prefer long rollouts, as far as the log shows."""
    advantage = rows.latest(ADVANTAGE, lambda values: trailing_mean(values, ADVANTAGE_ROWS))
    return ~(advantage > LONG_PREFERRED_ADVANTAGE)


ADVANTAGE_ROWS = 8
LONG_PREFERRED_ADVANTAGE = 0.03
"""Mean advantage per token. Above this, advantages prefer long rollouts. Correct rollouts then lose likelihood because
others gain it: a flaw of the reward, not lazy displacement. In recorded displacement collapses it was below 0.01."""


def is_near_best(reward: Values) -> Truths:
    """[N]: where the reward has lost little of its best, or has come back."""
    mean = trailing_mean(reward, BEST_ROWS)
    best = highest(mean)
    return best - mean <= BACK_SHARE * reward_range(best, lowest(reward))


BEST_ROWS, BACK_SHARE = 5, 0.2
"""The reward is near its best when the mean of five rows is within that share of the range of it."""


def did_no_harm(rows: Rows) -> Truths:
    """[N]: where the reward is near its best, so that what lasts no longer than a row has done no harm."""
    return rows.where(REWARD, is_near_best)


def has_risen(rows: Rows, name: str = REWARD) -> Truths:
    """[N]: where the reward, or another series, has risen since the log began, by more than noise and by a tenth of its
    range. Learning ends an alarm; a rise that only a long log can show does not."""
    return rows.where(name, lambda values: _risen(values.tobytes()))


@lru_cache(maxsize=16)
def _risen(series: bytes) -> Truths:
    """Several rules ask it of the same reward."""
    values = np.frombuffer(series)
    gain = np.maximum(trend(values)[0], trailing_mean(values, BEST_ROWS) - mean_at_first(values, BEST_ROWS))
    return curve_of(values).rose & (gain > LEARNED_SHARE * reward_range(highest(values), lowest(values)))


LEARNED_SHARE = 0.1
"""Share of its range that a reward has gained, if the policy learns."""


def is_low(reward: Values, window: int) -> Truths:
    """[N]: where the mean of the last rewards leaves much to learn."""
    return trailing_mean(reward, window) <= LOW_SHARE * np.maximum(highest(reward), 1.0)


LOW_SHARE = 0.5
"""Share of the highest possible reward up to which much is left to learn. That is 1, or the highest mean if it is
more."""


def shows_no_rise(rows: Rows) -> Truths:
    """[N]: where the reward has not risen, nothing suggests that it does, and a rise by a fifth of the highest possible
    reward would show. That is 1, or the highest mean if it is more."""

    def flat(reward: Values) -> Truths:
        change, error = trend(reward)
        visible = TREND_ERRORS * error < VISIBLE_SHARE * np.maximum(highest(reward), 1.0)
        return visible & (change < TREND_ERRORS / 2 * error)

    return rows.where(REWARD, flat) & ~has_risen(rows)


VISIBLE_SHARE = 0.2


def is_solved(rows: Rows) -> Truths:
    """[N]: where the reward is a share near 1, or a percentage near 100, so that little is left to gain."""

    def near_top(reward: Values) -> Truths:
        top = np.where(highest(reward) > 1, 100.0, 1.0)
        is_share = (lowest(reward) >= 0) & (highest(reward) <= top)
        return is_share & (trailing_mean(reward, BEST_ROWS) >= SOLVED * top)

    return rows.where(REWARD, near_top)


SOLVED = 0.9
"""A mean reward between 0 and 1 from which on there is little left to gain; of one between 0 and 100, 90."""


def is_down(rows: Rows) -> Truths:
    """[N]: where RWD001 says that the reward is down."""
    return rows.where(REWARD, lambda reward: curve_of(reward).down)


ROWS_TO_FORGET = 20
"""Rows after a single bad update, with the reward near its best, after which it did no harm."""
