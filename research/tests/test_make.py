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

from holdfast.cli.recipes import find as find_recipe
from holdfast_research.jobs import TrainingJob
from holdfast_research.tables.make import Plan
from holdfast_research.tables.rows import rows_of

ROWS = ["SFT on search demonstrations", "RAG after SFT", "Rejection sampling", "Search-R1 GRPO", "+ LLDS-A-MA"]


def test_a_row_waits_for_the_row_it_starts_from(tmp_path: Path) -> None:
    plan = Plan(recipe=find_recipe("quickstart"), rows=rows_of(["RAG"]), seeds=(11, 12), settings={}, out=tmp_path)
    *trainings, first_evaluation, _, _, last_evaluation = plan.jobs()
    assert [job.name for job in trainings] == [
        f"{row}, seed {seed}" for seed in (11, 12) for row in ("SFT on search demonstrations", "RAG after SFT")
    ]
    start, rag = trainings[2:]
    assert isinstance(rag, TrainingJob) and rag.needs == (start,) and start.needs == ()
    assert rag.config.model.path == str(start.folder / "model")
    assert rag.command()[2:6] == ["holdfast_research", "baseline", "rag-sft", str(plan.recipe)]
    assert first_evaluation.needs == (trainings[0],) and "--bare" not in first_evaluation.command()
    assert last_evaluation.folder == tmp_path / "evals" / "rag-after-sft-s12" and "--bare" in last_evaluation.command()


@pytest.mark.long
def test_a_short_table_that_was_killed(tmp_path: Path) -> None:
    environment = os.environ | {"HOLDFAST_CACHE": str(tmp_path / "cache")}
    out = tmp_path / "out"
    command = [sys.executable, "-m", "holdfast_research", "table", "make", "world", "--short", "--out", str(out)]
    command += [word for text in ("RAG", "Rejection", "LLDS-A-MA") for word in ("--rows", text)]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path
        )

    killed = start()
    first = out / "runs" / "sft-on-search-demonstrations-s11" / "model" / "config.json"
    deadline = time.monotonic() + 240
    while not first.exists():
        assert killed.poll() is None and time.monotonic() < deadline, killed.communicate(timeout=60)[0]
        time.sleep(0.2)
    killed.send_signal(signal.SIGTERM)
    text, _ = killed.communicate(timeout=60)
    assert killed.returncode == 143 and "The same command continues" in text
    made = first.stat().st_mtime_ns

    again = start()
    text, _ = again.communicate(timeout=600)
    assert again.returncode == 0, text
    assert first.stat().st_mtime_ns == made, "what was finished is made again"
    rows = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [row["row"] for row in rows] == ROWS
    assert all(row[one] for row in rows for one in ("world-1hop", "world-2hop", "average", "low", "decoding"))
    assert rows[-1]["gain_over"] == "Search-R1 GRPO" and "RAG after SFT" in text
    assert [row["searches"] for row in rows] == ["2", "1", "2", "2", "2"]
    assert "rag, bare prompt" in rows[1]["remarks"]
