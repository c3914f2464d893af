"""Gradients: exploding (GRD001), or not finite as a loss or a reward may be (GRD002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.causal import delayed, finite, first, held, highest, rows, trailing_mean
from holdfast.diagnostics.log import Log
from holdfast.diagnostics.rules.rule import Hit, Rule, earliest

NORM = "grad/norm"
EXPLOSION = 10.0
"""Times the usual norm. Isolated spikes of 4 to 36 times the median occur in runs that end well."""
BEYOND = 2.0
"""Times the largest norm before: where many groups have no contrast, norms of 0 and of 9 take turns."""
USUAL = 10
"""Rows whose mean, up to three rows ago, is the usual norm."""


def explosion(log: Log) -> Hit | None:
    """GRD001: two rows running."""
    found = rows(log, NORM)
    (norm,) = found.columns
    usual = delayed(trailing_mean(norm, USUAL), 2)
    beyond = (norm > EXPLOSION * usual) & (norm > BEYOND * delayed(highest(norm), 2))
    at = first(held(beyond & (np.arange(len(norm)) >= USUAL // 2), 2))
    if at is None:
        return None
    return Hit(
        int(found.steps[at]),
        f"The gradient norm explodes: {norm[at]:.3g}, {norm[at] / max(usual[at], 1e-12):.0f} times its usual value.",
        {NORM: float(norm[at]), "usual": float(usual[at])},
        (NORM,),
    )


SKIPPED = "grad/skipped"
ARE_FINITE = (NORM, "loss/policy", "loss/host", "loss/kl", "loss/penalty", "entropy/mean", "loss")
REWARD = "reward/mean"


def not_finite(log: Log) -> Hit | None:
    """GRD002."""
    hits = [_reward(log)]
    for name in ARE_FINITE:
        series = log.series.get(name)
        at = None if series is None else first(~np.isfinite(series.values))
        if series is not None and at is not None:
            summary = f"{name} is not a finite number: from here on the update is void or poisons the weights."
            hits.append(Hit(int(series.steps[at]), summary, {name: float(series.values[at])}, (name,)))
    if SKIPPED in log.series:
        series = finite(log.series[SKIPPED])
        at = first(series.values > 0)
        if at is not None:
            summary = f"{series.values[at]:g} optimizer steps were skipped, because their gradient was not finite."
            hits.append(Hit(int(series.steps[at]), summary, {SKIPPED: float(series.values[at])}, (SKIPPED,)))
    return earliest(*hits)


def _reward(log: Log) -> Hit | None:
    """Infinite. NaN is how a trainer writes that no rollout of the batch has a reward, which is no fault of its own."""
    series = log.series.get(REWARD)
    at = None if series is None else first(np.isinf(series.values))
    if series is None or at is None:
        return None
    return Hit(
        int(series.steps[at]),
        "The reward is not a finite number, so the advantages made of it are none either.",
        {REWARD: float(series.values[at])},
        (REWARD,),
    )


RULES = (
    Rule("GRD001", explosion, ((NORM,),)),
    Rule("GRD002", not_finite, ((SKIPPED,), (NORM,), ("loss/policy",), ("loss",))),
)
