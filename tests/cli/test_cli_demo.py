"""`holdfast demo`: what it writes and shows, what it never replaces, and that its logs are those of recorded runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import demo

Holdfast = Callable[..., Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that were opened. The working directory is an empty folder."""
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    return opened


def test_it_diagnoses_both_logs_as_the_command_would(holdfast: Holdfast) -> None:
    text = holdfast("demo").stdout
    for run, code in (("failing", 1), ("stabilised", 0)):
        assert (
            f"$ holdfast diagnose holdfast-demo/{run}\n{holdfast('diagnose', f'holdfast-demo/{run}', code=code).stdout}"
            in text
        )
    failing = json.loads(holdfast("diagnose", "holdfast-demo/failing", "--json", code=1).stdout)
    assert failing["findings"][0]["code"] == "LLD002" and failing["findings"][0]["lead"] > 200
    wide = ("report holdfast-demo", "policy_loss._target_=")  # commands that people copy
    assert max(len(line) for line in text.splitlines() if not any(part in line for part in wide)) <= 80


def test_the_commands_it_names_work(holdfast: Holdfast) -> None:
    text = holdfast("demo").stdout
    (command,) = re.findall(r"^    holdfast (report .*)$", text, re.M)
    holdfast(*command.split())
    assert Path("both.html").is_file()
    (_, module, names) = re.findall(r"^    (from (\S+) import (.*))$", text, re.M)[0]
    (loss_mode,) = re.findall(r"loss_mode=(\w+)$", text, re.M)
    assert module == "holdfast.adapters.trl" and set(names.split(", ")) == {"LLDS", "with_penalties"}
    assert "LLDS(coef=0.2)" in text and "+actor_rollout_ref.actor.policy_loss.penalty_coef=0.2\n" in text
    assert f'"{loss_mode}": VerlLoss(LLDS' in (ROOT / "src/holdfast/adapters/verl_losses.py").read_text()


def test_the_page_is_opened_where_there_is_a_display(
    holdfast: Holdfast, browser: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    holdfast("demo")
    assert "<h1>failing</h1>" in Path("holdfast-demo/report.html").read_text(encoding="utf-8")
    assert browser == []
    monkeypatch.setattr(demo, "is_live", lambda console: True)
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    holdfast("demo")
    assert browser == []
    monkeypatch.setenv("DISPLAY", ":0")
    holdfast("demo", "--no-open")
    assert browser == []
    holdfast("demo", "other place")
    assert browser == [Path("other place/report.html").resolve().as_uri()]
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 1 10.0.0.2 22")
    holdfast("demo")
    assert len(browser) == 1


@pytest.mark.parametrize("name", ["failing/trainer_state.json", "failing", "report.html", "."])
def test_it_replaces_nothing_of_yours(holdfast: Holdfast, name: str) -> None:
    path = Path("holdfast-demo") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    assert "hint: holdfast demo ANOTHER-FOLDER" in holdfast("demo", code=2).stderr
    assert path.read_text() == "mine"
    holdfast("demo", "elsewhere")
