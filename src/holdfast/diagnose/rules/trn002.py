"""TRN002: rollouts grow without a higher reward.

Meaning: Rollouts have become at least twice as long as in the first rows, and the reward has not risen.

Impact: Every step has to sample and train on that many more tokens. Reasoning runs grow too, but their reward rises.

Limitations: This is a note, not a finding: in a noisy log the reward may have risen by less than its noise. If the
trainer counts observations, longer ones count too.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.trailing import Values, margin, mean_at_first, trailing_mean
from holdfast.diagnose.rules._parts import LENGTH, REWARD
from holdfast.diagnose.rules._parts.reward import more_is_earned
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def grow_for_nothing(rows: Rows, length: Values) -> Signal:
    """Rollouts are by now twice as long as in the first rows, and the reward has not risen since. The newest row
    decides."""
    smooth, first = trailing_mean(length, COST_ROWS), mean_at_first(length, COST_ROWS)
    grown = (smooth >= COST_TIMES * first) & (smooth - first > margin(length, COST_ROWS, RISE_ERRORS))
    newest = np.arange(len(length)) == len(length) - 1
    return Signal(
        newest & grown & ~more_is_earned(rows) & rows.where(REWARD, np.isfinite),
        lambda: {LENGTH: smooth},
        lambda: {"times": smooth / np.maximum(first, 1e-9)},
    )


RISE_ERRORS = 4.0
"""Standard errors of a difference that a rise has to exceed."""
COST_ROWS = 10
COST_TIMES = 2.0
"""Times the tokens of the first rows. A step then samples, and trains on, twice as much."""


RULE = Rule(
    title="rollouts grow without a higher reward",
    kind="symptom",
    needs=((LENGTH, REWARD),),
    checks=(
        Check(
            series=(LENGTH,),
            signal=grow_for_nothing,
            message="Rollouts have {rollout/length:.0f} tokens, {times:.1f} times as many as in the first rows, and "
            "the reward has not risen.",
            min_rows=2 * COST_ROWS,
            look_at=(LENGTH, REWARD),
            level="note",
        ),
    ),
    # These say what the length led to, or came from.
    suppressed_by=("TRN001", "ENT003", "RWD001"),
    remedy=advise(
        "Read some [rollouts]. If they ramble, give shorter correct ones a higher reward, and average the loss over "
        "all tokens of a batch. If the loss is averaged within each rollout first, the tokens of long incorrect "
        "rollouts count less.",
        also={
            "holdfast": "The setting is `loss.reduction`.",
            "trl": "The setting is `loss_type`.",
            "verl": "The setting is `actor_rollout_ref.actor.loss_agg_mode`.",
        },
    ),
)
