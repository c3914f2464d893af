"""The rollout benchmark runs, gives all arms the same work, and counts that work rightly."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("rollout_benchmark", BENCHMARKS / "rollout.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rollout_benchmark", module)
    spec.loader.exec_module(module)
    return module


def test_it_runs(bench, monkeypatch, tmp_path, capsys):
    arguments = "--turns 2 --questions 1 --group 2 --turn-tokens 4 --observation-tokens 40 --repeats 1 --hidden 16"
    monkeypatch.setattr(
        sys, "argv", ["rollout.py", *arguments.split(), "--layers", "1", "--json", str(tmp_path / "out")]
    )
    bench.main()
    printed = capsys.readouterr().out
    assert all(arm in printed for arm in ("loop", "forget", "generate"))
    results = json.loads((tmp_path / "out").read_text())["2 turns"]
    assert results["loop"]["loop_is_faster_by"] == 1.0
    assert results["forget"]["computed_per_sampled"] == results["generate"]["computed_per_sampled"]


def test_work_is_counted_by_hand(bench):
    task = bench.Task(id="a", example_id="0", prompt=tuple(range(10)), seed=0)
    work = bench.Work(tasks=(task,), lengths={"a": (3, 2)}, protocol=bench.CLEAN, feedback=tuple(range(7)))
    assert work.sampled == 5
    # Turn 1: 10 prompt tokens and 2 of the 3 sampled ones (the last is not fed). Turn 2 with a cache: the unfed one,
    # 7 of feedback, 1 of the 2 sampled. Without: all 10 + 3 + 7 again, and that 1.
    assert work.computed(cached=True) == 12 + 9
    assert work.computed(cached=False) == 12 + 21
