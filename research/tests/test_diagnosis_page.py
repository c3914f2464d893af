"""The page on how often diagnose is right: it has what was read, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast_research import readings
from holdfast_research.pages import diagnosis_page
from holdfast_research.pages.diagnosis_page import null_reading, page, set_reading, take

STAMP = {"command": "python -m x", "date": "2026-01-01 10:00", "rules": "abc1234"}


def verdict(rows: int, completions: int, *codes: str, reward: str = "correct") -> dict[str, Any]:
    run = {"rows": rows, "completions": completions, "reward": reward}
    return {"run": run, "codes": list(codes), "steps": [1] * len(codes)}


def test_drawn_runs_are_counted_by_cell() -> None:
    drawn = [verdict(20, 8, "RWD001", "TRN001"), verdict(20, 8), verdict(100, 8), verdict(100, 8)]
    reading = null_reading([*drawn, *(verdict(rows, 8, reward="sparse") for rows in (20, 20, 100, 100))])
    assert reading["findings per run"] == {
        "8 completions a row": {"20 rows": 1.0, "100 rows": 0.0},
        "8 completions a row, sparse rewards": {"20 rows": 0.0, "100 rows": 0.0},
    }
    assert reading["worst"] == 1.0 and reading["all"] == 0.25
    assert reading["findings by code"] == {"RWD001": 1, "TRN001": 1}


def a_set() -> dict[str, Any]:
    def view(name: str, *, found: bool, right: bool) -> dict[str, Any]:
        return {"cause": "truncation", "healthy": False, "view": name, "has_finding": found, "right": right}

    shares = {
        "found by the end": {"hits": 1, "of": 1},
        "right cause first, where the log can tell": {"hits": 0, "of": 1},
        "healthy with a finding": {"hits": 0, "of": 4},
    }
    views = [view("stock", found=True, right=False), view("observed", found=True, right=True)]
    return {"numbers": {"stock": shares, "observed": shares}, "views": views}


def test_a_set_is_counted_by_cause() -> None:
    reading = set_reading(a_set())
    assert reading["causes"] == {
        "truncation": {
            "runs": "1",
            "found, stock": "1",
            "cause first, stock": "0",
            "found, observed": "1",
            "cause first, observed": "1",
        }
    }
    assert reading["numbers"]["stock"]["healthy with a finding"].startswith("0 of 4, 0.00")


BARE = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("in_short", *diagnosis_page._TABLES))


def test_the_page_has_what_was_read_and_whether_it_is_enough() -> None:
    text = page(BARE, {"null_model": {**STAMP, **null_reading([verdict(20, 8), verdict(20, 8, "GRD001")])}})
    assert "abc1234" in text and "2026-01-01" in text
    summary = next(line for line in text.splitlines() if line.startswith("| simulated healthy runs"))
    assert "**0.5**; at most 0.02" in summary

    text = page(BARE, {"fourth": {**STAMP, **set_reading(a_set())}})
    rows = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith(("| blind runs", "| the same"))]
    assert [[cell.startswith("**") for cell in row] for row in rows] == [[False, True, False]] * 2


def test_a_healthy_set_lists_what_is_said_of_each_run() -> None:
    views = [
        {"name": "a", "view": "whole", "has_finding": True, "findings": [["RWD001", 12]], "notes": []},
        {"name": "a", "view": "every 10", "has_finding": False, "findings": [], "notes": [["ZER001", 10]]},
    ]
    reading = diagnosis_page.healthy_set_reading({"views": views})
    assert reading["runs"] == {"a": {"whole": "RWD001@12", "every 10": "no finding; notes: ZER001@10"}}
    assert reading["numbers"]["healthy with a finding"]["whole"].startswith("1 of 1")
    assert reading["numbers"]["healthy with a note"]["every 10"].startswith("1 of 1")


def test_what_another_command_wrote_becomes_a_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "READINGS", tmp_path)
    written = tmp_path / "null.txt"
    written.write_text(json.dumps([verdict(20, 8)]))
    take("null_model", written)
    assert readings.kept("null_model")["runs"] == 1  # type: ignore[index]


def test_the_page_in_the_docs_is_that_of_the_readings_kept() -> None:
    kept = {name: r for name in diagnosis_page._TABLES if (r := readings.kept(name)) is not None}
    shown = diagnosis_page.PAGE.read_text(encoding="utf-8")
    assert shown == page(shown, kept), "write it: pages.diagnosis_page"
