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
