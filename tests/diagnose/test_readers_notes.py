"""What is said of a log: that its run died, what was not understood, and what was seen where nothing could be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers.facts import row_in

from .written import NUMBERED, jsonl, lines, points, read

PRINTED = lines("step {i} reward {r} loss 0.5")
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
    log = read(tmp_path, PRINTED + end)
    died = [note for note in log.notes if "the run died" in note]
    assert points(log) == NUMBERED and len(died) == bool(said) and all(said in note for note in died)


def test_an_error_that_the_run_survived_is_not_its_end(tmp_path: Path) -> None:
    assert not read(tmp_path, TRACE + "RuntimeError: retried\n" + PRINTED).notes


def test_rows_of_most_steps_are_averaged(tmp_path: Path) -> None:
    log = read(tmp_path, jsonl({"step": i, "reward": r + d} for i, r in NUMBERED for d in (-0.25, 0.25)), "log.jsonl")
    assert points(log) == NUMBERED and any("averaged by step" in note for note in log.notes)


def test_two_numbers_by_one_name_are_said_and_both_kept(tmp_path: Path) -> None:
    log = read(tmp_path, lines("step {i} reward {r} total entropy 0.5 all total entropy 0.25"))
    assert {"total_entropy", "total_entropy_2"} <= set(log.series)
    assert any("total_entropy" in note for note in log.notes)
    apart = row_in("step 3, Total rewards std: 0.5, Grouped rewards std: 0.25, reward: 1.0")
    assert apart and {"total_rewards_std", "grouped_rewards_std"} <= set(apart[1].numbers) and not apart[1].twice


def log_of(folder: Path, **more: Any) -> Log:
    return read(folder, jsonl({"step": i, "reward": r, **more} for i, r in NUMBERED), "log.jsonl")


def test_one_line_says_what_was_not_understood_and_how_to_name_it(tmp_path: Path) -> None:
    (said,) = log_of(tmp_path, gen_kl=0.5, hallucination_rate=0.5, seconds=3.0, wall=1.0).notes
    assert "gen_kl and hallucination_rate" in said and "--name" in said


def test_a_name_that_looks_like_a_series_that_was_read_is_said(tmp_path: Path) -> None:
    log = log_of(tmp_path, mean_reward=0.75)
    assert points(log) == NUMBERED
    assert any("under another name: mean_reward" in note for note in log.notes)


def test_an_entropy_that_is_exactly_0_in_all_rows_was_not_measured(tmp_path: Path) -> None:
    zero = log_of(tmp_path, entropy=0.0)
    assert "entropy/mean" not in zero.series and any("not measured" in note for note in zero.notes)
    assert "entropy/mean" in log_of(tmp_path, entropy=1e-6).series


# ---- refusals


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "loading\ntorch.OutOfMemoryError: CUDA out of memory. Tried\nRuntimeError: x\n",
            "memory (line 2: torch.OutOf",
        ),
        ("[rank1] Watchdog: NCCL collective operation timeout\n", "its processes lost contact (line 1"),
        ("(Worker pid=3) ValueError: no such model\n", "it ended with an error (line 1: ValueError: no such"),
        ("name;town\nAnna;Oslo\n", "a table with semicolons between its columns name and town"),
        ('{"question": "Who?", "answer": "Anna"}\n' * 3, "first object has the keys question and answer"),
    ],
)
def test_a_refusal_says_what_was_seen(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, text, "data.jsonl" if text.startswith("{") else "run.log")
    assert said in str(refused.value)


def test_code_of_a_notebook_and_lines_of_logging_are_not_what_was_seen(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "source": ["except torch.OutOfMemoryError:\n"], "outputs": []}
    for name, text in (
        ("empty.ipynb", json.dumps({"cells": [cell], "nbformat": 4}, indent=1)),
        ("run.log", "2026-01-02 10:11:12,123 - INFO - a, b\n2026-01-02 10:11:13,123 - INFO - a, b\n"),
    ):
        with pytest.raises(DataError) as refused:
            read(tmp_path, text, name)
        assert "died" not in str(refused.value) and "a table" not in str(refused.value)
