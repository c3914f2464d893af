"""Rows of a log that are joined into rollout batches, as those of TRL with several optimizer steps; PEN001 there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Finding
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.batches import joined
from holdfast.diagnose.monitor import Monitor

from ..conftest import log_of

NONE = None


def dense(k: int, batches: int, more: Mapping[str, Any], *, settings: Any = None, every: int = 1) -> Log:
    """A log of TRL: a reward on the first of every `k` rows."""
    reward = [0.1 * (i // k) if i % k == 0 else NONE for i in range(k * batches)]
    log: Log = log_of({"reward/mean": reward, **more}, host="trl", settings=settings, every=every)
    return log


def table(log: Log, name: str) -> dict[int, float]:
    return dict(zip(log.series[name].steps.tolist(), log.series[name].values.tolist(), strict=True))


def test_rows_of_a_batch_are_one_and_the_first_batch_teaches_how_many() -> None:
    norms = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 1.0, 1.0, 4.0]
    log = joined(dense(3, 3, {"grad/norm": norms}))
    assert table(log, "reward/mean") == {1: 0.0, 6: 0.1, 9: 0.2}
    assert table(log, "grad/norm") == {1: 1.0, 2: 2.0, 3: 3.0, 6: 6.0, 9: 2.0}
    assert log.steps.tolist() == [1, 2, 3, 6, 9]


@pytest.mark.parametrize(
    ("settings", "series"),
    [
        ({"steps_per_generation": 6, "num_iterations": 1, "gradient_accumulation_steps": 2}, {}),
        ({}, {"optimizer_steps_per_rollout": [3.0, NONE, NONE] * 3}),
    ],
)
def test_where_the_number_is_known_the_first_batch_is_joined_too(
    settings: dict[str, int], series: dict[str, Any]
) -> None:
    log = joined(dense(3, 3, {"grad/norm": [1.0, 2.0, 3.0] * 3, **series}, settings=settings))
    assert table(log, "grad/norm") == {3: 2.0, 6: 2.0, 9: 2.0}
    assert table(log, "reward/mean") == {3: 0.0, 6: 0.1, 9: 0.2}


def test_rows_may_be_several_steps_of_a_batch() -> None:
    settings = {"steps_per_generation": 4, "num_iterations": 1, "gradient_accumulation_steps": 1}
    log = dense(2, 3, {"grad/norm": np.arange(6.0)}, settings=settings, every=2)
    assert joined(log).series["reward/mean"].steps.tolist() == [4, 8, 12]
    whole = dense(1, 3, {"grad/norm": np.arange(3.0)}, settings=settings, every=4)
    assert joined(whole) is whole


def test_a_series_is_joined_by_what_it_means() -> None:
    log = joined(
        dense(
            2,
            2,
            {
                "ratio/max": [1.0, 1.2, 1.0, 1.5],
                "sampling/importance_sampling_ratio/min": [1.0, 0.7, 0.9, 0.6],
                "lr": [1.0, 2.0, 3.0, 4.0],
                "clip/fraction": [0.0, 0.2, 0.0, 0.4],
                "entropy/mean": [1.0, 1.0, np.nan, 0.5],
                "loss": [1.0, 1.0, np.nan, np.nan],
                "displacement/correct": [NONE, NONE, -0.1, NONE],
                "eval/reward/mean": [NONE, 0.9, NONE, NONE],
            },
        )
    )
    last = {name: part.values[-1] for name, part in log.series.items()}
    assert last["ratio/max"] == 1.5 and last["sampling/importance_sampling_ratio/min"] == 0.6 and last["lr"] == 4.0
    assert last["clip/fraction"] == 0.2 and last["entropy/mean"] == 0.5 and np.isnan(last["loss"])
    assert table(log, "displacement/correct") == {4: -0.1}
    assert table(log, "eval/reward/mean") == {2: 0.9}


def test_a_batch_that_is_not_complete_does_not_count_yet() -> None:
    log = dense(4, 3, {"grad/norm": np.arange(12.0)})
    assert joined(log.until(11)).series["reward/mean"].steps.tolist() == [1, 8]
    assert joined(log.until(12)).series["reward/mean"].steps.tolist() == [1, 8, 12]


def test_a_batch_cut_by_a_resume_is_left_out_and_the_rows_go_on() -> None:
    reward = [0.5, NONE, NONE, 0.5, NONE, NONE, 0.5, NONE, 0.5, NONE, NONE]
    log = joined(log_of({"reward/mean": reward, "grad/norm": np.arange(11.0)}, host="trl"))
    assert log.series["reward/mean"].steps.tolist() == [1, 6, 10]


def test_logs_with_a_reward_in_every_row_and_other_hosts_stay_as_they_are() -> None:
    every = dense(1, 9, {"grad/norm": np.arange(9.0), "eval/reward/mean": [NONE] * 8 + [0.3]})
    assert joined(every) is every
    wide = dense(1, 9, {"optimizer_steps_per_rollout": [2.0] * 9}, every=10)
    assert joined(wide) is wide
    for host in ("holdfast", "verl", "unknown"):
        other = log_of({"reward/mean": [0.5, NONE, 0.5, NONE], "grad/norm": [1.0] * 4}, host=host)
        assert joined(other) is other


def test_evaluations_and_the_summary_are_no_rows_of_a_batch() -> None:
    log = log_of(
        {
            "reward/mean": [0.5, NONE, 0.5, NONE, NONE],
            "grad/norm": [1.0, NONE, 1.0, NONE, NONE],
            "eval/reward/mean": [NONE, 0.4, NONE, 0.6, NONE],
            "train_loss": [NONE] * 4 + [0.1],
        },
        host="trl",
    )
    assert joined(log) is log


@pytest.mark.parametrize("seed", range(4))
def test_what_is_joined_does_not_change_as_the_log_grows(seed: int) -> None:
    """Batches of uneven lengths, with and without a known number of steps."""
    draw = np.random.default_rng(seed)
    rows = 40
    opens = draw.random(rows) < 0.4
    series: dict[str, Any] = {
        "reward/mean": [float(v) if o else NONE for v, o in zip(draw.random(rows), opens, strict=True)],
        "grad/norm": draw.random(rows),
        "entropy/mean": [v if v > 0.2 else NONE for v in draw.random(rows)],
    }
    if seed % 2:
        series["optimizer_steps_per_rollout"] = [3.0 if o else NONE for o in opens]
    log = log_of(series, host="trl")
    whole = joined(log)
    for step in log.steps.tolist():
        part, expected = joined(log.until(step)), whole.until(step)
        assert set(part.series) == set(expected.series)
        for name, one in part.series.items():
            assert one.steps.tolist() == expected.series[name].steps.tolist()
            assert one.values.tolist() == expected.series[name].values.tolist()


def test_the_monitor_says_the_same_as_the_file() -> None:
    """A reward that falls, in a log with four rows a batch, and a NaN in the middle of one, which is found there."""
    rows = 4 * 40
    reward = [(0.8 if i < 80 else 0.1) if i % 4 == 0 else NONE for i in range(rows)]
    norm = [np.nan if i == 10 else 0.5 for i in range(rows)]
    log = log_of({"reward/mean": reward, "grad/norm": norm}, host="trl")
    monitor, found = Monitor(host="trl"), []
    for i in range(rows):
        row = {"grad/norm": norm[i]} | ({} if reward[i] is NONE else {"reward/mean": reward[i]})
        found += [(f.code, f.certain) for f in monitor.observe(i + 1, row)]
    diagnosis = diagnose(log)
    assert found == [(f.code, f.certain) for f in (*diagnosis.notes, *diagnosis.findings)]
    assert [code for code, _ in found] == ["GRD002", "RWD001"] and found[0][1] == 11 and found[1][1] % 4 == 0
    assert diagnosis.notes[0].summary.endswith("This was over by step 13."), "the weights did not become NaN"


def test_a_first_reward_at_step_0_says_nothing_about_the_rows_of_a_batch() -> None:
    log = log_of({"reward/mean": [0.1, NONE, 0.2, NONE], "optimizer_steps_per_rollout": [4.0] * 4}, host="trl")
    from_zero = replace(
        log,
        steps=log.steps - 1,
        series={name: Series(part.steps - 1, part.values) for name, part in log.series.items()},
    )
    assert table(joined(from_zero), "reward/mean") == {0: 0.1, 3: 0.2}


# ---- PEN001 of rows that are optimizer steps


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
    assert finding is not None and finding.certain == 3
    assert "`steps_per_generation`" in finding.remedy


def test_with_several_steps_it_takes_ten_batches_and_the_schedule_is_not_blamed() -> None:
    k = 2
    finding = pen001(trl_log(k, [0.0] * 20 * k))
    assert finding is not None and finding.certain == 10 * k, "the last row of the tenth batch"
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
    assert finding is not None and finding.certain == 100


@pytest.mark.parametrize(("deviation", "contrast"), [(3.2e-8, 0.0), (3e-4, 1.0)])
def test_rounding_is_no_contrast(deviation: float, contrast: float) -> None:
    """Eight rewards of 0.3 in float32, and one other among a thousand such groups."""
    series = {"reward/mean": [0.3] * 30, "reward/std": [deviation] * 30, "rollout/mixed_group_fraction": [1.0] * 30}
    log: Log = log_of(series, host="trl")
    assert set(table(joined(log), "rollout/mixed_group_fraction").values()) == {contrast}
    assert [finding.code for finding in diagnose(log).findings] == ([] if contrast else ["GRP001"])
