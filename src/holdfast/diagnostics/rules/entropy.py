"""Entropy: surging while nothing else moves (ENT001), or used up (ENT002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.causal import (
    as_of,
    first,
    has,
    highest,
    last_where,
    lowest,
    most_since,
    noise,
    rows,
    trailing_mean,
)
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.fair import fair
from holdfast.diagnostics.rules.rule import Hit, Rule

ENTROPY, LENGTH = "entropy/mean", "rollout/length"
WINDOW = 5
SURGE = 1.25
"""Of the lowest five-row mean so far. Healthy plateaus ripple by up to a tenth, and more where entropy is near 0."""
NATS = 0.35
"""Nats per token: 1.4 times as many likely tokens. A share alone says little, whatever the reward does: healthy runs
that are still learning wander by up to 0.3 nats, which may be more than all the entropy of a sharp policy."""
FLAT = 1.3
"""The length may have grown by this factor since entropy was lowest, or by less than entropy did: rambling follows a
surge. Where rollouts grow first they are of another kind, and may well have another entropy."""


SURE = 5.0
"""Standard errors: the lowest of many means is compared with, and that is an extreme."""
REST = 0.1
"""What is left of the rise, in shares of the lowest value, without its steepest row: what rises from one row to the
next alone is another question set, sampler or retriever, not a policy that drifts."""


def surge(log: Log) -> Hit | None:
    """ENT001."""
    found = rows(log, ENTROPY)
    (entropy,) = found.columns
    smooth = trailing_mean(entropy, WINDOW)
    low = lowest(smooth)
    rise = smooth - low
    condition = (smooth > SURGE * low) & (rise > NATS)
    condition &= rise > SURE * noise(entropy, WINDOW) / np.sqrt(WINDOW)
    steps_up = np.diff(entropy, prepend=entropy[:1])
    rest = trailing_mean(entropy, 2) - low - most_since(steps_up, smooth <= low)
    condition &= (rest > REST * low) & fair(log, found.steps)
    condition[: WINDOW - 1] = False
    if has(log, LENGTH):
        # NaN, where the length is not known yet, excludes nothing.
        length = trailing_mean(as_of(log.series[LENGTH], found.steps), WINDOW)
        grown = length / np.maximum(length[last_where(smooth <= low)], 1e-9) if len(length) else length
        condition &= ~((grown > FLAT) & (grown > smooth / np.maximum(low, 1e-9)))
    at = first(condition)
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"Entropy surges while rollouts keep their length: {smooth[at]:.3g} nats, {smooth[at] / low[at] - 1:.0%} above "
        "its lowest.",
        {ENTROPY: float(smooth[at]), "lowest so far": float(low[at])},
        (ENTROPY, LENGTH) if has(log.until(int(found.steps[at])), LENGTH) else (ENTROPY,),
    )


EXHAUSTED = 0.1
"""Nats of a whole rollout: nine rollouts of ten are then the likeliest one."""
REMAINS = 0.03
NEARLY_NONE = 0.02


def exhausted(log: Log) -> Hit | None:
    """ENT002."""
    found = rows(log, ENTROPY)
    (entropy,) = found.columns
    smooth = trailing_mean(entropy, WINDOW)
    start = highest(smooth)
    condition = (smooth < REMAINS * start) & (smooth < NEARLY_NONE)
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
