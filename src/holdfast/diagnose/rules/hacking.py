"""Reward functions that diverge (RWD003): one falls, and the total reward hides it, because others rise or stay."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.collapse import DROPPED_SHARE, FEWEST_FLAT, LONG_WINDOW, curve_of, reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    held,
    highest,
    last_where,
    lowest,
    margin,
    trailing_mean,
    trend,
)
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, has_risen

REWARD = "reward/mean"
ROWS = 5
HOLDS_WITHIN_SHARE = 0.1
"""Share of its range that a reward may lose and still count as holding."""
HIDDEN_ROWS = 10
"""Rows after which a total reward that is to fall with a function has fallen, as `RWD001` sees in a mean of ten."""
RISE_ERRORS = 4.0
"""Standard errors by which another function has risen since then."""

FUNCTION = re.compile(r"rewards/.+/mean")
FORM = re.compile(
    r"format|tag|xml|json|len(gth)?(?![a-z])|short|concise|brevity|steps?(?![a-z])|style|language|repet|penalty|count",
    re.IGNORECASE,
)
"""Names of functions that reward the form of a rollout. Such a function may fall while the answers improve, so its fall
is a note."""


def functions_of(log: Log) -> tuple[str, ...]:
    """The series of the single reward functions, as TRL logs them; or else those that add up to the reward."""
    named = tuple(sorted(name for name in log.series if FUNCTION.fullmatch(name)))
    if named or (reward := log.series.get(REWARD)) is None:
        return named
    able = ((name, one) for name, one in log.series.items() if name != REWARD and len(one) == len(reward))
    return _summands(reward, tuple(able))


FEWEST_SUMS = 10
"""Rows in which parts must add up, and all of them."""
MOST_PARTS = 3
MOST_CANDIDATES = 30
SUM_ERROR = 2e-4
"""Of the sum of rounded parts, as a share of the largest reward."""


@lru_cache(maxsize=8)
def _summands(reward: Series, candidates: tuple[tuple[str, Series], ...]) -> tuple[str, ...]:
    """The two or three series of which the reward is the sum in every row; empty if there are none."""
    total = reward.values
    if len(total) < FEWEST_SUMS or not np.isfinite(total).all() or total.min() == total.max():
        return ()
    error = SUM_ERROR * float(np.abs(total).max())
    able = {
        name: one.values
        for name, one in candidates
        if np.array_equal(one.steps, reward.steps)
        and np.ptp(one.values) > error
        and np.abs(one.values - total).max() > error
    }
    names = list(able)[:MOST_CANDIDATES]
    for count in range(2, MOST_PARTS + 1):
        for parts in combinations(names, count):
            if abs(sum(able[name][-1] for name in parts) - total[-1]) > error:  # which leaves nearly all out
                continue
            if np.abs(np.sum([able[name] for name in parts], axis=0) - total).max() <= error:
                return parts
    return ()


def has_functions(log: Log) -> bool:
    """Whether a log has two reward functions or more: one alone is the reward."""
    return len(functions_of(log)) > 1


def may_lose(reward: Values) -> Values:
    """[N]: how much a reward may lose and still count as holding."""
    return HOLDS_WITHIN_SHARE * (highest(reward) - lowest(reward))


def trade_places(rows: Rows, *, form: bool) -> Signal | None:
    """A function has fallen and the reward has not: another function has risen since the first was at its best, or
    others are so much of the reward that it has lost less.

    With `form`, only functions that are named after form may be the falling one; without it, only the others.
    """
    (reward,) = rows.columns
    known = {name: column for name in functions_of(rows.log) if not np.isnan(column := rows.latest(name)).any()}
    names, here = list(known), np.arange(len(reward))
    if len(names) < 2 or not any(bool(FORM.search(name)) == form for name in names):
        return None
    smooth = np.array([trailing_mean(column, ROWS) for column in known.values()])
    noise = np.array([margin(column, ROWS, RISE_ERRORS) for column in known.values()])
    mean_reward, total = trailing_mean(reward, ROWS), curve_of(reward, rows.steps)

    where, down = np.zeros(len(reward), bool), np.zeros(len(reward), bool)
    loser, winner, best = (np.zeros(len(reward), np.int64) for _ in range(3))
    for row, name in enumerate(names):
        if bool(FORM.search(name)) != form:
            continue
        curve, peak = curve_of(known[name], rows.steps), last_where(smooth[row] >= highest(smooth[row]))
        holds = mean_reward - mean_reward[peak] >= -may_lose(reward)
        gains = smooth - smooth[:, peak]  # [functions, rows]: since this function was best
        gains = np.where(gains > noise, gains, 0.0)
        rises = gains.any(axis=0)
        hidden = held(curve.fallen & ~holds & ~total.falling, HIDDEN_ROWS)
        trades = ((curve.fallen & holds & rises) | hidden) & ~where
        loser[trades], best[trades] = row, peak[trades]
        winner[trades] = np.where(rises, gains.argmax(axis=0), row)[trades]
        where |= trades
        down |= curve.falling & ~total.falling

    def evidence() -> dict[str, Values]:
        named = [np.where((loser == row) | (winner == row), smooth[row], np.nan) for row in range(len(names))]
        return {REWARD: mean_reward} | dict(zip(names, named, strict=True))

    def words() -> dict[str, NDArray[np.generic]]:
        plain = np.array([_plain(name) for name in names])
        return {
            "falling": plain[loser],
            "beside": np.where(winner == loser, "", [f" while {name} rose" for name in plain[winner]]),
            "now": smooth[loser, here],
            "before": smooth[loser, best],
            "reward before": mean_reward[best],
        }

    def began(row: int) -> int:
        return break_in(known[names[loser[row]]], int(best[row]), row)

    return Signal(where, evidence, words, normal=~down, began=began)


def slips_behind(rows: Rows) -> Signal | None:
    """A function that is not named after form has declined by a fifth, though the reward has risen by another."""
    known = {name: column for name in functions_of(rows.log) if not np.isnan(column := rows.latest(name)).any()}
    names = [name for name in known if not FORM.search(name)]
    if len(known) < 2 or not names:
        return None
    smooth = np.array([trailing_mean(known[name], LONG_WINDOW) for name in names])
    risen, here = has_risen(rows), np.arange(len(rows.steps))
    slips = np.array([_declines(known[name], mean) for name, mean in zip(names, smooth, strict=True)])
    which = slips.argmax(axis=0)
    return Signal(
        slips.any(axis=0) & risen,
        lambda: {REWARD: trailing_mean(rows.columns[0], ROWS)},
        lambda: {
            "falling": np.array([_plain(name) for name in names])[which],
            "now": smooth[which, here],
            "before": np.array([highest(mean) for mean in smooth])[which, here],
        },
        normal=~risen | ~slips.any(axis=0),
        began=lambda row: break_in(known[names[which[row]]], int(smooth[which[row], : row + 1].argmax()), row),
    )


def _declines(values: Values, smooth: Values) -> Truths:
    """[N]: where the line through all values so far falls by a fifth of their range, and by far more than noise."""
    change, error = trend(values)
    range_so_far = reward_range(highest(smooth), lowest(values))
    declines = (-change > RISE_ERRORS * error) & (-change >= DROPPED_SHARE * range_so_far)
    return np.asarray(declines & (np.arange(len(values)) >= FEWEST_FLAT - 1))


def _plain(name: str) -> str:
    return name.removeprefix("rewards/").removesuffix("/mean")


RWD003 = Rule(
    code="RWD003",
    title="reward functions diverge",
    needs=((REWARD,),),
    applies=has_functions,
    checks=(
        Check(
            series=(REWARD,),
            signal=partial(trade_places, form=False),
            message="The reward function {falling} fell from {before:.3g} to {now:.3g}{beside}. The total "
            "reward hides this: it went from {reward before:.3g} to {reward/mean:.3g}.",
            min_rows=ROWS,
        ),
        Check(
            series=(REWARD,),
            signal=slips_behind,
            message="{falling} fell from {before:.3g} to {now:.3g}, while the total reward rose to {reward/mean:.3g} "
            "by its other parts.",
            min_rows=ROWS,
        ),
        Check(
            series=(REWARD,),
            signal=partial(trade_places, form=True),
            message="The reward function {falling} fell from {before:.3g} to {now:.3g}{beside}. Its name suggests "
            "that it rewards form, not correctness, so this may be what you want.",
            min_rows=ROWS,
            level="note",
        ),
    ),
    meaning="One reward function falls and stays low, but the total reward does not show it: another function rises, "
    "or the others are most of the total.",
    impact="The policy earns an easy reward, such as one for format or length, and gives up what the other function "
    "measures. If that is correctness, this is reward hacking, and the total reward hides it.",
    remedy=advise(
        "Give more weight to the part of the reward that fell ([weights of the reward]). Or let the part that rose "
        "count only where the other one does. Read some [rollouts]."
    ),
    limitations="The rule needs `rewards/<function>/mean` of two or more functions, or two or three series that add up "
    "to the reward, and does not know which of them matters. If the falling function is named after form, such as "
    "format or length, that is only a note. The rule cannot see a flaw inside one function, such as a grader that can "
    "be fooled.",
)
