"""Entropy: surging while nothing else moves (ENT001), or used up (ENT002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.causal import as_of, first, has, highest, lowest, noise, rows, trailing_mean
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.rule import Hit, Rule

ENTROPY, LENGTH = "entropy/mean", "rollout/length"
WINDOW = 5
SURGE = 1.25
"""Of the lowest five-row mean so far. Healthy plateaus ripple by up to a tenth, and more where entropy is near 0."""
SURGE_NATS = 0.05
FLAT = 1.3
"""The length may have grown by this factor since entropy was lowest; beyond, the rollouts are of another kind."""


def surge(log: Log) -> Hit | None:
    """ENT001."""
    found = rows(log, ENTROPY)
    (entropy,) = found.columns
    smooth = trailing_mean(entropy, WINDOW)
    low = lowest(smooth)
    rise = smooth - low
    condition = (smooth > SURGE * low) & (rise > SURGE_NATS) & (rise > 3 * noise(entropy, WINDOW) / np.sqrt(WINDOW))
    condition[: WINDOW - 1] = False
    if has(log, LENGTH):
        length = trailing_mean(as_of(log.series[LENGTH], found.steps), WINDOW)
        low_at = np.maximum.accumulate(np.where(smooth <= low, np.arange(len(smooth)), 0))
        grown = length / np.maximum(length[low_at], 1e-9) if len(length) else length
        condition &= ~(grown > FLAT)  # NaN, where the length is not known yet, excludes nothing
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Entropy surges while rollouts keep their length: {smooth[at]:.3g} nats, {smooth[at] / low[at] - 1:.0%} above "
        "its lowest.",
        {ENTROPY: float(smooth[at]), "lowest so far": float(low[at])},
        (ENTROPY, LENGTH) if has(log, LENGTH) else (ENTROPY,),
    )


EXHAUSTED = 1.0
"""Nats of a whole rollout: less than one choice between three."""
REMAINS = 0.03


def exhausted(log: Log) -> Hit | None:
    """ENT002."""
    found = rows(log, ENTROPY)
    (entropy,) = found.columns
    smooth = trailing_mean(entropy, WINDOW)
    start = highest(smooth)
    condition = (smooth < REMAINS * start) & (smooth < 0.02)
    if has(log, LENGTH):
        whole = trailing_mean(as_of(log.series[LENGTH], found.steps), WINDOW) * smooth
        condition |= whole < EXHAUSTED
    condition[: WINDOW - 1] = False
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Entropy is used up: {smooth[at]:.2g} nats per token, so that the rollouts of a question are nearly the same.",
        {ENTROPY: float(smooth[at]), "highest so far": float(start[at])},
        (ENTROPY,),
    )


RULES = (
    Rule("ENT001", surge, ((ENTROPY, LENGTH), (ENTROPY,))),
    Rule("ENT002", exhausted, ((ENTROPY,),)),
)
