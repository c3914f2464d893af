"""Two processes: the log counts the rollouts of both, and nobody waits for a call the other does not make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")


@pytest.mark.slow
def test_two_processes_log_as_one(tmp_path: Path) -> None:
    script = Path(__file__).with_name("two_processes.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    quiet = {"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*command, str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | quiet,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:  # else the two would wait for each other for ever
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors[-3000:]
    rows = json.loads(next(line for line in said.splitlines() if line.startswith("LOG"))[4:])
    steps = [row for row in rows if "loss" in row]
    assert len(steps) == 4
    for row in steps:
        assert row["loss"] == pytest.approx(row["holdfast/loss/host"] + row["holdfast/loss/penalty"], abs=1e-5)
    assert steps[1]["holdfast/loss/penalty"] > 0
    # Rows of 3, 4, 5 and of 5, 6, 7 tokens and 2 more, in turn: their mean over both processes.
    first = [3 + row % 3 + 2 for row in range(8)]
    assert steps[0]["holdfast/rollout/length"] == pytest.approx(sum(2 * n + 2 for n in first) / 16)
    assert "holdfast/likelihood/correct/action_3" in steps[0]  # only the second process has third actions
    assert steps[2]["holdfast/displacement/rollouts"] == 6
