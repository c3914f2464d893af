"""What `holdfast train` says of a run that goes well: progress, closing words, rollouts, commands to copy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.train.listener import Listener, StepResult

Run = Callable[..., Any]


def test_progress_is_plain_where_nobody_watches(trainer: Any, holdfast: Run) -> None:
    def script(run_dir: Path, listener: Listener) -> None:
        listener.stage("training", 2)
        listener.step(StepResult(step=1, metrics={"reward/mean": 0.25}))

    trainer.script = script
    text = holdfast("train").stdout
    assert text.startswith("holdfast · runs/quickstart\ntraining 0/2\nstep 1/2  reward 0.250")
    assert "\x1b" not in text


def test_closing(trainer: Any, holdfast: Run) -> None:
    text = holdfast("train").stdout
    assert "60 steps in 1 min 23 s\n" in text
    assert "Learned and held. Reward rose from 0.24 to 0.48.\n" in text
    rows = {line[:22].strip(): line[22:].split() for line in text.splitlines() if line.startswith("exact match")}
    # 0.45 - 0.2 = 0.25; 0.39 - 0.4 = -0.01
    assert rows["exact match, sampled"] == ["0.200", "0.450", "+0.250"]
    assert rows["exact match, greedy"] == ["0.400", "0.390", "-0.010"]
    assert text.endswith("  holdfast ask runs/quickstart 'Who is the mentor of Mira Tolvan?'\n")


def test_closing_shows_rollouts_a_person_can_read(trainer: Any, holdfast: Run) -> None:
    text = holdfast("train").stdout
    assert (
        "question  Who is the mentor of Mira Tolvan?\n"
        "thinks    her mentor\n"
        "searches  Mira Tolvan mentor\n"
        "finds     1 Mira Tolvan · Mira Tolvan has teacher Kelan Orso.\n"
        "          2 [bold] Zed · Zed has rival Bo.\n"  # no markup of ours
        "answers   Kelan Orso\n"
        "expected  Kelan Orso ✓\n"
    ) in text
    assert "says      hm\nexpected  A ✗ (no answer)\n" in text


def test_commands_to_copy_name_the_program_as_it_can_be_found(
    trainer: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(".venv/bin/holdfast")
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "")
    assert "\n  .venv/bin/holdfast ask runs/quickstart " in holdfast("train").stdout
    monkeypatch.setenv("PATH", str(script.parent.absolute()))
    assert "\n  holdfast ask runs/quickstart-2 " in holdfast("train").stdout
