"""The report of a run under way: how often it is written, and what happens when it cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.train import live_report
from holdfast.train.listener import StepResult
from holdfast.train.live_report import SHARE, LiveReport

A_STEP = StepResult(step=1, metrics={})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    rows = [{"step": step, "time": 0.0, "reward/mean": step / 10} for step in range(8)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.mark.parametrize("cost", [0.02, 0.4, 3.0])
def test_it_takes_a_hundredth_of_the_time(run_dir: Path, monkeypatch: pytest.MonkeyPatch, cost: float) -> None:
    clock, spent = Clock(), []

    def slow(_: Path, live: bool) -> None:
        clock.now += cost
        spent.append(cost)

    monkeypatch.setattr(live_report, "_write", slow)
    report = LiveReport(run_dir, pytest.fail, clock)
    shares = []
    for _ in range(20_000):
        clock.now += 0.2
        report.step(A_STEP)
        if spent and not shares:  # the first one cannot be known before
            shares.append(0.0)
            spent.clear()
            clock_started = clock.now
    assert len(spent) > 5
    assert 0.5 * SHARE < sum(spent) / (clock.now - clock_started) <= SHARE


def test_it_is_not_written_at_once(run_dir: Path) -> None:
    clock = Clock()
    report = LiveReport(run_dir, pytest.fail, clock)
    report.step(A_STEP)
    assert not (run_dir / "report.html").exists()
    clock.now += 51
    report.step(A_STEP)
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")


def test_it_is_live_until_the_run_ends(run_dir: Path) -> None:
    report = LiveReport(run_dir, pytest.fail)
    report.write(live=True)
    assert '"live":5' in (run_dir / "report.html").read_text()
    report.close()
    assert '"live":null' in (run_dir / "report.html").read_text()


def test_what_goes_wrong_is_said_once(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Path, live: bool) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(live_report, "_write", broken)
    said: list[str] = []
    report = LiveReport(run_dir, said.append)
    report.write(live=True)
    report.write(live=True)
    assert said == ["report.html was not written: by zero"]


def test_a_run_that_logged_nothing_has_no_report(tmp_path: Path) -> None:
    LiveReport(tmp_path, pytest.fail).write(live=True)
    assert not any(tmp_path.iterdir())
