"""ZER001: zeros that are often normal, in the loss, the clip ratio or the KL.

Meaning: The loss, the clip ratio or the KL is 0 for a harmless reason. The policy still learns.

Impact: The value of a GRPO loss says little about progress. While the policy equals the old policy, the loss is 0 but
its gradient is not. If the loss grows slowly, the reason is usually the KL term.

Limitations: This is a note, not a finding. It needs a gradient above 0 or a KL that grows.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts import CLIPPED, KL, LOSS, NORM, REWARD
from holdfast.diagnose.rules._parts.contrast import contrast_of
from holdfast.diagnose.rules._parts.moves import KL_MOVES
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def are_normal(rows: Rows, _: Values) -> Signal:
    """The log has zeros with a harmless reason. This concerns the whole log, so it is reported at the first row."""
    parts = {name: rows.latest(name) for name in (LOSS, CLIPPED, KL)}
    reasons = [text for name, text in ZEROS.items() if is_zero(name, parts[name])]
    where = np.arange(len(rows.steps)) == (0 if reasons and learns(rows) else -1)
    return Signal(where, lambda: parts, lambda: {"reasons": np.broadcast_to(" ".join(reasons), len(where))})


ZEROS = {
    LOSS: "A loss near 0 is normal: the advantages of a group sum to 0, but the gradient of the loss is not 0.",
    CLIPPED: "A clip ratio of 0 is normal: in the first optimizer step of a rollout batch, every ratio is 1.",
    KL: "A KL of 0 is normal in the first steps, while the policy still equals its reference.",
}


def is_zero(name: str, values: Values) -> bool:
    """Whether a series is 0: a loss nearly, in the first rows; clipping in every row; a KL in a short log."""
    if name == LOSS:
        return bool((np.abs(values[:FIRST_ROWS]) <= NEAR_ZERO).all())
    return bool((values == 0).all()) and (name == CLIPPED or len(values) < FIRST_ROWS)


NEAR_ZERO = 0.005
"""Below this, a loss is printed as 0, or is only the KL times its coefficient in the first steps."""
FIRST_ROWS = 5


def learns(rows: Rows) -> bool:
    """Whether something shows that the policy moves: a gradient, or a KL that grows."""
    kl = rows.latest(KL)
    moves = rows.latest(NORM) > 0
    return bool((moves & ~(contrast_of(rows) == 0)).any() or (len(kl) > 1 and kl[-1] > KL_MOVES + kl[0]))


RULE = Rule(
    title="zeros that are normal",
    needs=((REWARD, LOSS), (REWARD, CLIPPED), (REWARD, KL)),
    equal_needs=True,
    reads="rows",
    checks=(Check(series=(REWARD,), signal=are_normal, message="{reasons}", level="note"),),
    suppressed_by=("GRD002", "GRD003", "GRP001"),
    remedy=advise("Change nothing. The reward shows whether the policy learns."),
)
