"""The monitor's own business: resumed runs, rows of a file, and long logs; and alerts that trackers get."""

from __future__ import annotations

import logging
import math
import sys
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.diagnose.finding import Finding
from holdfast.diagnose.monitor import Monitor, metrics_rows, raise_alerts


def test_a_step_seen_before_begins_anew() -> None:
    monitor = Monitor()
    for step in range(1, 6):
        monitor.observe(step, {"grad/norm": 0.5, "reward/mean": float(step)})
    assert [f.code for f in monitor.observe(6, {"grad/norm": math.nan, "later": 1.0})] == ["GRD002"]
    assert monitor.observe(4, {"grad/norm": 0.4}) == ()
    assert monitor.log().steps.tolist() == [1, 2, 3, 4] and "later" not in monitor.log().series
    assert monitor.log().series["reward/mean"].values.tolist() == [1.0, 2.0, 3.0]
    assert monitor.observe(5, {"grad/norm": 0.4}) == ()
    again = monitor.observe(6, {"grad/norm": math.inf})
    assert [(f.code, f.certain) for f in again] == [("GRD002", 6)], "what is found again is told again"


def test_metrics_of_one_step_may_come_in_parts() -> None:
    monitor = Monitor()
    monitor.observe(1, {"reward/mean": 0.5})
    monitor.observe(1, {"eval/em": 0.25, "reward/mean": 0.75})
    log = monitor.log()
    assert log.steps.tolist() == [1]
    assert {name: one.values.tolist() for name, one in log.series.items()} == {"reward/mean": [0.75], "eval/em": [0.25]}


def test_a_replay_finds_what_was_found_step_by_step() -> None:
    rows = [(step, {"reward/mean": 0.5, "retrieval/error_fraction": 0.9 * (step > 20)}) for step in range(1, 41)]
    monitor, again = Monitor(), Monitor()
    found_live = [finding for step, metrics in rows for finding in monitor.observe(step, metrics)]
    assert found_live and list(again.replay(rows)) == found_live
    assert again.observe(41, rows[-1][1]) == ()
    of_file = [{"step": 1, "time": 1e9, "grad/norm": 0.5}, {"step": 2, "time": 1e9, "dropped": ["grad/norm"]}]
    assert [(f.code, f.certain) for f in Monitor().replay(metrics_rows(of_file))] == [("GRD002", 2)]


def test_what_begins_again_is_found_again() -> None:
    failing = [0.0, 0.9, *[0.0] * 6, 0.9]
    monitor = Monitor()
    found = [monitor.observe(step, {"retrieval/error_fraction": share}) for step, share in enumerate(failing, 1)]
    assert [finding.certain for new in found for finding in new] == [2, 9]


def test_a_note_does_not_hide_the_finding_that_it_becomes() -> None:
    """Without contrast, TRL's rows are a note, and the twentieth is a finding."""
    monitor, row = Monitor(host="trl"), {"reward/mean": 0.3, "rollout/mixed_group_fraction": 0.0}
    found = {step: [finding.code for finding in monitor.observe(step, row)] for step in range(1, 23)}
    assert {step: codes for step, codes in found.items() if codes} == {20: ["GRP001"]}


def test_a_long_log_is_not_judged_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    rule = SimpleNamespace(rows=lambda log, batches: log, find=lambda log: judged.append(len(log.steps)))
    monkeypatch.setattr("holdfast.diagnose.diagnose.RULES", {"RWD001": rule})
    monitor = Monitor()
    monitor.replay((step, {"reward/mean": 0.5}) for step in range(20_000))
    for step in range(20_000, 20_100):
        monitor.observe(step, {"reward/mean": 0.5})
    assert judged == [20_000, *range(20_011, 20_100, 11)]


# ---- alerts of trackers


FINDING = Finding(
    code="STP001",
    step=12,
    certain=12,
    summary="The step is too large.",
    evidence={},
    series=(),
    remedy="Divide `lr` by five.",
)


class AlertLevel(Enum):
    WARN = "warn"


@pytest.fixture(autouse=True)
def no_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("trackio", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def fake_trackio(run: object, alerts: list[dict[str, Any]]) -> SimpleNamespace:
    variables = SimpleNamespace(current_run=SimpleNamespace(get=lambda: run))
    return SimpleNamespace(context_vars=variables, AlertLevel=AlertLevel, alert=lambda **alert: alerts.append(alert))


def test_each_active_tracker_gets_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    alerts: list[dict[str, Any]] = []
    run = SimpleNamespace(alert=lambda **alert: alerts.append(alert))
    monkeypatch.setitem(sys.modules, "trackio", fake_trackio(object(), alerts))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    assert raise_alerts(FINDING) == ["trackio", "wandb"]
    assert [alert["level"] for alert in alerts] == [AlertLevel.WARN, "WARN"]
    assert {alert["title"] for alert in alerts} == {"holdfast: STP001 at step 12"}
    assert {alert["text"] for alert in alerts} == {"The step is too large. Divide lr by five."}
    assert all(len(alert["title"]) < 64 for alert in alerts)


def test_a_tracker_without_a_run_is_left_alone_and_none_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert raise_alerts(FINDING) == [] and not {"trackio", "wandb"} & set(sys.modules)
    alerts: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "trackio", fake_trackio(None, alerts))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    assert raise_alerts(FINDING) == [] and alerts == []


def test_a_tracker_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def fail(**alert: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(alert=fail)))
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        assert raise_alerts(FINDING) == []
    assert "wandb did not accept the alert about STP001: no network" in caplog.text
