"""Whether advantages prefer long rollouts. What then rises and sinks is not a failure of the policy."""

from __future__ import annotations

from holdfast.diagnostics.rules.rule import Rows
from holdfast.trailing import Truths, trailing_mean

ADVANTAGE = "advantage/token_mean"
ADVANTAGE_ROWS = 8
PREFERRED = 0.03
"""Mean advantage per token. Above, long rollouts are preferred: correct ones sink because others are pulled up, which
is a slip in the reward and not lazy displacement. Where displacement collapses were found it was below 0.01."""


def not_preferred(rows: Rows) -> Truths:
    """[N]: where advantages do not prefer long rollouts, as far as the log shows."""
    return ~(rows.latest(ADVANTAGE, lambda values: trailing_mean(values, ADVANTAGE_ROWS)) > PREFERRED)
