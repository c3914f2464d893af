"""RWD003: a reward function falls, and the total reward hides it, because others rise or stay.

Meaning: One reward function falls and stays low, but the total reward does not show it: another function rises, or the
others are most of the total.

Impact: The policy earns an easy reward, such as one for format or length, and gives up what the other function
measures. If that is correctness, this is reward hacking, and the total reward hides it.

Limitations: The rule needs `rewards/<function>/mean` of two or more functions, or two or three metrics that add up to
the reward. It does not know which of them matters. If the falling function is named after form, such as format or
length, that is only a note. The rule cannot see a flaw inside one function, such as a grader that can be fooled.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnose.log.collapse import DROPPED_SHARE, MIN_FLAT_ROWS, curve_of
from holdfast.diagnose.log.smoothed import LONG_WINDOW, reward_range
from holdfast.diagnose.log.trailing import (
    Truths,
    Values,
    break_in,
    held,
    highest,
    last_where,
    lowest,
    margin,
    trailing_lowest,
    trailing_mean,
    trend,
)
from holdfast.diagnose.rules._parts import REWARD
from holdfast.diagnose.rules._parts.reward import FORM, functions_of, has_functions, has_risen, may_lose, plain_name
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def trade_places(rows: Rows, reward: Values, *, form: bool) -> Signal | None:
    """A function has fallen and the reward has not: another function has risen since the first was at its best, or
    others are so much of the reward that it has lost less.

    With `form`, only functions that are named after form may be the falling one; without it, only the others.
    """
    known = {name: column for name in functions_of(rows.log) if not np.isnan(column := rows.latest(name)).any()}
    names, here = list(known), np.arange(len(reward))
    if len(names) < 2 or not any(bool(FORM.search(name)) == form for name in names):
        return None
    smooth = np.array([trailing_mean(column, ROWS) for column in known.values()])
    # One odd row makes no low that another function has risen from.
    odd = np.array([trailing_lowest(column, ROWS) for column in known.values()])
    rest = smooth + (smooth - odd) / (ROWS - 1)
    noise = np.array([margin(column, ROWS, RISE_ERRORS) for column in known.values()])
    mean_reward, total = trailing_mean(reward, ROWS), curve_of(reward, rows.steps)

    where, down = np.zeros(len(reward), bool), np.zeros(len(reward), bool)
    loser, winner, best = (np.zeros(len(reward), np.int64) for _ in range(3))
    for row, name in enumerate(names):
        if bool(FORM.search(name)) != form:
            continue
        curve, peak = curve_of(known[name], rows.steps), last_where(smooth[row] >= highest(smooth[row]))
        holds = mean_reward - mean_reward[peak] >= -may_lose(reward)
        gains = smooth - rest[:, peak]  # [functions, rows]: since this function was best
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
        plain = np.array([plain_name(name) for name in names])
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


ROWS = 5
HIDDEN_ROWS = 10
"""Rows after which a total reward that is to fall with a function has fallen, as `RWD001` sees in a mean of ten."""
RISE_ERRORS = 4.0
"""Standard errors by which another function has risen since then."""


def slips_behind(rows: Rows, reward: Values) -> Signal | None:
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
        lambda: {REWARD: trailing_mean(reward, ROWS)},
        lambda: {
            "falling": np.array([plain_name(name) for name in names])[which],
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
    return np.asarray(declines & (np.arange(len(values)) >= MIN_FLAT_ROWS - 1))


RULE = Rule(
    title="reward functions diverge",
    applies=has_functions,
    checks=(
        Check(
            series=(REWARD,),
            signal=partial(trade_places, form=False),
            message="The reward function {falling} fell from {before:.3g} to {now:.3g}{beside}. The total reward "
            "hides this: it changed from {reward before:.3g} to {reward/mean:.3g}.",
            min_rows=ROWS,
        ),
        Check(
            series=(REWARD,),
            signal=slips_behind,
            message="{falling} fell from {before:.3g} to {now:.3g}, while the other parts raised the total reward to "
            "{reward/mean:.3g}.",
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
    remedy=advise(
        "Change the [weights of the reward] so that the part that fell counts more. Or let the part that rose count "
        "only where the other one does. Read some [rollouts]."
    ),
)
