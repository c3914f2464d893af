"""What comes back from searches (RET001, RET002), and episodes that run out of room (TRN001)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.diagnostics.causal import (
    Truths,
    as_of,
    delayed,
    finite,
    first,
    held,
    highest,
    lowest,
    noise,
    rows,
    trailing_mean,
)
from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.rules.fair import ADVANTAGE
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest

FEW = 3
ERRORS, FAILED, EMPTY = "retrieval/error_fraction", "rollout/failed_fraction", "retrieval/empty_fraction"
FAILING = 0.1
NOTHING = 0.3


def _share(log: Log, name: str, bound: float, says: str, *, running: int = 1) -> Hit | None:
    """A share whose mean over three rows exceeds a bound, as do the last rows themselves."""
    found = rows(log, name)
    (share,) = found.columns
    smooth = trailing_mean(share, FEW)
    at = first((smooth > bound) & held(share > bound, running))
    if at is None:
        return None
    return Hit(int(found.steps[at]), says.format(smooth[at]), {name: float(smooth[at])}, (name,))


def failing(log: Log) -> Hit | None:
    """RET001."""
    return earliest(
        _share(log, ERRORS, FAILING, "The retriever fails: {:.0%} of the searches found no answer in any attempt."),
        _share(log, FAILED, FAILING, "Rollouts fail for reasons that are not the policy's: {:.0%} of them."),
    )


def nothing(log: Log) -> Hit | None:
    """RET002. A step may have a single search, so one row proves nothing."""
    return _share(log, EMPTY, NOTHING, "Searches return nothing: {:.0%} of them.", running=2)


TRUNCATED = "rollout/truncated_fraction"
RISE = 0.15


LENGTH, REWARD = "rollout/length", "reward/mean"
WINDOW = 5
PREFERRED = 0.1
"""Mean advantage per token of long rollouts. Where right answers are longer than wrong ones it is as high early in a
run, but then the reward rises with the length."""
GROWN = 0.03
"""Share of its length by which a rollout has grown."""
UNSURE = 4.0
"""Standard errors."""


def truncation(log: Log) -> Hit | None:
    """TRN001."""
    return earliest(_always(log), _grows(log), _truncates(log))


WATCHED = 20
"""Rows in which the reward may begin to rise although all episodes are cut."""


def _always(log: Log) -> Hit | None:
    """All episodes from the first row on, and the reward does not rise."""
    found = rows(log, TRUNCATED)
    (share,) = found.columns
    condition = (np.cumsum(share < 1) == 0) & ~_has_risen(log, found.steps)
    condition[: WATCHED - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        "All episodes run out of turns or tokens, and have done so since the log begins.",
        {TRUNCATED: 1.0},
        (TRUNCATED,),
    )


def _grows(log: Log) -> Hit | None:
    """Rollouts grow because advantages prefer long ones, and the reward does not rise with them."""
    found = rows(log, ADVANTAGE, LENGTH)
    advantage, length = (trailing_mean(column, WINDOW) for column in found.columns)
    error, unsure = (UNSURE * noise(column, WINDOW) / WINDOW**0.5 for column in found.columns)
    grown = length - lowest(length)
    condition = (advantage > PREFERRED) & (advantage > error) & (grown > GROWN * length) & (grown > unsure)
    condition &= ~_pays(log, found.steps)
    condition[: WINDOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Rollouts grow towards their limit, to {length[at]:.3g} tokens from {length[at] - grown[at]:.3g}: advantages "
        "prefer long ones, and the reward does not rise with them.",
        {LENGTH: float(length[at]), ADVANTAGE: float(advantage[at])},
        (LENGTH, ADVANTAGE),
    )


def _pays(log: Log, steps: NDArray[np.int64]) -> Truths:
    """Where the reward is higher than ever before the last rows: rollouts that pay may be long."""
    reward = finite(log.series.get(REWARD, Series(steps[:0], np.empty(0))))
    mean = trailing_mean(reward.values, WINDOW)
    rises = mean > delayed(highest(mean), WINDOW)
    return as_of(Series(reward.steps, rises.astype(float)), steps) > 0


def _has_risen(log: Log, steps: NDArray[np.int64]) -> Truths:
    """Where the reward is above its first rows, beyond its noise."""
    reward = finite(log.series.get(REWARD, Series(steps[:0], np.empty(0))))
    mean = trailing_mean(reward.values, WINDOW)
    rise = mean - mean[:WINDOW][-1:]
    risen = rise > UNSURE * noise(reward.values, WINDOW) / WINDOW**0.5
    return as_of(Series(reward.steps, risen.astype(float)), steps) > 0


def _truncates(log: Log) -> Hit | None:
    found = rows(log, TRUNCATED)
    (share,) = found.columns
    smooth = trailing_mean(share, FEW)
    low = lowest(smooth)
    rise = smooth - low
    condition = (rise > RISE) & (rise > UNSURE * noise(share, FEW) / FEW**0.5) & held(share > low + RISE / 2, 2)
    condition &= ~_pays(log, found.steps)
    condition[: FEW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"More and more episodes run out of turns or tokens: {smooth[at]:.0%}, up from {smooth[at] - rise[at]:.0%}.",
        {TRUNCATED: float(smooth[at])},
        (TRUNCATED,),
    )


RULES = (
    Rule("RET001", failing, ((ERRORS,), (FAILED,))),
    Rule("RET002", nothing, ((EMPTY,),)),
    Rule("TRN001", truncation, ((TRUNCATED,), (ADVANTAGE, LENGTH))),
)
