"""Reward functions: which series they are, and whether one that is not about form has risen."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import combinations

import numpy as np

from holdfast.diagnose.log import Log, Series, has
from holdfast.diagnose.log.trailing import Truths
from holdfast.diagnose.rules._parts.reward import has_risen
from holdfast.diagnose.rules._parts.series import REWARD
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
    """The two or three series of which the reward is the sum in every row; empty if there are none."""
    total = reward.values
    if len(total) < MIN_SUM_ROWS or not np.isfinite(total).all() or total.min() == total.max():
        return ()
    error = SUM_ERROR * float(np.abs(total).max())
    able = {
        name: one.values
        for name, one in candidates
        if np.array_equal(one.steps, reward.steps)
        and np.ptp(one.values) > error
        and np.abs(one.values - total).max() > error
    }
    names = list(able)[:MAX_CANDIDATES]
    for count in range(2, MAX_PARTS + 1):
        for parts in combinations(names, count):
            if abs(sum(able[name][-1] for name in parts) - total[-1]) > error:  # which leaves nearly all out
                continue
            if np.abs(np.sum([able[name] for name in parts], axis=0) - total).max() <= error:
                return parts
    return ()


MIN_SUM_ROWS = 10
"""Rows in which parts must add up, and all of them."""
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
