"""SMP002: the mismatch between sampler and trainer grows.

Meaning: The log-probs of sampler and trainer differ several times as much as at the start of the run, or their
importance ratio is far below 1.

Impact: Rollouts no longer come from the policy that is being trained, so the importance ratios are wrong. In published
collapses the mismatch grows first, and the reward falls soon after.

Limitations: The ratio of whole rollouts, TRL's default, is a product over tokens. In long rollouts rounding alone makes
its truncated mean small, so the rule requires a ratio that was near 1, and rollouts that kept their length. Otherwise
this rule judges only growth. SMP001 judges the level at the start of a run. Log-prob differences below 0.03 nats are
ignored, and so is growth in proportion to entropy.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log.trailing import Values, highest, trailing_mean
from holdfast.diagnose.rules._parts import IMPORTANCE_RATIO, LENGTH
from holdfast.diagnose.rules._parts.sampler import MEASURES, MIN_ROWS, grows, samples_elsewhere, times_usual
from holdfast.diagnose.rules.remedies import OUR_BUG, advise
from holdfast.diagnose.rules.rule import COLLAPSING, Check, Rows, Rule, Signal


def loses_weight(rows: Rows, ratio: Values) -> Signal:
    """The mean importance ratio of the sampler was near 1, and is far below, while rollouts kept their length."""
    mean = trailing_mean(ratio, RATIO_ROWS)
    longer = rows.latest(LENGTH, lambda values: times_usual(trailing_mean(values, RATIO_ROWS)))
    was_near = highest(np.where(np.arange(len(ratio)) > 0, mean, ratio)) >= FIRST_RATIO
    low = (mean < LOW_RATIO) & (ratio < LOW_RATIO)
    return Signal(
        low & was_near & ~(longer > LONGER_TIMES),
        lambda: {IMPORTANCE_RATIO: mean},
        normal=mean > FIRST_RATIO,
    )


RATIO_ROWS, FIRST_RATIO, LOW_RATIO = 3, 0.8, 0.5
"""The mean importance ratio of the sampler in three rows: at first, and if most of the weight is lost. Its expectation
is 1 if sampler and trainer are the same policy."""
LONGER_TIMES = 1.5
"""A ratio of whole rollouts is a product over tokens, so rounding alone lowers its truncated mean as rollouts grow."""


RULE = Rule(
    title="mismatch between sampler and trainer grows",
    equal_needs=True,
    applies=samples_elsewhere,
    checks=(
        *(
            Check(
                series=(measure.series,),
                signal=partial(grows, grown=measure.grown, times=measure.times),
                message=f"Sampler and trainer drift apart: {measure.text}, "
                "up from {usual:.2g} at the start. A change in entropy does not explain this.",
                min_rows=MIN_ROWS,
            )
            for measure in MEASURES
        ),
        Check(
            series=(IMPORTANCE_RATIO,),
            signal=loses_weight,
            rows_normal=RATIO_ROWS + 1,  # an odd row moves the mean for so many less one
            message="The importance ratio of the sampler is {sampler/importance_ratio:.2g} on average. It is 1 while "
            "sampler and trainer are the same policy.",
            min_rows=RATIO_ROWS,
            look_at=(IMPORTANCE_RATIO, *(measure.series for measure in MEASURES)),
        ),
    ),
    suppressed_by=("MSK001", "SMP001", "SMP003", "STP001"),
    # In a policy that breaks, unlikely tokens are sampled, and on those the engines differ most.
    suppressed_by_earlier=COLLAPSING,
    remedy=advise(
        "Check that the sampler gets the new weights after every update. If it does, go back to a checkpoint from "
        "before the mismatch grew, and lower the [learning rate]. Use the [importance weights of the sampler]. For a "
        "mixture of experts, use the sampler's routing in the trainer (routing replay).",
        instead={"holdfast": OUR_BUG},
        also={"trl": "If the ratio alone is low, try `vllm_importance_sampling_mode='token_truncate'`."},
    ),
)
