"""RWD004: the reward never rose.

Meaning: The line through all rewards does not rise beyond their noise, in 30 rows or more.

Impact: The policy may not learn at all, or so slowly that this log cannot show it. Many healthy runs look like this for
a long time.

Limitations: This is a note where the log does not show why. It needs 30 rows, and the reward of a row is noisy: the
message says how large a rise would have been visible.
"""

from __future__ import annotations

from holdfast.diagnose.log import reward_curve
from holdfast.diagnose.log.collapse import TREND_ERRORS, course_of, is_flat
from holdfast.diagnose.log.trailing import Values
from holdfast.diagnose.rules._parts import REWARD
from holdfast.diagnose.rules.remedies import advise
from holdfast.diagnose.rules.rule import Check, Rows, Rule, Signal, in_newest


def never_rose(rows: Rows, _: Values) -> Signal | None:
    """So far the reward is flat (`holdfast.diagnose.log.collapse.is_flat`). The newest row decides."""
    curve = reward_curve(rows.log, REWARD)
    assert curve is not None
    if not is_flat(curve, course := course_of(curve)):
        return None
    words = {"change": course.change, "error": course.error, "visible": TREND_ERRORS * course.error}
    return in_newest(rows, {REWARD: float(curve.short.means[-1])}, words)


RULE = Rule(
    title="reward has not risen",
    kind="symptom",
    checks=(
        Check(
            series=(REWARD,),
            signal=never_rose,
            message="The reward has not risen: it changed by {change:+.2g} ± {error:.2g} over the run. A rise of "
            "{visible:.2g} or more would be visible above the noise.",
            level="note",
        ),
    ),
    states="flat",
    # These say why nothing is learned, or that the reward went down.
    suppressed_by=("LRN001", "GRD003", "GRP001", "SMP003", "ENT003", "TRN001", "RWD001"),
    remedy=advise(
        "Evaluate before and after training, on the same questions. If that score did not rise either, raise the "
        "[learning rate], or use easier questions or a [denser reward]."
    ),
)
