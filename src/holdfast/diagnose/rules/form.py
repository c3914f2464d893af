"""Rollouts lose their format again and again (FMT001)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from holdfast.base.collapse import reward_range
from holdfast.base.trailing import Truths, Values, delayed, highest, lowest, rows_since, trailing_mean
from holdfast.diagnose.log import Log, has
from holdfast.diagnose.rules.hacking import functions_of
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

INVALID, REWARD = "rollout/invalid_fraction", "reward/mean"
FORMAT_NAMES = ("format", "tag", "xml", "json", "schema", "valid", "pars")
"""Parts of the names of functions that reward a format."""

SPIKE = 0.2
"""Share of rollouts that are wrong beyond the usual, or of the range of a format reward that is lost."""
ROLLOUTS = 8
"""Rollouts that a row is taken to be the mean of, for chance: few, because the log does not say how many."""
CHANCE = 0.5
"""Spikes that chance makes in all rows so far, at most (Chernoff's bound). Three or more are then unlikely."""
LONGEST = 10
"""Rows after which a spike is a state, and the next return to normal no sign of recurrence."""
FEW, MANY = 3, 4
"""Spikes from which on they recur, and from which on that is a finding if each of them costs reward."""
COST = 0.1
"""Share of its range that the reward loses in the spikes."""
OVER_INTERVALS = 3.0
"""After so many intervals without a spike, they are over."""


def format_series(log: Log) -> tuple[str, ...]:
    """The series that show whether rollouts have the right format."""
    functions = (name for name in functions_of(log) if any(part in name.lower() for part in FORMAT_NAMES))
    return (*((INVALID,) if has(log, INVALID) else ()), *functions)


def shows_format(log: Log) -> bool:
    """Whether the log has such a series, or could have ours."""
    return log.host == "holdfast" or bool(format_series(log))


@dataclass(frozen=True, slots=True)
class Spikes:
    """The spikes of one series, [N] each."""

    starts: Truths
    """A spike begins."""
    inside: Truths
    count: NDArray[np.int64]
    """Spikes so far."""
    interval: Values
    """Mean rows from spike to spike so far; NaN before the second."""


def spikes_of(rows: Rows, name: str) -> Spikes:
    """Short rows of many wrong rollouts, which chance does not explain."""
    values = rows.latest(name)
    if name == INVALID:
        wrong = values
    else:
        best = highest(trailing_mean(values, 5))
        wrong = np.maximum(best - values, 0.0) / np.maximum(reward_range(best, lowest(values)), 1e-12)
    wrong = np.clip(np.nan_to_num(wrong), 0.0, 1.0)
    index = np.arange(len(wrong))
    usual = delayed(np.cumsum(wrong) / (index + 1), 1)
    likely = np.clip(usual, 0.5 / ROLLOUTS, 1 - 0.5 / ROLLOUTS)
    share = np.clip(wrong, 1e-9, 1 - 1e-9)
    unlikely = ROLLOUTS * (share * np.log(share / likely) + (1 - share) * np.log((1 - share) / (1 - likely)))
    high = (wrong > usual + SPIKE) & (unlikely > np.log((index + 1) / CHANCE)) & (index >= LONGEST)
    # A spike ends with a row near the usual share; one that lasts is something else.
    calm = wrong < usual + SPIKE / 2
    since_high = rows_since(delayed(high, 1) & (index > 0))
    starts = high & (rows_since(calm) <= 1) & (since_high > 1)
    count = np.cumsum(starts, dtype=np.int64)
    first_at = int(np.argmax(starts)) if starts.any() else 0
    last_at = np.maximum.accumulate(np.where(starts, index, 0))
    with np.errstate(invalid="ignore", divide="ignore"):
        interval = np.where(count > 1, (last_at - first_at) / (count - 1), np.nan)
    return Spikes(starts, high, count, interval)


def recur(rows: Rows, *, costs: bool) -> Signal | None:
    """Spikes of wrong format recur. With `costs`, only where there are four and each costs reward."""
    (reward,) = rows.columns
    found = {name: spikes for name in format_series(rows.log) if (spikes := spikes_of(rows, name)).starts.any()}
    if not any(spikes.count[-1] >= FEW for spikes in found.values()):
        return None
    index, parts = np.arange(len(reward)), list(found.values())
    where = np.array([spikes.starts & (spikes.count >= (MANY if costs else FEW)) for spikes in parts])
    if costs:
        where &= np.array([costs_reward(reward, spikes) for spikes in parts])
    count, interval = np.array([spikes.count for spikes in parts]), np.array([spikes.interval for spikes in parts])
    most = np.where(where.any(axis=0), where.argmax(axis=0), count.argmax(axis=0))
    last = np.array([index - np.maximum.accumulate(np.where(spikes.starts, index, 0)) for spikes in parts])
    over = (count < FEW) | (last > OVER_INTERVALS * np.nan_to_num(interval, nan=np.inf))
    per_row = (rows.steps - rows.steps[0]) / np.maximum(index, 1)
    return Signal(
        np.asarray(where.any(axis=0)),
        lambda: {
            **{name: np.where(most == row, rows.latest(name), np.nan) for row, name in enumerate(found)},
            REWARD: reward,
        },
        lambda: {
            "what": np.array([plain(name) for name in found])[most],
            "times": count[most, index],
            "interval": interval[most, index] * per_row,
        },
        normal=over.all(axis=0),
    )


def plain(name: str) -> str:
    """What a series counts, in words."""
    if name == INVALID:
        return "invalid turns"
    return f"the reward function {name.removeprefix('rewards/').removesuffix('/mean')}"


def costs_reward(reward: Values, spikes: Spikes) -> Truths:
    """[N]: where the rewards in the spikes so far are lower than the others by a tenth of the range."""
    inside = spikes.inside
    here, elsewhere = (
        np.cumsum(np.where(part, reward, 0.0)) / np.maximum(np.cumsum(part), 1) for part in (inside, ~inside)
    )
    return elsewhere - here > COST * reward_range(highest(reward), lowest(reward))


FMT001 = Rule(
    code="FMT001",
    title="format lost again and again",
    kind="symptom",
    needs=((INVALID, REWARD), (REWARD,)),
    applies=shows_format,
    checks=tuple(
        Check(
            series=(REWARD,),
            signal=partial(recur, costs=costs),
            message="Rollouts lose their format again and again: {times} spikes in {what}, one in {interval:.0f} steps."
            + (" Each of them costs reward." if costs else ""),
            level="finding" if costs else "note",
        )
        for costs in (True, False)
    ),
    suppressed_by_earlier=("RWD001", "LLD002", "LLD003", "ENT001", "STP001"),
    meaning="The share of rollouts without the right format jumps up for a few rows, returns to normal, and does so "
    "again and again.",
    impact="Each spike is an update that went too far, or a kind of question on which the format fails. Runs with such "
    "spikes often end in one that does not pass.",
    remedy=advise(
        "Read some [rollouts] of a spike. If they are broken text, lower the [learning rate] or clip the [norm of the "
        "gradient] lower. If they fail on the same questions, mend those or the parser. If the interval is that of an "
        "epoch or of a service that restarts, look there."
    ),
    limitations="A spike is a fifth more wrong rollouts than usual, for ten rows at most. Below four spikes, or if "
    "they cost no reward, it is a note. The series are `rollout/invalid_fraction` and functions with a name such as "
    "`format` or `tag`.",
)
