"""Entropy: surging while nothing else moves (ENT001), or used up (ENT002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.rules.long_rollouts import not_preferred
from holdfast.diagnostics.rules.remedies import PRESERVE_LIKELIHOOD
from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import Values, highest, last_where, lowest, margin, most_since, trailing_mean

ENTROPY, LENGTH = "entropy/mean", "rollout/length"
ROWS = 5

SURGE = 1.25
"""Times the lowest five-row mean so far. Healthy plateaus ripple by up to a tenth, and more where entropy is near 0."""
SURGE_NATS = 0.35
"""Nats per token: 1.4 times as many likely tokens. A share alone says little, whatever the reward does: healthy runs
that are still learning wander by up to 0.3 nats, which may be more than all the entropy of a sharp policy."""
SURGE_ERRORS = 5.0
"""Standard errors: the lowest of many means is compared with, and that is an extreme."""
SURGE_WITHOUT_STEEPEST_ROW = 0.1
"""What is left of the rise, in shares of the lowest value, without its steepest row: what rises from one row to the
next alone is another question set, sampler or retriever, not a policy that drifts."""
LENGTH_GROWN = 1.3
"""The length may have grown by this factor since entropy was lowest, or by less than entropy did: rambling follows a
surge. Where rollouts grow first they are of another kind, and may well have another entropy."""

EXHAUSTED_NATS = 0.1
"""Nats of a whole rollout: nine rollouts of ten are then the likeliest one."""
EXHAUSTED_SHARE, EXHAUSTED_TOKEN_NATS = 0.03, 0.02
"""Of the highest five-row mean, and nats per token: both, where the length is not known."""


def surges(rows: Rows) -> Signal:
    (entropy,) = rows.columns
    smooth = trailing_mean(entropy, ROWS)
    low = lowest(smooth)
    rise = smooth - low
    risen = (smooth > SURGE * low) & (rise > SURGE_NATS) & (rise > margin(entropy, ROWS, SURGE_ERRORS))
    steps_up = np.diff(entropy, prepend=entropy[:1])
    rest = trailing_mean(entropy, 2) - low - most_since(steps_up, smooth <= low)
    # NaN, where the length is not known, excludes nothing.
    length = trailing_mean(rows.latest(LENGTH), ROWS)
    grown = length / np.maximum(length[last_where(smooth <= low)], 1e-9)
    longer = (grown > LENGTH_GROWN) & (grown > smooth / np.maximum(low, 1e-9))
    where = risen & (rest > SURGE_WITHOUT_STEEPEST_ROW * low) & ~longer & not_preferred(rows)

    def above() -> dict[str, Values]:
        with np.errstate(all="ignore"):
            return {"above": smooth / low - 1}

    return Signal(where, lambda: {ENTROPY: smooth, "lowest so far": low}, above)


def runs_out(rows: Rows) -> Signal:
    (entropy,) = rows.columns
    smooth = trailing_mean(entropy, ROWS)
    start = highest(smooth)
    where = (smooth < EXHAUSTED_SHARE * start) & (smooth < EXHAUSTED_TOKEN_NATS)
    where |= trailing_mean(rows.latest(LENGTH), ROWS) * smooth < EXHAUSTED_NATS
    return Signal(where, lambda: {ENTROPY: smooth, "highest so far": start})


ENT001 = Rule(
    code="ENT001",
    title="entropy surge",
    needs=((ENTROPY, LENGTH), (ENTROPY,)),
    equal_needs=True,
    checks=(
        Check(
            series=(ENTROPY,),
            signal=surges,
            message="Entropy surges while rollouts keep their length: {entropy/mean:.3g} nats, {above:.0%} above its "
            "lowest.",
            min_rows=ROWS,
            look_at=(ENTROPY, LENGTH),
        ),
    ),
    meaning="Entropy climbs from its lowest value while rollouts keep their length and number of searches.",
    impact="The policy becomes uncertain without doing anything new: probability flows to tokens it does not sample. "
    "In the published collapses this comes before the fall of the reward.",
    remedy=PRESERVE_LIKELIHOOD,
    limitations="A change of data or temperature raises entropy too. Runs trained for exploration, with an entropy "
    "bonus, are meant to raise it. It has to rise by a quarter and by 0.35 nats a token, 1.4 times as many likely "
    "tokens: a policy so sharp that its entropy doubles with less is not reported.",
)

ENT002 = Rule(
    code="ENT002",
    title="entropy exhausted",
    needs=((ENTROPY,),),
    checks=(
        Check(
            series=(ENTROPY,),
            signal=runs_out,
            message="Entropy is used up: {entropy/mean:.2g} nats per token, so that the rollouts of a question are "
            "nearly the same.",
            min_rows=ROWS,
        ),
    ),
    meaning="Entropy is so low that the rollouts of a question are nearly identical.",
    impact="Without variety groups lose their contrast and learning stops, whatever the reward is.",
    remedy={
        "holdfast": "Stop here and take the best checkpoint, or raise `loss.entropy_coef`, `loss.kl_coef` or "
        "`loss.clip_high`.",
        "trl": "Stop here, or raise `entropy_coef`, `beta` or `epsilon_high`.",
        "verl": "Stop here, or raise `actor_rollout_ref.actor.entropy_coeff`, "
        "`actor_rollout_ref.actor.kl_loss_coef` or `actor_rollout_ref.actor.clip_ratio_high`.",
        "unknown": "Stop here, or add an entropy bonus, a KL to the reference, or a higher upper clip.",
    },
    limitations="A task that is solved looks the same, and is not a failure.",
)
