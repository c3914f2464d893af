"""GRD002: a gradient, a loss, a KL or a reward is not finite.

Meaning: The loss or the gradient is NaN or infinite, a KL or an importance ratio becomes NaN or infinite, or a reward
is infinite.

Impact: One NaN in a gradient makes every weight NaN, unless the trainer skips the update. Skipping saves the weights
but hides the cause. Common causes: exp() of an unbounded log-ratio, half precision, arithmetic on masked tokens (0 ·
∞).

Limitations: The rule misses a NaN that the trainer leaves out of its log or writes as 0. A KL that is NaN from the
first row on is a note: if the loss used it, the loss or the gradient would be NaN too, which is a finding. If the
reward is infinite, none of these settings helps: look for a division by 0 in the reward function.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from holdfast.diagnose.log.trailing import Values, held
from holdfast.diagnose.rules._parts import CLIPPED, LOG_RATIO, NORM, REWARD
from holdfast.diagnose.rules._parts.reward import ROWS_TO_FORGET, did_no_harm
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal

SKIPPED = "grad/skipped_steps"


def is_not_finite(rows: Rows, values: Values) -> Signal:
    """The value is NaN or infinite. A trainer writes NaN as the reward if no rollout of the batch has one, which is not
    a fault. Weights that are NaN make every later value NaN, so finite ones show that the update was skipped."""
    if rows.names == (REWARD,):
        return Signal(np.isinf(values))
    bad = ~np.isfinite(values)
    return Signal(bad, normal=~bad)


def stays_not_finite(rows: Rows, values: Values, *, at_first: bool) -> Signal:
    """The value has been NaN or infinite for three rows. With `at_first`, only where it always was; without it, only
    after finite values."""
    bad = ~np.isfinite(values)
    never = np.cumsum(~bad) == 0
    return Signal(held(bad, ROWS_OF_NAN) & (never == at_first), normal=~bad)


ROWS_OF_NAN = 3
"""Consecutive rows without a finite value that such batches do not explain."""


def skips(rows: Rows, skipped: Values) -> Signal:
    """Optimizer steps were skipped."""
    return Signal((skipped > 0) & np.isfinite(skipped), normal=did_no_harm(rows))


MUST_BE_FINITE = (NORM, "loss/policy", "loss/host", "loss/kl", "loss/penalty", "entropy/mean", "loss")
MAY_LACK_TOKENS = ("kl/reference", "ratio/mean", LOG_RATIO, CLIPPED)
"""Means over tokens, which some trainers log as NaN for a batch whose tokens are all left out of the loss."""
CUDNN = (
    "With PyTorch 2.11 or newer on an H100 or a similar GPU, first turn off cuDNN attention, whose gradients can be "
    "NaN: `torch.backends.cuda.enable_cudnn_sdp(False)`."
)
"""github.com/pytorch/pytorch/issues/196678. holdfast's own trainer does so, and verl has another attention."""


RULE = Rule(
    title="non-finite gradient, loss, KL or reward",
    kind="logged cause",
    needs=((SKIPPED,), (NORM,), ("loss/policy",), ("loss",)),
    equal_needs=True,
    reads="rows with NaN",
    checks=(
        Check(
            series=(REWARD,),
            signal=is_not_finite,
            message="The reward is infinite, so the advantages are not finite either.",
        ),
        *(
            Check(
                series=(name,),
                signal=is_not_finite,
                message=f"{name} is not a finite number. If the trainer does not skip this update, it ruins the "
                "weights.",
            )
            for name in MUST_BE_FINITE
        ),
        *(
            Check(
                series=(name,),
                signal=partial(stays_not_finite, at_first=at_first),
                message=f"{name} has been NaN or infinite in every row so far. Its inputs may be broken."
                if at_first
                else f"{name} was finite before, but has been NaN or infinite for {ROWS_OF_NAN} rows. The weights may "
                "be ruined.",
                level="note" if at_first else "finding",
            )
            for name in MAY_LACK_TOKENS
            for at_first in (False, True)
        ),
        Check(
            series=(SKIPPED,),
            signal=skips,
            rows_normal=ROWS_TO_FORGET,
            message="{grad/skipped_steps:g} optimizer steps were skipped because their gradient was not finite.",
        ),
    ),
    remedy=advise(
        "Lower the [learning rate], clip the [norm of the gradient] at 1, train in [full precision], and bound the "
        "[importance ratio]. Mask tokens before the arithmetic, not after it.",
        also={"trl": f"`with_penalties(GRPOTrainer)` does so. {CUDNN}", "unknown": CUDNN},
    ),
    leaves=lambda hit: "nothing",
)
