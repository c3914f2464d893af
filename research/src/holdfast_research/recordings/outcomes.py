"""Causes of the single-turn runs: which codes are right, whether a stock log can tell, and whether the fault acted.

All of it was written before any held-out run was made. Whether a fault acted is decided by what the recorder saw of
every rollout batch (rewards, truncation, contrast within groups), never by what the rules say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.base.collapse import Curve, curve_of, halved

WINDOW = 10
"""Rollout batches in a mean."""
UNTOUCHED = "healthy-without-effect"
"""The cause of a run whose fault did nothing."""
UNPLANNED = "unplanned-fall"
"""The cause of a run that was planned healthy and lost half of its reward. It counts as neither."""

Truth = Sequence[dict[str, Any]]
"""A row for every rollout batch: `step`, `reward`, `parts` (of each reward function), `contrast`, `truncated`."""


def series(truth: Truth, name: str) -> list[float]:
    """A number of every rollout batch."""
    return [float(row[name]) for row in truth]


def curve(truth: Truth) -> Curve:
    """The reward over time."""
    finite = [row for row in truth if np.isfinite(row["reward"])]
    return curve_of(series(finite, "reward"), [row["step"] for row in finite])


def lost(values: Sequence[float]) -> float:
    """The share of the range that the last batches have lost from the highest mean before; the range includes 0.

    >>> round(lost([0.5] * 20 + [0.25] * 10), 2)
    0.5
    """
    finite = np.array([value for value in values if np.isfinite(value)])
    means = np.convolve(finite, np.ones(WINDOW) / WINDOW, "valid") if len(finite) >= WINDOW else finite
    peak = max(float(means.max()), float(finite[:3].mean()))
    width = max(peak, 0.0) - min(float(finite.min()), 0.0)
    return (peak - float(finite[-WINDOW:].mean())) / width if width else 0.0


def _certain(truth: Truth) -> bool:
    """A defect of the script, whatever it does to the reward."""
    return True


def _lost(share: float) -> Callable[[Truth], bool]:
    return lambda truth: lost(series(truth, "reward")) >= share


def _traded(truth: Truth) -> bool:
    """The first reward function's mean fell while the reward rose."""
    rewards, true = series(truth, "reward"), [float(row["parts"][0]) for row in truth]
    return lost(true) >= 1 / 4 and float(np.mean(rewards[-WINDOW:])) > float(np.mean(rewards[:WINDOW]))


def _truncated(truth: Truth) -> bool:
    return float(np.mean(series(truth, "truncated")[-WINDOW:])) >= 0.3


def _exhausted(truth: Truth) -> bool:
    """Groups stopped to differ before the task was solved."""
    contrast, rewards = series(truth, "contrast"), series(truth, "reward")
    ended = float(np.mean(contrast[-2 * WINDOW :]))
    return ended <= min(0.25, float(np.mean(contrast[:WINDOW])) / 2) and float(np.mean(rewards[-WINDOW:])) < 0.9


@dataclass(frozen=True, slots=True)
class Cause:
    """What a fault leads to."""

    right: frozenset[str]
    """The codes that a user would want to hear first."""
    acted: Callable[[Truth], bool] = _certain
    """Whether it came about."""
    stock: bool = True
    """Whether a log without the observer's series can tell it."""


def _cause(codes: str, acted: Callable[[Truth], bool] = _certain, *, stock: bool = True) -> Cause:
    return Cause(frozenset(codes.split()), acted, stock)


CAUSES = {
    "step-too-large": _cause("STP001 GRD001", _lost(1 / 3)),
    "kl-exploded": _cause("KLD001 STP001 GRD001", _lost(1 / 3)),
    "non-finite": _cause("GRD002"),
    "no-contrast": _cause("GRP001"),
    "broken-reward": _cause("GRP001"),  # nobody learns from it, and the policy did nothing wrong
    "hacking": _cause("RWD003", _traded),
    "truncation": _cause("TRN001", _truncated),
    "sampler-mismatch": _cause("SMP001 SMP002", stock=False),  # an engine's log-probs tell: `can_tell`
    "masked-leak": _cause("MSK001", stock=False),
    "cut-gradient": _cause("GRD003"),
    "entropy-surge": _cause("ENT001 ENT003", _lost(1 / 4)),
    "entropy-exhausted": _cause("ENT002", _exhausted),
    "noise-policy": _cause("ENT003"),
}


def outcome(planned: str, truth: Truth) -> str:
    """The cause of a run, given the planned one."""
    if planned in CAUSES:
        return planned if CAUSES[planned].acted(truth) else UNTOUCHED
    return UNPLANNED if halved(curve(truth)) else planned
