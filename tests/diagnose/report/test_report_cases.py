"""Case studies in a report: read from what the probe writes, drawn as text, and left out where they cannot be read."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.diagnose.report import ReportedRun, reported, write_report
from holdfast.diagnose.report.cases import cases_html, read_cases

HOSTILE = "</script><img src=x onerror=alert(1)>"


def side(correct: bool, *changes: float) -> dict[str, Any]:
    tokens = [{"text": HOSTILE, "before": -1.0, "after": -1.0 + change, "push": 0.0} for change in changes]
    return {"correct": correct, "answer": HOSTILE, "turns": [{"tokens": tokens, "observation": HOSTILE}]}


def write(folder: Path, name: str, displacement: float) -> Path:
    case = {
        "question": HOSTILE, "golden_answers": [HOSTILE], "labels": ["shared prefix"], "displacement": displacement,
        "push": -0.5, "correct": side(True, -0.5, 0.25), "incorrect": side(False, -1.0),
    }  # fmt: skip
    path = folder / "probes" / f"cases-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"result": {"cases": [case]}}))
    return path


def test_the_newest_cases_are_shown(collapse: ReportedRun, tmp_path: Path) -> None:
    write(tmp_path, "step-000002-seed-0", -2.0)
    os.utime(write(tmp_path, "step-000001-seed-0", -3.0), (1, 1))
    run = reported(collapse.log, collapse.diagnosis, tmp_path)
    (case,) = run.cases
    assert (case.displacement, case.push, case.labels) == (-2.0, -0.5, ("shared prefix",))
    assert [[change for _, change in turn.tokens or ()] for r in case.pair for turn in r.turns] == [
        [-0.5, 0.25],
        [-1.0],
    ]
    page = write_report(tmp_path / "r.html", [run]).read_text(encoding="utf-8")
    assert page.count("<h2>Case studies</h2>") == 1 and "<img" not in page
    (section,) = (part for part in page.split("<section") if part.startswith(' id="cases"'))
    colours = [part.split(')"')[0] for part in section.split("background:rgba(var(--")[1:]]
    assert colours == ["down),0.42", "up),0.21", "down),0.85"]
    assert "shared prefix; displacement -2 nats" in section


def test_cases_in_a_pipe_are_not_waited_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a", 1.0)
    path.unlink()
    os.mkfifo(path)
    found: list[Any] = []
    reader = threading.Thread(target=lambda: found.append(read_cases(tmp_path)), daemon=True)
    reader.start()
    reader.join(10)
    assert found == [()]


def test_without_cases_there_is_no_section(collapse: ReportedRun, tmp_path: Path) -> None:
    assert read_cases(tmp_path) == () and cases_html(()) == ""
    for text in ("", "[]", '{"result": {"cases": [{}]}}', '{"result": {"cases": 3}}'):
        write(tmp_path, "a", 1.0).write_text(text)
        assert read_cases(tmp_path) == ()
    page = write_report(tmp_path / "r.html", [replace(collapse, cases=())]).read_text(encoding="utf-8")
    assert "Case studies" not in page
