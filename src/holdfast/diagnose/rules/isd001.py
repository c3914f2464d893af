"""ISD001: importance ratios drift within the optimizer steps of a batch.

Meaning: Within the optimizer steps of one batch, the product of the importance ratios of a rollout with A > 0 falls far
below 1.

Impact: The ratio of a token scales its gradient. A correct token whose ratio is near 0 has almost no gradient, so its
probability cannot recover (importance-sampling distribution drift, arXiv 2603.10069).

Limitations: Without `ratio/log_product/positive`, the mean includes incorrect rollouts, which should lose likelihood.
The product is over tokens, so long rollouts drift sooner. While the reward falls, half the usual drift is enough for a
finding. Ratios to the sampler fall with staleness alone. If the settings in the log show such ratios (verl's bypass
mode), the rule reports nothing. TRL's AsyncGRPOTrainer always uses them, but its log does not say so.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log import Log
from holdfast.diagnose.log.trailing import Values, held, trailing_lowest, trailing_mean
from holdfast.diagnose.rules._parts import LOG_RATIO
from holdfast.diagnose.rules.remedies import PRESERVE_LIKELIHOOD, preserve_likelihood
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, falling

POSITIVE_RATIO = "ratio/log_product/positive"


def ratios_begin_at_one(log: Log) -> bool:
    """Whether ratios are to the weights before the update, as far as the log says. Those to the sampler of old rollouts
    sink with age alone, in runs that hold too."""
    return not any(str(log.settings.get(name)).lower() == value for name, value in TO_SAMPLER.items())


TO_SAMPLER = {"loss.old_policy": "sampler", "algorithm.rollout_correction.bypass_mode": "true"}
"""Settings of the local trainer and of verl under which ratios are to the sampler."""


def drifts(rows: Rows, product: Values) -> Signal | None:
    """Rollouts become much less likely within the optimizer steps of one batch. While the reward falls, less is
    enough."""
    smooth = trailing_mean(product, DRIFT_ROWS)
    worst = trailing_lowest(smooth, DRIFT_MEMORY_ROWS)
    far = (smooth < DRIFT_NATS) & held(product < DRIFT_NATS / 2, 3)  # not a single spike
    if not (worst < DRIFT_NATS_WHILE_FALLING).any():
        return None
    where = far | (falling(rows) & (worst < DRIFT_NATS_WHILE_FALLING))
    return Signal(
        where,
        lambda: {rows.names[0]: worst},
        lambda: {"ratio": np.exp(np.minimum(worst, 0.0))},
        normal=worst > DRIFT_NATS_WHILE_FALLING,
    )


DRIFT_ROWS = 5
DRIFT_NATS = -1.0
"""Nats. The average rollout has become e times less likely within the optimizer steps of one batch. Controls with a
suitable learning rate stay above -0.1, healthy plateaus above -0.75."""
DRIFT_NATS_WHILE_FALLING = -0.5
"""The same while the reward falls. Controls whose reward falls by chance stay above."""
DRIFT_MEMORY_ROWS = 10
"""Rows for which a drift counts as the cause of a fall. The reward falls later, when few correct rollouts are left."""


RULE = Rule(
    title="importance ratios drift",
    applies=ratios_begin_at_one,
    checks=(
        Check(
            series=(POSITIVE_RATIO,),
            signal=drifts,
            message="Importance ratios drift: within the optimizer steps of one batch, the ratios of an average "
            "rollout with A > 0 have a product of {ratio:.2g}.",
            min_rows=DRIFT_ROWS,
        ),
        Check(
            series=(LOG_RATIO,),
            signal=drifts,
            message="Importance ratios drift: within the optimizer steps of one batch, the ratios of an average "
            "rollout have a product of {ratio:.2g}.",
            min_rows=DRIFT_ROWS,
            better=((POSITIVE_RATIO,),),
        ),
    ),
    remedy=PRESERVE_LIKELIHOOD,
    remedy_in=preserve_likelihood,
)
