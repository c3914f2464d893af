"""Reward functions: which series they are, whether one that is not about form has risen, and whether cut rollouts
explain that none has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import combinations

import numpy as np

from holdfast.diagnose.log import Log, Series, has
from holdfast.diagnose.log.trailing import Truths, Values, spread
from holdfast.diagnose.rules._parts import REWARD, TRUNCATED
from holdfast.diagnose.rules._parts.reward import has_risen, is_low
from holdfast.diagnose.rules.rule import Rows, rows_of


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
