"""Small benchmarks: each runs, gives all arms the same work, and counts that work rightly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import penalty_cost
import rollout
from holdfast.base.scoring import MODES, exact_match
from measuring import median_interval

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_both_sides_score_alike() -> None:
    from scoring_speed import cases, plain_exact_match

    made = cases(2000)
    for mode in (mode for mode in MODES if mode != "unicode"):  # no script has that one
        ours = [exact_match(prediction, golds, mode=mode) for prediction, golds in made]
        plain = [plain_exact_match(prediction, golds, mode) for prediction, golds in made]
        differ = [case for case, a, b in zip(made, ours, plain, strict=True) if a != b]
        if mode == "table":  # the one deviation: texts of which nothing is left
            differ = [case for case in differ if not set(case[0].split()) <= {"the", "a", "an"}]
        assert differ == []
        assert 500 < sum(ours) < 1500


def test_a_row_for_each_mode(run: Run, tmp_path: Path) -> None:
    done = run("scoring_speed.py", "--count", 200, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["mode", *MODES]
    numbers = json.loads((tmp_path / "out.json").read_text())
    assert all(row["per_second"] > 0 and row["plain_per_second"] > 0 for row in numbers.values())


# ---- reading logs


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


# ---- costs of NTHR


@pytest.mark.long
def test_both_arms_are_timed_in_every_round(run, tmp_path: Path) -> None:
    done = run("nthr_cost.py", "--shape", "tiny", "--rounds", 2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())["tiny"]
    assert {arm: len(seconds) for arm, seconds in result["seconds"].items()} == {"plain": 2, "nthr": 2}
    assert done.stdout.splitlines()[-1].split()[0] == "tiny"
    # What NTHR holds more: at most the hidden states, one matrix for the group in flight, and small change.
    shape, peak = result["shape"], result["peak_bytes"]
    assert 0 <= peak["nthr"] - peak["plain"] < shape["hidden bytes"] + 4 * shape["matrix bytes"] + 2**16


# ---- costs of penalties


@pytest.mark.long
def test_every_arm_is_timed_in_every_round(run, tmp_path: Path) -> None:
    done = run("penalty_cost.py", "--shape", "tiny", "--rounds", 2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())["tiny"]
    assert {arm: len(seconds) for arm, seconds in result["seconds"].items()} == dict.fromkeys(penalty_cost.ARMS, 2)
    assert set(result["cost_percent"]) == {*penalty_cost.ARMS} - {"none"}
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["plain", "llds-action", "llds-response", "sapo"]


# ---- measuring


def test_the_interval_of_a_median_is_that_of_the_tables() -> None:
    """Ranks of the classic table for 95 %: 1 and 6 of 6, 2 and 9 of 10, 6 and 15 of 20, 18 and 33 of 50."""
    ranks = {n: median_interval(list(range(n, 0, -1)))[1:] for n in (6, 10, 20, 50)}
    assert ranks == {6: (1, 6), 10: (2, 9), 20: (6, 15), 50: (18, 33)}


# ---- the rollout benchmark runs


def test_it_runs(monkeypatch, tmp_path, capsys):
    arguments = "--turns 2 --questions 1 --group 2 --turn-tokens 4 --observation-tokens 40 --repeats 1 --hidden 16"
    monkeypatch.setattr(
        sys, "argv", ["rollout.py", *arguments.split(), "--layers", "1", "--json", str(tmp_path / "out")]
    )
    rollout.main()
    printed = capsys.readouterr().out
    assert all(arm in printed for arm in ("loop", "forget", "generate"))
    results = json.loads((tmp_path / "out").read_text())["2 turns"]
    assert results["loop"]["loop_is_faster_by"] == 1.0
    assert results["forget"]["computed_per_sampled"] == results["generate"]["computed_per_sampled"]


def test_work_is_counted_by_hand():
    task = rollout.Task(id="a", example_id="0", prompt=tuple(range(10)), seed=0)
    work = rollout.Work(tasks=(task,), lengths={"a": (3, 2)}, protocol=rollout.CLEAN, feedback=tuple(range(7)))
    assert work.sampled == 5
    # Turn 1: 10 prompt tokens and 2 of the 3 sampled ones (the last is not fed). Turn 2 with a cache: the unfed one,
    # 7 of feedback, 1 of the 2 sampled. Without: all 10 + 3 + 7 again, and that 1.
    assert work.computed(cached=True) == 12 + 9
    assert work.computed(cached=False) == 12 + 21
