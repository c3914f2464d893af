"""What the reward and its functions do, and what advantages prefer: conditions that most rules need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations

import numpy as np

from holdfast.diagnose.log import Log, Series, has
from holdfast.diagnose.log.collapse import TREND_ERRORS, curve_of
from holdfast.diagnose.log.smoothed import reward_range
from holdfast.diagnose.log.trailing import Truths, Values, highest, lowest, mean_at_first, spread, trailing_mean, trend
from holdfast.diagnose.rules._parts import ADVANTAGE, REWARD, TRUNCATED
from holdfast.diagnose.rules.rule import Rows, rows_of


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


# ---- reward functions


def functions_of(log: Log) -> tuple[str, ...]:
    """The series of the single reward functions, as TRL logs them; or else those that add up to the reward."""
    named = tuple(sorted(name for name in log.series if FUNCTION.fullmatch(name)))
    if named or (reward := log.series.get(REWARD)) is None:
        return named
    able = ((name, one) for name, one in log.series.items() if name != REWARD and len(one) == len(reward))
    return _summands(reward, tuple(able))


FUNCTION = re.compile(r"rewards/.+/mean")


@lru_cache(maxsize=8)
def _summands(reward: Series, candidates: tuple[tuple[str, Series], ...]) -> tuple[str, ...]:
    """The two or three series of which the reward is the sum in every row, each times a constant weight above 0; empty
    if there are none. Their names do not matter."""
    total = reward.values
    if len(total) < MIN_SUM_ROWS or not np.isfinite(total).all() or total.min() == total.max():
        return ()
    error = SUM_ERROR * float(np.abs(total).max())
    able = {
        name: one.values
        for name, one in candidates
        if np.array_equal(one.steps, reward.steps) and np.isfinite(one.values).all() and np.ptp(one.values) > error
    }
    some = spread(len(total), MAX_ROWS)
    few = {name: values[some] for name, values in able.items()}
    names = [name for name in few if _misses(few[name][None], total[some]) > error]  # else the reward once more
    for count in range(2, MAX_PARTS + 1):
        for parts in _closest(few, names[:MAX_CANDIDATES], total[some], count):
            shown = np.array([few[name] for name in parts])
            weights = _weights(shown, total[some])
            matter = weights * np.ptp(shown, axis=1) > MIN_PART * np.ptp(total)
            told = len(np.unique(shown, axis=1).T) >= MIN_SUM_ROWS
            if matter.all() and told and np.abs(weights @ [able[name] for name in parts] - total).max() <= error:
                return parts
    return ()


def _weights(parts: Values, total: Values) -> Values:
    """[P]: the weights of parts [P, N] in the sum [N], by least squares."""
    return np.asarray(np.linalg.lstsq(parts.T, total, rcond=None)[0])


def _misses(parts: Values, total: Values) -> float:
    """How far the weighted sum of parts [P, N] is from the total [N] at most."""
    return float(np.abs(_weights(parts, total) @ parts - total).max())


def _closest(able: Mapping[str, Values], names: Sequence[str], total: Values, count: int) -> list[tuple[str, ...]]:
    """Of all sets of `count` of the named series [N], the few whose weighted sum is closest to the total [N]."""
    sets = list(combinations(names, count))
    if not sets:
        return []
    unit = np.array([able[name] / max(float(np.linalg.norm(able[name])), 1e-300) for name in names])
    gram, towards, at = unit @ unit.T, unit @ total, np.array(list(combinations(range(len(names)), count)))
    of_sets = gram[at[:, :, None], at[:, None, :]] + RIDGE * np.eye(count)
    explained = (towards[at] * np.linalg.solve(of_sets, towards[at][:, :, None])[:, :, 0]).sum(axis=1)
    return [sets[k] for k in np.argsort(-explained, kind="stable")[:TRIED]]


MAX_ROWS = 1000
"""Rows by which the weights are found; all rows must then fit."""
RIDGE = 1e-10
"""So that series that are multiples of one another have weights too."""
TRIED = 5
"""Sets of series that are looked at row by row."""
MIN_PART = 0.02
"""Of the range of the reward: a part that moves less is not told from rounding."""
MIN_SUM_ROWS = 10
"""Rows in which parts must add up, and all of them; and rows of different values, which constant weights must fit."""
MAX_PARTS = 3
MAX_CANDIDATES = 30
SUM_ERROR = 2e-4
"""Of the sum of rounded parts, as a share of the largest reward."""


def has_functions(log: Log) -> bool:
    """Whether a log has two reward functions or more: one alone is the reward."""
    return len(functions_of(log)) > 1


def plain_name(name: str) -> str:
    """The name of a reward function without what TRL puts around it."""
    return name.removeprefix("rewards/").removesuffix("/mean")


def more_is_earned(rows: Rows) -> Truths:
    """[N]: where the reward has risen. Where its functions are logged, one that is not named after form has: a format
    can be learned in a text that is cut."""
    return np.asarray(np.any([has_risen(rows, name) for name in _of_content(rows.log) or [REWARD]], axis=0))


def _of_content(log: Log) -> list[str]:
    """The reward functions that are not named after form, where there are several functions."""
    functions = functions_of(log)
    return [name for name in functions if not FORM.search(name)] if len(functions) > 1 else []


FORM = re.compile(
    r"format|tag|xml|json|len(gth)?(?![a-z])|short|concise|brevity|steps?(?![a-z])|style|language|repet|penalty|count",
    re.IGNORECASE,
)
"""Names of functions that reward the form of a rollout. Such a function may fall while the answers improve, so its fall
is a note."""


def is_earned_by_form(log: Log) -> bool:
    """Whether the rollouts earn nothing but what functions of form give: none of the others has risen. A log without
    the mean reward, whose curve is that of evaluations, does not say so."""
    return bool(_of_content(log)) and has(log, REWARD) and not more_is_earned(rows_of(log, (REWARD,)))[-1]


# ---- whether rollouts are cut, so that nothing else has to explain equal rewards


def without_room(rows: Rows) -> Truths:
    """[N]: where as good as every rollout is truncated."""
    return rows.latest(TRUNCATED) >= ALL_TRUNCATED


ALL_TRUNCATED = 0.95
"""As good as all of the rollouts: a reward of 0 then needs no other explanation."""


def is_cut_off(rows: Rows) -> Truths:
    """[N]: where TRN001 says why rewards are equal: as good as every rollout is truncated, and they earn little."""
    return without_room(rows) & rows.where(REWARD, partial(is_low, window=ROWS)) & ~more_is_earned(rows)


ROWS = 5
MUCH_FRACTION = 0.5
"""Half of the rollouts. Reasoning runs often begin with a tenth to a third, and learn to be shorter."""
