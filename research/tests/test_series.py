"""Numbers and moments of a run, leads and false alarms, by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.log import glossary_entry
from holdfast_research.results import warning_rows
from holdfast_research.series import RunSeries, read_run, summarise
from holdfast_research.signs import SIGNALS, warnings_of
from research.tests.conftest import FALL, RISE

MakeRun = Callable[..., RunSeries]


def test_summary_by_hand(make_run: MakeRun) -> None:
    run = make_run(
        reward=[0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 0.1],
        metrics={
            "entropy/mean": [2.0, 1, 1, 1, 1, 1, 3],
            "displacement/correct": [-0.25, 0.5],
            "rollout/invalid_fraction": [1.0, 1, 0, 0, 0, 0.25, 0.5],
            "clip/fraction": [0.25, 0.75],
        },
    )
    # Five-step means: (0 + .1 + .2 + .3 + .4) / 5 = .2, (.1 + … + .9) / 5 = .38, (.2 + .3 + .4 + .9 + .1) / 5 = .38
    r = summarise(run)
    assert r.first == pytest.approx(0.2)
    assert r.peak == pytest.approx(0.38)
    assert r.last == pytest.approx(0.38)
    assert (r.entropy_first, r.entropy_last) == (2.0, pytest.approx(7 / 5))
    assert (r.invalid_last, r.clipped_last) == (pytest.approx(0.75 / 5), 0.5)
    assert r.displacement == 0.125
    assert (r.em_before, r.em_after) == (0.2, 0.5)
    assert make_run(reward=[0.25, 0.75]).means("reward/mean") == ([2], [0.5]), "shorter than the window: one mean"
    bare = summarise(make_run())
    assert all(map(math.isnan, (bare.entropy_last, bare.invalid_last, bare.clipped_last)))


def test_a_run_that_came_back_has_fallen(make_run: MakeRun) -> None:
    run = make_run(reward=[0.2] * 5 + [0.6] * 25 + [0.1] * 5 + [0.7] * 30)
    r = summarise(run)
    assert (r.peak, r.lowest_after, r.last) == pytest.approx((0.6, 0.1, 0.7))
    # Means above .48, 80 % of .6, on the way up (.52), at .6, and on the way down (.5): 1 + 21 + 1
    assert r.held == 23 and run.collapsed and run.fell
    # A larger loss from a higher peak, of a smaller share of it, hides nothing.
    run = make_run(reward=[0.2] * 10 + [0.5] * 10 + [0.2] * 10 + [0.9] * 20 + [0.56] * 10)
    assert (summarise(run).peak, summarise(run).lowest_after) == pytest.approx((0.5, 0.2)) and run.fell
    # A dip of less leaves the highest mean the peak.
    assert summarise(make_run(reward=[0.6] * 20 + [0.4] * 5 + [0.7] * 20)).peak == pytest.approx(0.7)
    # A run that never rose can fall all the same.
    assert make_run(reward=[0.5] * 20 + [0.1] * 5 + [0.7] * 20).fell


def test_reading_and_what_cannot_be_read(tmp_path: Path, write_run: Callable[..., Path]) -> None:
    folder = write_run(tmp_path / "run", [0.1, 0.2], {"entropy/mean": [1.0]})
    run = read_run(folder, "GRPO", 7)
    assert (run.arm, run.seed, run.series("reward/mean")) == ("GRPO", 7, ([1, 2], [0.1, 0.2]))
    assert run.series("entropy/mean") == ([1], [1.0])
    with pytest.raises(DataError, match="not finished"):
        read_run(tmp_path, "GRPO", 1)
    with pytest.raises(DataError, match="no step with a reward"):
        read_run(write_run(tmp_path / "empty", []), "GRPO", 1)


# ---- signals: leads and false alarms


SPIRAL = [*RISE, *FALL]  # drops at step 34
HOLD = RISE + [0.8] * 30
DISPLACED = "displacement of correct rollouts below 0"


def test_leads_and_false_alarms(make_run: MakeRun) -> None:
    def below_from(step: int) -> dict[str, list[float]]:
        return {"displacement/correct": [0.001] * (step - 1) + [-1.0] * (61 - step)}

    runs = {
        "A": (
            make_run("A", 1, SPIRAL, below_from(20)),
            make_run("A", 2, SPIRAL, below_from(30)),
            make_run("A", 3, SPIRAL, below_from(34)),  # with the drop is not before it
            make_run("A", 4, SPIRAL),  # does not log the series
        ),
        # All drops come at step 34; what turns later had no equal chance to warn.
        "B": (make_run("B", 1, HOLD, below_from(25)), make_run("B", 2, HOLD, below_from(50)), make_run("B", 3, HOLD)),
        "short": (make_run("short", 1, SPIRAL[:39], below_from(20)),),
    }
    (row,) = (row for row in warnings_of(runs) if row["signal"] == DISPLACED)
    assert row == {"signal": DISPLACED, "before": 2, "dropped": 3, "leads": [4, 14], "median": 9, "false": 1, "held": 2}
    assert (DISPLACED, "2 of 3", "9 (4 to 14)", "1 of 2") in warning_rows({"warnings": warnings_of(runs)})

    calm = {"displacement/correct": [0.001] * len(SPIRAL)}
    rows = warning_rows({"warnings": warnings_of({"A": (make_run("A", 1, SPIRAL, calm),)})})
    assert (DISPLACED, "0 of 1", "–", "0 of 0") in rows, "nothing turned"
    assert warning_rows({"warnings": warnings_of({"A": (make_run("A", 1, SPIRAL[:20]),)})}) == [], "a short run"


def test_every_signal_reads_a_metric_that_exists_and_can_turn() -> None:
    asked: list[str] = []

    class Spy:
        def means(self, metric: str) -> tuple[list[int], list[float]]:
            asked.append(metric)
            # Up and down by far: every threshold of every signal is crossed.
            return [5, 6, 7], [0.0, 100.0, -100.0]

    for signal in SIGNALS:
        assert signal.turns(Spy()) in (6, 7), signal.says  # type: ignore[arg-type]
    assert all(glossary_entry(metric) for metric in asked) and len(asked) >= len(SIGNALS)
