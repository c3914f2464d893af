"""Alerts of trackers: only where a run is active, with what each tracker takes, and never an error."""

from __future__ import annotations

import logging
import sys
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.diagnose.alerts import raise_alerts
from holdfast.diagnose.finding import Finding

FINDING = Finding(
    code="STP001", step=12, summary="The step is too large.", evidence={}, series=(), remedy="Divide `lr` by five."
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
