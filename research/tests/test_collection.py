"""`collection`: many runs in one file."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from holdfast_research import collection

RUNS = {"b": {"log": "1\n", "λ": "η"}, "a": {"log": ""}}


def test_what_is_written_is_read_and_its_order_changes_no_byte(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert collection.read(first) == {}
    collection.write(first, RUNS)
    collection.write(second, dict(reversed(RUNS.items())))
    assert collection.read(first) == RUNS and list(collection.read(first)) == ["a", "b"]
    assert first.read_bytes() == second.read_bytes()
    collection.write(first, {})
    assert collection.read(first) == {} and collection.read(second) == RUNS


def test_equal_runs_are_not_packed_again(tmp_path: Path) -> None:
    packed = lzma.compress(json.dumps(RUNS).encode(), preset=0)
    (tmp_path / "runs").write_bytes(packed)
    collection.write(tmp_path / "runs", RUNS)
    assert (tmp_path / "runs").read_bytes() == packed
