"""`benchmarks/reading.py` reads every format it measures."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.long
def test_every_format_is_measured(run: Run, tmp_path: Path) -> None:
    done = run("reading.py", "--lines", 50, "--rounds", 2, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("50 lines of 40 metrics")
    runs = json.loads((tmp_path / "r.json").read_text())["runs"]
    ours = {f"read_log, {name}" for name in ("metrics.jsonl", "verl.jsonl", "verl.log", "wandb.csv")}
    assert ours | {"json.loads, verl.jsonl"} <= set(runs)
    assert all(len(rounds) == 2 and min(one["seconds"] for one in rounds) > 0 for rounds in runs.values())
    assert "json.loads, verl.jsonl" in done.stdout and " 1.00 " in done.stdout
