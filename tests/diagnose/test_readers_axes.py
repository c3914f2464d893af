"""Steps by any name that moves, rows of an evaluation, and names in another spelling."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers.axes import axis_in, counter_in, phase_in
from holdfast.diagnose.readers.names import host_of, like_a_reward
from holdfast.diagnose.readers.spelling import spelled

REWARDS = [0.1 + 0.01 * i for i in range(12)]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["update", "iteration", "episode", "batch_index", "Iter", "train_batch"])
def test_any_counter_of_updates_is_the_step(tmp_path: Path, name: str) -> None:
    rows = [{"tokens": 100 * i, name: 3 * i, "seed": 7, "mean_reward": r} for i, r in enumerate(REWARDS)]
    log = read_log(jsonl(tmp_path / "log.jsonl", rows))
    assert log.series["reward/mean"].steps.tolist() == [3 * i for i in range(12)]


def test_a_counter_of_anything_is_the_step_where_no_other_is() -> None:
    rows = [{"seen": 64 * i, "time": i, "reward": r} for i, r in enumerate(REWARDS)]
    assert axis_in(rows) is None and counter_in(rows) == "seen"
    assert counter_in([{"reward": r, "time": i, "seed": 1} for i, r in enumerate(REWARDS)]) is None


def test_a_step_that_never_moves_is_none(tmp_path: Path) -> None:
    rows = [{"train/global_step": 0, "_step": 2 * i, "reward": r} for i, r in enumerate(REWARDS)]
    log = read_log(jsonl(tmp_path / "log.jsonl", rows))
    assert log.series["reward/mean"].steps.tolist() == [2 * i for i in range(12)]
    assert axis_in(rows[:1]) == "train/global_step"


def test_a_step_that_few_rows_have_gives_way_to_one_that_all_have() -> None:
    rows = [{"_step": i, "reward": r} for i, r in enumerate(REWARDS)]
    rows += [{"_step": 20 + i, "global_step": i, "loss": 0.5} for i in range(3)]
    assert axis_in(rows) == "_step"


def test_rows_of_an_evaluation_are_told_from_rows_of_training(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for i, reward in enumerate(REWARDS):
        rows += [{"type": "train", "update": i, "reward": reward}, {"type": "eval", "update": i, "reward": 0.9}]
    log = read_log(jsonl(tmp_path / "log.jsonl", rows))
    assert log.series["reward/mean"].values.tolist() == pytest.approx(REWARDS)
    assert set(log.series["eval/reward"].values) == {0.9}
    assert phase_in([{"type": "eval"}, {"type": "eval"}]) is None


VERL = {"critic/score/mean": 0.5, "critic/rewards/mean": 0.4, "critic/returns/mean": -0.1, "actor/grad_norm": 1.0}


@pytest.mark.parametrize("mark", ["_", "/", ".", " "])
def test_names_of_a_host_are_known_with_any_mark_between_their_parts(tmp_path: Path, mark: str) -> None:
    names = [name.replace("/", mark) for name in (*VERL, "response_length/mean")]
    path = tmp_path / "metrics.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", *names])
        table.writerows([i, r, r - 0.1, -r, 1.0, 100.0] for i, r in enumerate(REWARDS))
    log = read_log(path)
    assert log.host == "verl"
    assert log.series["reward/mean"].values.tolist() == pytest.approx(REWARDS)
    assert {"grad/norm", "rollout/length", "critic/returns/mean"} <= set(log.series)
    given = read_logs(path, {"reward": names[1]})[0].series["reward/mean"]
    assert given.values.tolist() == pytest.approx([r - 0.1 for r in REWARDS])


def test_the_score_is_the_reward_before_rewards_and_never_returns() -> None:
    assert like_a_reward(["critic_returns_mean", "critic_rewards_mean"]) == "critic_rewards_mean"
    assert like_a_reward(["batch_return", "env_task_score"]) == "env_task_score"


def test_no_two_names_become_one_by_their_spelling() -> None:
    assert spelled("verl", ["critic/score/mean", "critic_score_mean"]) == {}
    assert len(set(spelled("verl", ["critic_score_mean", "critic.score.mean"]).values())) == 1


@pytest.mark.parametrize("names", [["actor_grad_norm", "reward", "kl"], ["policy_loss", "vllm_kl", "ppo_clip_ratio"]])
def test_a_host_whose_names_have_no_marks_is_still_known(names: list[str]) -> None:
    assert host_of(names) == "openrlhf"


# ---- tables, objects, and several runs in one file


def text_of(names: list[str], rows: list[list[object]], separator: str) -> str:
    return "\n".join(separator.join(map(str, row)) for row in (names, *rows)) + "\n"


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("decimal", [".", ","])
def test_cells_may_stand_between_other_marks_and_have_decimal_commas(
    tmp_path: Path, separator: str, decimal: str
) -> None:
    cells = [f"{reward:.3f}".replace(".", decimal) for reward in REWARDS]
    quoted = [f'"{cell}"' if separator == decimal else cell for cell in cells]
    path = tmp_path / "log.csv"
    path.write_text(text_of(["step", "reward"], [[i, cell] for i, cell in enumerate(quoted)], separator))
    assert read_log(path).series["reward/mean"].values.tolist() == pytest.approx(REWARDS)


def test_thousands_stay_thousands(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_text(text_of(["step", "reward"], [[i, f"1,{100 + i}"] for i in range(12)], "\t"))
    assert read_log(path).series["reward/mean"].values.tolist() == [1100 + i for i in range(12)]


def test_a_chart_by_time_is_numbered_run_by_run(tmp_path: Path) -> None:
    header = ["Relative Time (Process)", "a - train/reward", "b - train/reward"]
    path = tmp_path / "chart.csv"
    path.write_text(text_of(header, [[i * 0.7, r, r / 2] for i, r in enumerate(REWARDS)], ","))
    a, b = read_logs(path)
    assert (a.name, b.name) == ("a", "b") and any("Relative Time" in note for note in a.notes)
    assert a.series["reward/mean"].steps.tolist() == list(range(1, 13))
    assert b.series["reward/mean"].values.tolist() == pytest.approx([r / 2 for r in REWARDS])


@pytest.mark.parametrize("label", ["run_name", "config"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_rows_that_name_their_run_are_read_run_by_run(tmp_path: Path, label: str, one_by_one: bool) -> None:
    rows = [
        {label: run, "step": i, "reward": sign * r}
        for i, r in enumerate(REWARDS)
        for run, sign in (("a", 1), ("b", -1))
    ]
    if one_by_one:
        rows.sort(key=lambda row: str(row[label]))
    a, b = read_logs(jsonl(tmp_path / "log.jsonl", rows))
    assert (a.name, b.name) == ("log: a", "log: b")
    assert a.series["reward/mean"].values.tolist() == REWARDS
    assert b.series["reward/mean"].values.tolist() == [-r for r in REWARDS]


def test_a_text_that_changes_within_a_run_names_no_run(tmp_path: Path) -> None:
    rows = [{"stage": "warm" if i < 6 else "main", "step": i, "reward": r} for i, r in enumerate(REWARDS)]
    assert len(read_logs(jsonl(tmp_path / "log.jsonl", rows))) == 1


def test_an_object_of_several_runs_is_read_run_by_run(tmp_path: Path) -> None:
    rows = [{"step": i, "train_reward": r} for i, r in enumerate(REWARDS)]
    value = {"E1": {"key": "x", "merged": rows}, "E2": {"merged": rows[:6]}, "E3": {"reward": REWARDS, "loss": REWARDS}}
    for indent in (None, 2):
        path = tmp_path / "runs.json"
        path.write_text(json.dumps(value, indent=indent))
        logs = read_logs(path)
        assert [(log.name, len(log.steps)) for log in logs] == [("runs: E1", 12), ("runs: E2", 6), ("runs: E3", 12)]


def test_lists_of_training_and_of_evaluation_are_one_run(tmp_path: Path) -> None:
    trained = [{"step": i, "reward": r} for i, r in enumerate(REWARDS)]
    value = {"train": trained, "eval": [{"step": 3, "reward": 9.0}, {"step": 9, "reward": 9.0}]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(value))
    log = read_log(path)
    assert log.series["reward/mean"].values.tolist() == REWARDS
    assert log.series["eval/reward"].steps.tolist() == [3, 9]


def test_objects_over_several_lines_are_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(json.dumps({"step": i, "reward": r}, indent=1) for i, r in enumerate(REWARDS)))
    assert read_log(path).series["reward/mean"].values.tolist() == REWARDS


def test_numbers_in_objects_and_lists_of_a_row_are_read(tmp_path: Path) -> None:
    rows = [
        {"step": i, "loss": 0.5, "reward": {"mean": r, "why": "x"}, "kl": [1.0, 3.0]} for i, r in enumerate(REWARDS)
    ]
    log = read_log(jsonl(tmp_path / "log.jsonl", rows))
    assert log.series["reward/mean"].values.tolist() == REWARDS and set(log.series["kl/reference"].values) == {2.0}


def test_the_mean_of_a_log_of_one_thing_is_taken_for_the_reward(tmp_path: Path) -> None:
    log = read_log(jsonl(tmp_path / "log.jsonl", [{"step": i, "mean": r, "max": 1.0} for i, r in enumerate(REWARDS)]))
    assert log.series["reward/mean"].values.tolist() == REWARDS and any("for the reward" in note for note in log.notes)
