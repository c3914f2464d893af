"""What is said of a log that cannot be read, and of names that were not understood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.readers import read_log
from holdfast.errors import DataError

REWARDS = [round(0.1 + 0.02 * i, 3) for i in range(12)]


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
    path = tmp_path / ("data.jsonl" if text.startswith("{") else "run.log")
    path.write_text(text)
    with pytest.raises(DataError) as refused:
        read_log(path)
    assert said in str(refused.value)


def log_of(tmp_path: Path, **more: Any) -> Any:
    rows = [{"step": i, "reward": r, **more} for i, r in enumerate(REWARDS)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_log(path)


def test_one_line_says_what_was_not_understood_and_how_to_name_it(tmp_path: Path) -> None:
    (said,) = log_of(tmp_path, gen_kl=0.5, hallucination_rate=0.5, seconds=3.0, wall=1.0).notes
    assert "gen_kl and hallucination_rate" in said and "--name" in said


def test_a_name_that_looks_like_a_series_that_was_read_is_said(tmp_path: Path) -> None:
    log = log_of(tmp_path, mean_reward=0.75)
    assert log.series["reward/mean"].values.tolist() == REWARDS
    assert any("under another name: mean_reward" in note for note in log.notes)


def test_an_entropy_that_is_exactly_0_in_all_rows_was_not_measured(tmp_path: Path) -> None:
    zero = log_of(tmp_path, entropy=0.0)
    assert "entropy/mean" not in zero.series and any("not measured" in note for note in zero.notes)
    assert "entropy/mean" in log_of(tmp_path, entropy=1e-6).series


def test_names_of_a_table_that_someone_typed_are_known(tmp_path: Path) -> None:
    rows = [f"{i}     {r}       0.97           {250 + i}            0.25" for i, r in enumerate(REWARDS)]
    path = tmp_path / "table.txt"
    path.write_text(
        "\n".join(["Step  reward_mean  clipped_ratio  mean_length  zero_std_frac", *rows[:3], "...", *rows[3:]])
    )
    log = read_log(path)
    assert log.series["rollout/truncated_fraction"].values.tolist() == [0.97] * 12
    assert log.series["rollout/length"].values.tolist() == [250.0 + i for i in range(12)]
    assert log.series["rollout/mixed_group_fraction"].values.tolist() == [0.75] * 12
