"""PEN001 where a log has a row for every optimizer step: rollout batches count, and rows in which the policy moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log

from .conftest import log_of


def trl_log(k: int, active: Sequence[float], *, moved: Sequence[bool] | None = None, drop: float = 0.01) -> Log:
    """A TRL log with `logging_steps=1`: the reward and K on the steps that begin with new rollouts. The policy has
    moved on all others, unless `moved` says where."""
    rows = len(active)
    opens = [i % k == 0 for i in range(rows)]
    moves = [not new for new in opens] if moved is None else moved
    series: dict[str, Sequence[Any]] = {
        "reward/mean": [0.5 if new else None for new in opens],
        "optimizer_steps_per_rollout": [float(k) if new else None for new in opens],
        "penalty/active_fraction": list(active),
        "penalty/preserved_fraction": [0.5] * rows,
        "penalty/mean_decrease": [drop if m else 0.0 for m in moves],
        "ratio/max": [1.2 if m else 1.0 for m in moves],
    }
    return log_of(series, host="trl")


def pen001(log: Log) -> Finding | None:
    return next((finding for finding in diagnose(log).findings if finding.code == "PEN001"), None)


def test_a_warm_up_whose_first_learning_rate_is_0_is_no_inert_penalty() -> None:
    """K = 2: rows 1 and 3 begin a batch, and row 2 comes before the first update that moves anything."""
    moved = [False, False, False, True, False, True]
    assert pen001(trl_log(2, [0.0, 0.0, 0.0, 0.1, 0.0, 0.1], moved=moved)) is None
    assert pen001(trl_log(4, [0.0] * 80, moved=[False] * 80)) is None, "a policy that never moves says nothing of it"


def test_with_one_step_per_batch_it_is_told_after_three_batches() -> None:
    finding = pen001(trl_log(1, [0.0] * 6, moved=[False] * 6))
    assert finding is not None and finding.step == 3
    assert "`steps_per_generation`" in finding.remedy


def test_with_several_steps_it_takes_ten_batches_and_the_schedule_is_not_blamed() -> None:
    k = 2
    finding = pen001(trl_log(k, [0.0] * 20 * k))
    assert finding is not None and finding.step == 10 * k, "the last row of the tenth batch"
    assert "in 10 rollout batches in which the policy changed" in finding.summary
    assert "steps_per_generation" not in finding.remedy and "threshold (`threshold`) of LLDS" in finding.remedy
    assert pen001(trl_log(k, [0.0] * (10 * k - 1))) is None
    assert pen001(trl_log(k, [0.0] * 17 + [0.02] + [0.0] * 22)) is None, "one row in which it acts is enough"


def test_rows_that_span_batches_count_as_they_did() -> None:
    """`logging_steps=10` with K = 2: a reward in every row."""
    series = {
        "reward/mean": [0.5] * 12,
        "optimizer_steps_per_rollout": [2.0] * 12,
        "penalty/active_fraction": [0.0] * 12,
        "ratio/max": [1.1] * 12,
    }
    finding = pen001(log_of(series, host="trl", every=10))
    assert finding is not None and finding.step == 100
