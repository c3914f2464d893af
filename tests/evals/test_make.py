"""The table's one command on the bundled world, in its short form: killed, gone on with, complete."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.evals.make import Plan, evaluations, startable, training_jobs
from holdfast.evals.rows import rows_of

ROWS = ["SFT on search episodes", "RAG after SFT", "Rejection sampling", "Search-R1 GRPO", "+ LLDS-A-MA"]


def test_a_row_waits_for_the_row_it_starts_from(tmp_path: Path) -> None:
    recipe = Path(__file__).parents[2] / "src/holdfast/recipes" / "quickstart.toml"
    plan = Plan(recipe=recipe, rows=rows_of(["RAG"]), seeds=(11, 12), settings=(), out=tmp_path)
    first, then = training_jobs(plan)
    assert [job.arm for job in first] == ["SFT on search episodes"] * 2 and [job.seed for job in then] == [11, 12]
    (first[1].folder / "model").mkdir(parents=True)
    ready, waiting = startable(plan, then)
    assert [job.seed for job in ready] == [12] and [job.seed for job in waiting] == [11]
    assert startable(plan, first) == (first, [])
    assert ready[0].config.model.path == str(first[1].folder / "model")
    assert [one.command()[-1] for one in evaluations(plan)] == [
        str(tmp_path / "evals" / j.folder.name) for j in first + then
    ]


@pytest.mark.long
def test_a_short_table_that_was_killed(tmp_path: Path) -> None:
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"HOLDFAST_CACHE": str(tmp_path / "cache"), "PYTHONPATH": source}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "holdfast", "table", "--make", "world", "--short", "--out", str(out)]
    command += [word for text in ("RAG", "Rejection", "LLDS-A-MA") for word in ("--rows", text)]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path
        )

    killed = start()
    first = out / "runs" / "sft-on-search-episodes-s11" / "model" / "config.json"
    deadline = time.monotonic() + 240
    while not first.exists():
        assert killed.poll() is None and time.monotonic() < deadline, killed.communicate()[0]
        time.sleep(0.2)
    killed.send_signal(signal.SIGTERM)
    text, _ = killed.communicate(timeout=60)
    assert killed.returncode == 143 and "The same command goes on" in text
    made = first.stat().st_mtime_ns

    again = start()
    text, _ = again.communicate(timeout=600)
    assert again.returncode == 0, text
    assert first.stat().st_mtime_ns == made, "what was finished is made again"
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert [row["row"] for row in rows] == ROWS
    assert all(row[one] for row in rows for one in ("world-1hop", "world-2hop", "average", "low", "decoding"))
    assert rows[-1]["gain_over"] == "Search-R1 GRPO" and "RAG after SFT" in text
    assert [row["searches"] for row in rows] == ["2", "1", "2", "2", "2"]
    assert "rag, bare prompt" in rows[1]["remarks"]
