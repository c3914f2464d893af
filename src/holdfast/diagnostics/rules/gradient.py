"""Gradients: exploding (GRD001), or not finite, as a loss or a reward may be (GRD002)."""

from __future__ import annotations

import numpy as np

from holdfast.diagnostics.rules.remedies import SMALLER_STEPS
from holdfast.diagnostics.rules.rule import Check, Rows, Rule, Signal
from holdfast.trailing import delayed, highest, trailing_mean

NORM, SKIPPED, REWARD = "grad/norm", "grad/skipped_steps", "reward/mean"
HAVE_TO_BE_FINITE = (NORM, "loss/policy", "loss/host", "loss/kl", "loss/penalty", "entropy/mean", "loss")

EXPLOSION = 10.0
"""Times the usual norm. Isolated spikes of 4 to 36 times the median occur in runs that end well."""
ABOVE_ALL_BEFORE = 2.0
"""Times the largest norm before: where many groups have no contrast, norms of 0 and of 9 take turns."""
USUAL_ROWS = 10
"""Rows whose mean, up to three rows ago, is the usual norm."""


def explodes(rows: Rows) -> Signal:
    (norm,) = rows.columns
    usual = delayed(trailing_mean(norm, USUAL_ROWS), 2)
    where = (norm > EXPLOSION * usual) & (norm > ABOVE_ALL_BEFORE * delayed(highest(norm), 2))
    return Signal(where, lambda: {NORM: norm, "usual": usual}, lambda: {"times": norm / np.maximum(usual, 1e-12)})


def is_not_finite(rows: Rows) -> Signal:
    (values,) = rows.columns
    return Signal(~np.isfinite(values), lambda: {rows.names[0]: values})


def is_infinite(rows: Rows) -> Signal:
    """For the reward: NaN is how a trainer writes that no rollout of the batch has one, which is not a fault."""
    (values,) = rows.columns
    return Signal(np.isinf(values), lambda: {rows.names[0]: values})


def skips(rows: Rows) -> Signal:
    (skipped,) = rows.columns
    return Signal(skipped > 0, lambda: {SKIPPED: skipped})


GRD001 = Rule(
    code="GRD001",
    title="gradient explosion",
    needs=((NORM,),),
    checks=(
        Check(
            series=(NORM,),
            signal=explodes,
            message="The gradient norm explodes: {grad/norm:.3g}, {times:.0f} times its usual value.",
            min_rows=USUAL_ROWS // 2 + 1,
            rows_running=2,
        ),
    ),
    meaning="The gradient norm stays more than ten times above its usual value.",
    impact="With norm clipping the step has a bounded size but a random direction; without, the weights are lost.",
    remedy=SMALLER_STEPS,
    limitations="Single spikes are ignored. A norm logged after clipping cannot explode.",
)

GRD002 = Rule(
    code="GRD002",
    title="non-finite gradient, loss or reward",
    needs=((SKIPPED,), (NORM,), ("loss/policy",), ("loss",)),
    equal_needs=True,
    checks=(
        Check(
            series=(REWARD,),
            signal=is_infinite,
            message="The reward is not a finite number, so the advantages made of it are not either.",
            raw=True,
        ),
        *(
            Check(
                series=(name,),
                signal=is_not_finite,
                message=f"{name} is not a finite number: from here on the update is void or poisons the weights.",
                raw=True,
            )
            for name in HAVE_TO_BE_FINITE
        ),
        Check(
            series=(SKIPPED,),
            signal=skips,
            message="{grad/skipped_steps:g} optimizer steps were skipped, because their gradient was not finite.",
        ),
    ),
    meaning="A loss or gradient is NaN or infinite, or a reward is infinite, so that the update was skipped or has "
    "poisoned the weights.",
    impact="One NaN in a gradient makes every weight NaN unless the step is skipped. A skipped step hides the cause: "
    "often the exponential of an unbounded log-ratio, half precision, or arithmetic on masked tokens (0 · ∞).",
    remedy={
        "holdfast": 'Lower `train.lr`; on a GPU try `model.autocast = "none"`; bound the ratio of negative tokens '
        "with `loss.dual_clip = 3.0`.",
        "trl": "Lower `learning_rate`, set `bf16=False`, bound the ratio with `delta=3.0`; "
        "`with_penalties(GRPOTrainer)` keeps masked tokens out of the arithmetic.",
        "verl": "Lower `actor_rollout_ref.actor.optim.lr`, set `actor_rollout_ref.actor.optim.clip_grad` to 1 or "
        "less, and keep `actor_rollout_ref.actor.clip_ratio_c` at 3.",
        "unknown": "Lower the learning rate, train in full precision, bound the importance ratio, and mask before "
        "the arithmetic.",
    },
    limitations="A trainer that leaves NaN out of its log, or writes 0 instead, hides this. Where it is the reward, "
    "none of these settings helps: look for a division by 0 in the reward function.",
)
