"""What people keep: several rows a step, lists of runs, tables of pandas, lines wrapped in JSON, runs that died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log, read_logs
from holdfast.errors import DataError

REWARDS = [round(0.1 + 0.02 * i, 3) for i in range(12)]
NUMBERED = list(enumerate(REWARDS, 1))


def log_of(folder: Path, text: str, name: str) -> Log:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_log(path)


def points(log: Log) -> list[tuple[int, float]]:
    series = log.series["reward/mean"]
    return list(zip(series.steps.tolist(), series.values.round(6).tolist(), strict=True))


def test_rows_of_most_steps_are_averaged_and_a_single_row_again_is_replaced(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": r + d} for i, r in NUMBERED for d in (-0.25, 0.25)]
    log = log_of(tmp_path, "\n".join(map(json.dumps, rows)), "log.jsonl")
    assert points(log) == NUMBERED and any("averaged by step" in note for note in log.notes)
    once = [{"step": i, "reward": r} for i, r in [*NUMBERED, (12, 0.75)]]
    log = log_of(tmp_path, "\n".join(map(json.dumps, once)), "once.jsonl")
    assert points(log) == [*NUMBERED[:-1], (12, 0.75)]


def test_a_list_of_runs_is_read_run_by_run_and_lists_without_a_reward_are_left_out(tmp_path: Path) -> None:
    def run(name: str, sign: int) -> dict[str, object]:
        rows = [{"step": i, "reward": sign * r} for i, r in NUMBERED]
        return {"run_id": f"{sign}:0", "name": name, "seed": 3, "trace": [1.0, 2.0], "log": rows}

    runs = [run("down", -1), run("up", 1)]
    for value in (runs, {"runs": runs, "lengths": {"n": [3.0, 4.0]}}):
        path = tmp_path / "results.json"
        path.write_text(json.dumps(value))
        down, up = read_logs(path)
        assert down.name.endswith("down") and up.name.endswith("up")
        assert points(down) == [(i, -r) for i, r in NUMBERED] and points(up) == NUMBERED


def test_rows_with_lists_of_numbers_are_rows_and_no_runs(tmp_path: Path) -> None:
    rows = [{"step": i, "reward": r, "rewards": [0.0, 1.0]} for i, r in NUMBERED]
    assert points(log_of(tmp_path, json.dumps(rows), "log.json")) == NUMBERED


@pytest.mark.parametrize("index", [True, False])
def test_a_table_that_pandas_prints(tmp_path: Path, index: bool) -> None:
    before = [f"{i - 1:<4}" if index else "" for i in range(13)]
    lines = ["    step  mean_reward   loss" if index else "step  mean_reward   loss"]
    lines += [f"{before[i]}{i:4} {r:12} {0.5:6}" for i, r in NUMBERED]
    prose = "\nwe go step by step down\n1 2 3\n4 5 6 7 8\n"
    log = log_of(tmp_path, "\n".join(lines) + "\n" + prose, "table.txt")
    assert points(log) == NUMBERED and log.series["loss"].values.tolist() == [0.5] * 12 and len(log.series) == 2


def test_a_table_by_iterations(tmp_path: Path) -> None:
    rows = "".join(f"| {i} | {r} |\n" for i, r in NUMBERED)
    log = log_of(tmp_path, f"# Run\n\n| Iteration | Reward |\n|---|---|\n{rows}\nDone.\n", "notes.md")
    assert points(log) == NUMBERED and log.host == "unknown"


@pytest.mark.parametrize(
    "row",
    [
        {"log": "step {i} loss 0.5 reward {r}\n", "stream": "stdout", "time": "2026-01-02T10:11:12Z"},
        {"ts": "2026-01-02", "msg": "train", "fields": {"global_step": "{i}", "reward_mean": "{r}"}},
        {"step": "{i}", "event": "end", "metrics": "{{'reward': {r}, 'kl_div': np.float64(0.5)}}"},
    ],
)
def test_objects_that_wrap_a_line_or_a_row(tmp_path: Path, row: dict[str, object]) -> None:
    def filled(value: object, i: int, r: float) -> object:
        if isinstance(value, dict):
            return {name: filled(part, i, r) for name, part in value.items()}
        text = str(value).format(i=i, r=r)
        return float(text) if text.replace(".", "").isdigit() else text

    text = "\n".join(json.dumps(filled(row, i, r)) for i, r in NUMBERED)
    assert points(log_of(tmp_path, text, "log.jsonl")) == NUMBERED


PRINTED = "".join(f"step {i} reward {r} loss 0.5\n" for i, r in NUMBERED)
TRACE = "Traceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n", "it ran out of memory (line 14"),
        ("ray.exceptions.ActorDiedError: The actor died\n", "its processes lost contact"),
        (TRACE + "ValueError: no such tool\n", "it ended with an error (line 14: ValueError"),
        ("ValueError: a tool call was malformed\n", ""),
        (TRACE + "ValueError: at exit\nTraining completed.\n", ""),
        ("", ""),
    ],
)
def test_a_run_that_died_after_its_last_row_is_said_to(tmp_path: Path, end: str, said: str) -> None:
    log = log_of(tmp_path, PRINTED + end, "run.log")
    died = [note for note in log.notes if "the run died" in note]
    assert points(log) == NUMBERED and len(died) == bool(said) and all(said in note for note in died)


def test_an_error_that_the_run_survived_is_not_its_end(tmp_path: Path) -> None:
    assert not log_of(tmp_path, TRACE + "RuntimeError: retried\n" + PRINTED, "run.log").notes


def test_code_of_a_notebook_and_lines_of_logging_are_not_what_was_seen(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["except torch.OutOfMemoryError:\n"], "outputs": []}
    for name, text in (
        ("empty.ipynb", json.dumps({"cells": [cell], "nbformat": 4}, indent=1)),
        ("run.log", "2026-01-02 10:11:12,123 - INFO - a, b\n2026-01-02 10:11:13,123 - INFO - a, b\n"),
    ):
        with pytest.raises(DataError) as refused:
            log_of(tmp_path, text, name)
        assert "died" not in str(refused.value) and "a table" not in str(refused.value)


ROWS = "".join(f"{i},{r}\n" for i, r in NUMBERED)


@pytest.mark.parametrize("before", ['#{"env_id": "a"}\n', "# run 3\n# lr 1e-6\n\n", "sep=,\n", "\n"])
def test_lines_before_a_header_are_no_header(tmp_path: Path, before: str) -> None:
    assert points(log_of(tmp_path, f"{before}step,reward\n{ROWS}", "log.csv")) == NUMBERED


@pytest.mark.parametrize("name", ["run-a-tag-train_reward.csv", "reward.csv"])
def test_what_tensorboard_exports_is_named_after_its_file(tmp_path: Path, name: str) -> None:
    rows = "".join(f"{1.7e9 + i},{i},{r}\n" for i, r in NUMBERED)
    assert points(log_of(tmp_path, f"Wall time,Step,Value\n{rows}", name)) == NUMBERED


@pytest.mark.parametrize(
    "value",
    [
        {str(i): {"reward": r, "loss": 0.5} for i, r in NUMBERED},
        {"training": {"steps": [{"step": i, "metrics": {"reward": r}} for i, r in NUMBERED]}, "eval": {"acc": 0.5}},
    ],
)
def test_rows_by_their_step_and_rows_with_objects(tmp_path: Path, value: object) -> None:
    assert points(log_of(tmp_path, json.dumps(value), "log.json")) == NUMBERED


def test_bars_in_one_line_without_marks_between(tmp_path: Path) -> None:
    bars = "".join(f"Training:  {i}%|█▏| {i}/60 [00:{i:02d}<00:10, 1.0it/s, loss=0.1, reward={r}]" for i, r in NUMBERED)
    assert points(log_of(tmp_path, f"begin\n{bars}\n", "train.log")) == NUMBERED
