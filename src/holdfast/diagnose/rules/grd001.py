"""GRD001: the gradient explodes.

Meaning: The gradient norm stays more than ten times above its usual value.

Impact: With norm clipping, the step has a bounded size but a nearly random direction. Without clipping, the step ruins
the weights.

Limitations: Single spikes are ignored. If the trainer logs the norm after clipping, the rule finds nothing.
"""

from __future__ import annotations

import numpy as np

from holdfast.diagnose.log.trailing import Values, delayed, highest, last_where, trailing_mean
from holdfast.diagnose.rules._parts import NORM
from holdfast.diagnose.rules.remedies import SMALLER_STEPS
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal


def explodes(rows: Rows, norm: Values) -> Signal | None:
    """The gradient norm is far above its usual value and above every earlier one. Norms of 0 are left out: without
    contrast there is no gradient."""
    known = norm[last_where(norm > 0)]
    usual = delayed(trailing_mean(known, USUAL_NORM_ROWS), 2)
    where = (norm > EXPLOSION_TIMES * usual) & (norm > ABOVE_LARGEST_TIMES * delayed(highest(norm), 2)) & (usual > 0)
    if not where.any():
        return None
    is_back = trailing_mean(known, USUAL_NORM_ROWS) < BACK_TIMES * usual[last_where(where)]
    return Signal(
        where, lambda: {NORM: norm, "usual": usual}, lambda: {"times": norm / np.maximum(usual, 1e-12)}, is_back
    )


EXPLOSION_TIMES = 10.0
"""Times the usual norm. Isolated spikes of 4 to 36 times the median occur in runs that end well."""
ABOVE_LARGEST_TIMES = 2.0
"""Times the largest norm before. If many groups have no contrast, norms of 0 and of 9 alternate."""
BACK_TIMES = 3.0
"""An explosion is over when the mean of the last rows is below this many times the norm that was usual before it."""
USUAL_NORM_ROWS = 10
"""The usual norm is the mean of this many rows, and ends two rows before."""


RULE = Rule(
    title="gradient explosion",
    kind="symptom",
    checks=(
        Check(
            series=(NORM,),
            signal=explodes,
            message="The gradient norm explodes: {grad/norm:.3g}, which is {times:.0f} times its usual value.",
            min_rows=USUAL_NORM_ROWS // 2 + 1,
            rows_running=2,
        ),
    ),
    remedy=SMALLER_STEPS,
)
