"""Whether rollouts are cut, so that nothing else has to explain equal rewards."""

from __future__ import annotations

from functools import partial

from holdfast.diagnose.log.trailing import Truths
from holdfast.diagnose.rules._parts.functions import more_is_earned
from holdfast.diagnose.rules._parts.reward import is_low
from holdfast.diagnose.rules._parts.series import REWARD, TRUNCATED
from holdfast.diagnose.rules.rule import Rows


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
