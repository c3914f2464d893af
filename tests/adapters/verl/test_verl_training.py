"""verl's own training worker with our losses: micro-batches, optimizer steps and metrics all the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl")
pytest.importorskip("verl.plugin", reason="verl 0.8 has no platforms, so none for a CPU")

SCRIPT = Path(__file__).with_name("train_on_cpu.py")
SOURCES = SCRIPT.parents[3] / "src"


@pytest.fixture(scope="module")
def runs(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    import os

    names = ["vanilla", "holdfast_observe", "holdfast_llds", "holdfast_search_sapo"]
    names += ["holdfast_llds:all", "holdfast_llds:none"]
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path_factory.mktemp("run")), str(model_folder)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run([*command, *names], env=environment, capture_output=True, text=True, timeout=600)
    lines = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [line["loss"] for line in lines] == names, done.stderr[-3000:]
    return {line["loss"]: line for line in lines}


@pytest.mark.slow
def test_observing_changes_no_weight_and_adds_the_series(runs: dict[str, dict[str, Any]]) -> None:
    plain, watched = runs["vanilla"], runs["holdfast_observe"]
    assert watched["weights"] == plain["weights"]
    assert watched["actor/pg_loss"] == plain["actor/pg_loss"]
    assert not any(name.startswith("holdfast/") for name in plain)
    assert len(watched["holdfast/likelihood/positive"]) == 4  # one number per optimizer step


@pytest.mark.slow
@pytest.mark.parametrize("name", ["holdfast_llds", "holdfast_search_sapo"])
def test_a_penalty_is_silent_on_the_first_step_and_at_work_later(runs: dict[str, dict[str, Any]], name: str) -> None:
    run = runs[name]
    active, penalty = run["holdfast/penalty/active_fraction"], run["holdfast/loss/penalty"]
    assert active[0] == penalty[0] == run["holdfast/drift/positive"][0] == 0.0
    assert run["holdfast/ratio/mean"][0] == 1.0
    assert max(active) > 0 and max(penalty) > 0
    assert run["weights"] != runs["vanilla"]["weights"]
    # the same rollouts in both passes: their old likelihood stands, what moves is the drift
    assert run["holdfast/likelihood/positive"][:2] == run["holdfast/likelihood/positive"][2:]
    assert run["holdfast/drift/positive"][2] != 0.0


@pytest.mark.slow
def test_what_the_agent_loop_says_of_the_answer_reaches_the_loss(runs: dict[str, dict[str, Any]]) -> None:
    """A weight of 0 on every token is no penalty, and one on no token is the whole penalty."""
    assert runs["holdfast_llds:all"]["weights"] == runs["vanilla"]["weights"]
    assert runs["holdfast_llds:none"]["weights"] == runs["holdfast_llds"]["weights"] != runs["vanilla"]["weights"]
