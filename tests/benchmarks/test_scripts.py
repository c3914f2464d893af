"""Benchmarks: each runs, small, gives all arms the same work, and counts that work rightly."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rollout
from measuring import median_interval
from step_task import Task

Measured = Callable[..., tuple[Any, str]]
linux = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@pytest.fixture
def measured(run: Callable[..., Any], tmp_path: Path) -> Measured:
    """measured("name.py", *options): what it wrote as JSON, and what it printed."""

    def measured(name: str, *options: object) -> tuple[Any, str]:
        done = run(name, *options, "--json", tmp_path / "out.json")
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "out.json").read_text()), done.stdout

    return measured


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    """Ranks of the classic table for 95 %: 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 18 and 33 of 50."""
    ranks = {n: median_interval(list(range(n, 0, -1)))[1:] for n in (6, 10, 20, 50)}
    assert ranks == {6: (1, 6), 10: (2, 9), 20: (6, 15), 50: (18, 33)}


@pytest.mark.long
def test_reading(measured: Measured) -> None:
    runs = measured("reading.py", "--lines", 50, "--rounds", 2)[0]["runs"]
    assert {"read_log, verl.log", "read_log, wandb.csv", "json.loads, verl.jsonl"} <= set(runs)
    assert all(len(rounds) == 2 and min(one["seconds"] for one in rounds) > 0 for rounds in runs.values())


@pytest.mark.long
def test_costs_of_penalties_and_of_nthr(measured: Measured) -> None:
    for script in ("penalty_cost.py", "nthr_cost.py"):
        result = measured(script, "--shape", "tiny", "--rounds", 2)[0]["tiny"]
        assert {len(seconds) for seconds in result["seconds"].values()} == {2}, "every arm in every round"
    # What NTHR holds more: at most the hidden states, one matrix for the group in flight, and small change.
    shape, peak = result["shape"], result["peak_bytes"]
    assert 0 <= peak["nthr"] - peak["none"] < shape["hidden bytes"] + 4 * shape["matrix bytes"] + 2**16


@pytest.mark.long
def test_patches_of_a_model(measured: Measured) -> None:
    ratios = measured("patches.py", "--layers", 1, "--rounds", 1)[0]
    assert len(ratios) >= 4 and all(len(of_patch) == 1 and of_patch[0] > 0 for of_patch in ratios.values())


@pytest.mark.long
def test_groups_without_contrast(measured: Measured) -> None:
    ratios = measured("group_skip.py", "--rounds", 2)[0]["0.5"]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in ratios.values())


# ---- rollouts and steps


def test_rollouts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = "--turns 2 --questions 1 --group 2 --turn-tokens 4 --observation-tokens 40 --repeats 1 --hidden 16"
    words = [*arguments.split(), "--layers", "1", "--json", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["rollout.py", *words])
    rollout.main()
    results = json.loads((tmp_path / "out").read_text())["2 turns"]
    assert results["loop"]["loop_is_faster_by"] == 1.0
    assert results["forget"]["computed_per_sampled"] == results["generate"]["computed_per_sampled"]


def test_work_is_counted_by_hand() -> None:
    task = rollout.Task(id="a", example_id="0", prompt=tuple(range(10)), seed=0)
    work = rollout.Work(tasks=(task,), lengths={"a": (3, 2)}, protocol=rollout.CLEAN, feedback=tuple(range(7)))
    assert work.sampled == 5
    # Turn 1: 10 prompt tokens and 2 of the 3 sampled ones (the last is not fed). Turn 2 with a cache: the unfed one,
    # 7 of feedback, 1 of the 2 sampled. Without: all 10 + 3 + 7 again, and that 1.
    assert work.computed(cached=True) == 12 + 9
    assert work.computed(cached=False) == 12 + 21


TINY = Task(
    questions=2, group=2, updates=2, turns=3, turn_tokens=32, observation_tokens=60, hidden=16, layers=1, words=400
)


@pytest.mark.long
@pytest.mark.slow
def test_a_step_is_the_scripts(measured: Measured) -> None:
    """Counts of every arm are those that the script alone says."""
    scripts = [TINY.script(q, k) for q in range(TINY.questions) for k in range(TINY.group)]
    tokenizer = TINY.tokenizer(end_token=False)
    prompts = sum(len(tokenizer(f"Question: {text}\n")["input_ids"]) for text in TINY.texts()) * TINY.group
    sampled = sum(sum(s.lengths) for s in scripts)
    tokens = prompts + sampled + sum(len(s.queries) for s in scripts) * TINY.observation_tokens
    counts = {"rollouts": 4, "sampled": sampled, "tokens": tokens, "updates": 2, "mixed groups": 2}
    arms = ["holdfast", *["trl"] * (importlib.util.find_spec("trl") is not None)]
    results, _ = measured("step_vs_trl.py", *TINY.as_options(), "--rounds", 1, "--arms", *arms)
    for arm in arms:
        assert [step["counts"] for step in results[arm]["steps"]] == [counts]
        assert results[arm]["peak_mb"] >= results[arm]["memory_before_mb"] > 50
        seconds = results[arm]["steps"][0]["seconds"]
        assert 0 < seconds["rollout"] + seconds["old log-probs"] + seconds["optimizer steps"] <= seconds["step"] * 1.001


# ---- retrieval


@linux
@pytest.mark.slow
def test_faults(measured: Measured) -> None:
    found, _ = measured("retrieval_faults.py", "--requests", 60, "--timeout", 0.2)
    assert found["before"] == found["after"]
    for name in ("threads", "event loop", "threads, echo", "event loop, echo"):
        assert found[name]["mixed_up"] == 0
        assert found[name]["answered"] + sum(found[name]["failed"].values()) == 15


@linux
@pytest.mark.long
def test_serving_and_sq8(run: Callable[..., Any], measured: Measured, tmp_path: Path) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    assert run("retrieval_task.py", corpus, "--passages", 300).returncode == 0
    command = [sys.executable, "-m", "holdfast", "index", "build", str(corpus), "--out", str(index)]
    subprocess.run(command, check=True, capture_output=True)
    sizes = ("--rounds", 1, "--queries", 20, "--slow", 5, "--clients", 4)
    found, said = measured("retrieval_serving.py", index, corpus, *sizes)
    rows = [line.split() for line in said.splitlines() if line.startswith(("reference own", "single", "batched "))]
    assert {row[-1] for row in rows if "bm25s" not in row} == {"0"}  # answers that differ from one batch
    assert set(found) >= {"reference own", "batched", "cached"}
    done = run("retrieval_sq8.py", "--rows", 3000, "--dimensions", 32, "--queries", 50, "--sets", "100x1.0")
    assert done.returncode == 0 and "recall@3" in done.stdout, done.stderr
