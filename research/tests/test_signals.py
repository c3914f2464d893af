"""Leads and false alarms, by hand."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.base.glossary import glossary_entry
from holdfast_research.results import warning_rows
from holdfast_research.series import RunSeries
from holdfast_research.signals import SIGNALS, warnings_of

RISE = [0.3, 0.4, 0.5, 0.6, 0.7, 0.75] + [0.8] * 24
SPIRAL = [*RISE, 0.7, 0.6, 0.5, 0.4, 0.3, *[0.2] * 25]  # drops at step 34
HOLD = RISE + [0.8] * 30
DISPLACED = "displacement of correct rollouts below 0"
MakeRun = Callable[..., RunSeries]


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
    assert row == {
        "signal": DISPLACED,
        "before": 2,
        "dropped": 3,
        "leads": [4, 14],
        "median": 9,
        "false": 1,
        "held": 2,
    }
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
