"""Any trainer's log makes a page: the recorded ones of TRL, verl and W&B, by the command too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.readers import read_logs
from holdfast.diagnose.report import reported, write_report

LOGS = Path(__file__).parents[2] / "fixtures" / "logs"
NAMES = sorted(path.name for path in LOGS.iterdir() if path.suffix != ".py" and not path.name.startswith("__"))


def run_folder(folder: Path, rewards: list[float]) -> Path:
    folder.mkdir()
    rows = [{"step": k, "time": 0.0, "reward/mean": reward} for k, reward in enumerate(rewards, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollout = {"step": 1, "question": "Where?", "turns": [{"text": "hm"}], "answer": None, "reward": 0.0}
    (folder / "trajectories.jsonl").write_text(json.dumps(rollout) + "\n")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_log(name: str, browser: Any, tmp_path: Path) -> None:
    logs = read_logs(LOGS / name)
    browser.open(write_report(tmp_path / "r.html", [reported(log, diagnose(log), LOGS / name) for log in logs]))
    assert browser.complaints() == []
    assert browser.js("document.querySelectorAll('#chart-reward path.line').length") >= 1


def test_the_command_writes_runs_side_by_side(tmp_path: Path) -> None:
    one, other = run_folder(tmp_path / "one", [0.5] * 20), run_folder(tmp_path / "other", [0.6] * 20)
    page = tmp_path / "out" / "page.html"
    for paths in ([one, other], [tmp_path]):  # two runs, or the folder of both
        done = CliRunner().invoke(app, ["report", "--out", str(page), *map(str, paths)])
        assert done.exit_code == 0, done.output
        text = page.read_text(encoding="utf-8")
        assert "2 runs" in text and text.count('"question":"Where?"') == 2 and '"name":"other"' in text
    done = CliRunner().invoke(app, ["report", "--out", str(one / "metrics.jsonl" / "page.html"), str(one)])
    assert done.exit_code == 2 and "cannot be written" in done.output
