"""Readings: shares, and what is kept of a measurement."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast_research import readings


def test_wilson() -> None:
    # 8 of 10 at z = 1.96: (0.8 + 0.19208) / 1.38416 = 0.71674 in the middle, 0.22658 to each side.
    low, high = readings.wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-3) and high == pytest.approx(0.9433, abs=1e-3)
    assert readings.wilson(0, 0) == (0.0, 1.0)


def test_a_reading_says_how_and_when_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "READINGS", tmp_path)
    assert readings.kept("one") is None
    readings.keep("one", "python -m x", {"counts": {"a": 1}})
    reading = readings.kept("one")
    assert reading is not None and reading["counts"] == {"a": 1} and reading["command"] == "python -m x"
    assert reading["rules"].rstrip("+").isalnum() and reading["date"].startswith("20")
