"""The benchmarks of retrieval run, small; their numbers at full size stand in docs/reference/retrieval.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="they read /proc")]


@pytest.fixture
def corpus(run: Run, tmp_path: Path) -> Path:
    assert run("retrieval_task.py", tmp_path / "corpus.jsonl", "--passages", 300).returncode == 0
    return tmp_path / "corpus.jsonl"


@pytest.mark.long
def test_serving(run: Run, corpus: Path, tmp_path: Path) -> None:
    index = [sys.executable, "-m", "holdfast", "index", "build", str(corpus), "--out", str(tmp_path / "index")]
    subprocess.run(index, check=True, capture_output=True)
    sizes = ("--rounds", 1, "--queries", 20, "--slow", 5, "--clients", 4)
    done = run("retrieval_serving.py", tmp_path / "index", corpus, *sizes, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    rows = [
        line.split() for line in done.stdout.splitlines() if line.startswith(("reference own", "single", "batched "))
    ]
    assert {row[-1] for row in rows if "bm25s" not in row} == {"0"}  # answers that differ from one batch
    assert set(json.loads((tmp_path / "out.json").read_text())) >= {"reference own", "batched", "cached"}


def test_faults(run: Run, tmp_path: Path) -> None:
    done = run("retrieval_faults.py", "--requests", 60, "--timeout", 0.2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["before"] == found["after"]
    for name in ("threads", "event loop", "threads, echo", "event loop, echo"):
        assert found[name]["mixed_up"] == 0
        assert found[name]["answered"] + sum(found[name]["failed"].values()) == 15


@pytest.mark.long
def test_sq8(run: Run) -> None:
    done = run("retrieval_sq8.py", "--rows", 3000, "--dimensions", 32, "--queries", 50, "--sets", "100x1.0")
    assert done.returncode == 0, done.stderr
    assert "recall@3" in done.stdout and "30 in a cluster, spread 1.0" in done.stdout
