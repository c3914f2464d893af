"""Files that were made to take long: four times the text may take about four times the time, not sixteen times."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.readers import read_logs
from holdfast.diagnose.readers.columns import Columns, series_of
from holdfast.diagnose.readers.dicts import Dicts
from holdfast.diagnose.readers.facts import row_in
from holdfast.diagnose.readers.rollouts import forms
from holdfast.diagnose.readers.text import Tally, parsed

from .test_readers_stores import blocks_of, history

_LINEAR = 9
"""Between 4 and 16: how much longer four times the text may take."""


def tally() -> Tally:
    return Tally(Path("nowhere"))


def dicts_in(line: str) -> list[Any]:
    return list(Dicts(tally()).rows([(1, line)]))


TEXTS: dict[str, tuple[int, Callable[[int], object]]] = {
    "digits": (4000, lambda n: row_in(f"step 1 loss {'1' * n}x")),
    "blanks after a step": (4000, lambda n: row_in(f"loss step{' ' * n}x")),
    "blanks after an epoch": (4000, lambda n: row_in(f"loss epoch{' ' * n}x")),
    "steps": (800, lambda n: row_in(f"loss {'step1' * n}")),
    "the process of a bar": (4000, lambda n: dicts_in(f"({'pid=' * n}x%|a|1/2[")),
    "blanks before a bar": (8000, lambda n: dicts_in(f"{' ' * n}x%|a|1/2[")),
    "a dotted name": (4000, lambda n: parsed(f"{{'a': tensor(0.5), 'b': {'a.' * n}}}")),
    "a tensor that does not end": (8000, lambda n: parsed(f"{{'a': nan, 'b': tensor({'1' * n}}}")),
    "rows in a line": (4000, lambda n: dicts_in("{'loss': 1, 'reward': 1} " * n)),
}


def seconds(work: Callable[[int], object], size: int) -> float:
    """Of this process alone: the machine may be busy."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work(size)
        times.append(time.process_time() - began)
    return min(times)


def check_linear(work: Callable[[int], object], size: int) -> None:
    assert seconds(work, 4 * size) < _LINEAR * max(seconds(work, size), 1e-4)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text(name: str) -> None:
    size, work = TEXTS[name]
    check_linear(work, size)


def media(path: Path, n: int) -> None:
    row = history(**{"train/reward": 1, "_step": 1}, **{f"x{i}._type": '"a"' for i in range(n)})
    path.write_bytes(blocks_of([row]))


def chart(path: Path, n: int) -> None:
    names = ",".join(f"run {i} - train/reward" for i in range(n))
    path.write_text("\n".join([f"Step,{names}", *(f"{step}{',0.5' * n}" for step in range(2))]))


def wide_table(path: Path, n: int) -> None:
    path.write_text(f"Step{',x' * n}\n" + "1,2\n" * n)


def notebook(path: Path, n: int) -> None:
    outputs = [{"data": {"text/html": "<table><tr><td" * n}}, {"text": "step 1 reward 0.5\nstep 2 reward 0.5\n"}]
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "outputs": outputs}]}))


def database_of_runs(path: Path, n: int) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name, step, metrics)")
        database.execute("CREATE TABLE configs (run_name, config)")
        rows = [(f"run {i}", step, '{"train/reward": 0.5}') for step in range(2) for i in range(n)]
        database.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", rows)
        database.executemany("INSERT INTO configs VALUES (?, '{}')", [(f"run {i}",) for i in range(n)])


@pytest.mark.parametrize(
    ("name", "write", "size"),
    [
        ("run.wandb", media, 4000),
        ("chart.csv", chart, 500),
        ("history.csv", wide_table, 2000),
        ("trackio.db", database_of_runs, 300),
        ("run.ipynb", notebook, 8000),
        ("job.log", lambda path, n: path.write_text(f"({'pid=1 ' * n}\nstep:1 - a:1\n"), 4000),
        ("run.log", lambda path, n: path.write_text("{'actor_rollout_ref'\n" + " a\n" * n + "step:1 - a:1\n"), 8000),
    ],
)
def test_a_file(tmp_path: Path, name: str, write: Callable[[Path, int], object], size: int) -> None:
    for n in (size, 4 * size):
        (tmp_path / str(n)).mkdir()
        write(tmp_path / str(n) / name, n)
    check_linear(lambda n: read_logs(tmp_path / str(n) / name), size)


def test_a_run_that_starts_again_and_again() -> None:
    def read(n: int) -> None:
        columns = Columns(tally(), null_is_nan=True)
        for i in range(2 * n):
            columns.add(i, 1 + i % 2, {"epoch": float(i), "loss": 0.5})
        _, steps = series_of(columns, columns.tally)
        assert len(steps) == 2 * n

    check_linear(read, 4000)


def test_a_trace_of_many_nodes_takes_work_for_each_once() -> None:
    looked_at = 0

    class Node(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            nonlocal looked_at
            looked_at += name == "parent"
            return super().get(name, default)

    class Number(int):
        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return int(self) == other

        __hash__ = int.__hash__

    nodes = [Node(parent=Number(k - 1) if k else None, message={"role": "user", "content": str(k)}) for k in range(500)]
    (row,) = forms._traces({"nodes": nodes, "rewards": {}})
    assert [message["content"] for message in row["messages"]] == [str(k) for k in range(500)]
    assert looked_at < 5 * 500
