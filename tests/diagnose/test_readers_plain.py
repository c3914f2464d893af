"""Lines as Python, terminals and tables write them: types around numbers, walls, dicts in a line, lines that sum up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.diagnose.readers import read_log

REWARDS = [round(0.1 + 0.02 * i, 3) for i in range(12)]


def log_of(folder: Path, text: str, name: str = "train.log"):  # type: ignore[no-untyped-def]
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read_log(path)


def rewards_of(folder: Path, lines: list[str]) -> list[tuple[int, float]]:
    series = log_of(folder, "\n".join(lines) + "\n").series["reward/mean"]
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


NUMBERED = list(enumerate(REWARDS, 1))


@pytest.mark.parametrize(
    "line",
    [
        "step {i}: loss=tensor(0.5, device='cuda:0', grad_fn=<NegBackward0>), reward=tensor([{r}])",
        "step {i} | loss: np.float64(0.5) | reward: np.float32({r})",
        "step {i} | {{'loss': 0.5, 'reward': {r}}}",
        'step {i} metrics: {{"loss": 0.5, "reward": {r}}}',
        "step {i} | {{'loss': '0.5', 'reward': '{r}'}}",
        "step {i}：loss：0.5，reward：{r}",
        "step {i}/40 Tokens: 1,234,567 Loss: 0.5 MeanRew: {r}",
        "step {i}, Mean Reward: {r} ± 0.25, Policy Loss: 0.5",
        "step {i}: rewards=[{r} {r}], loss=0.5",
    ],
)
def test_a_number_is_read_whatever_python_writes_around_it(tmp_path: Path, line: str) -> None:
    assert rewards_of(tmp_path, [line.format(i=i, r=r) for i, r in NUMBERED]) == NUMBERED


def test_a_table_with_walls_below_a_heading_of_logging(tmp_path: Path) -> None:
    lines = []
    for i, r in NUMBERED:
        lines += [
            f"20260102-10:11:{i:02d}.123 Stats INFO: Epoch 1/2 Step {i}/40 done.",
            f"│ actor/task_reward/avg │ {r:.4e} │",
            "│ actor/seq_len/avg     │ 4.0000e+02 │",
        ]
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_a_heading_of_logging_gives_no_step_to_lines_that_have_their_own(tmp_path: Path) -> None:
    lines = [line for i, r in NUMBERED for line in (f"({i}/40) reward {r}", f"10:11 INFO step {i // 4 * 4}: saved")]
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_a_line_of_an_epoch_that_sums_up_its_steps_is_left_out(tmp_path: Path) -> None:
    lines = []
    for i, r in NUMBERED:
        lines += [f"step {i} | loss 0.5 | reward {r}"]
        lines += [f"Epoch {i // 4} finished: avg loss 0.5, avg reward 0.9"] if i % 4 == 0 else []
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_epochs_are_steps_where_nothing_finer_is_said(tmp_path: Path) -> None:
    assert rewards_of(tmp_path, [f"Epoch {i} finished: avg reward {r}" for i, r in NUMBERED]) == NUMBERED


def test_a_reward_below_the_line_with_its_step_belongs_to_it(tmp_path: Path) -> None:
    lines = []
    for i, r in NUMBERED:
        lines += [f"Epoch: 0 | Step: {i} | Actor Loss: 0.5", "Latency: 12.17s", f"Average reward score: {r}"]
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_a_sample_that_is_shown_now_and_then_is_not_the_reward(tmp_path: Path) -> None:
    lines = []
    for i, r in NUMBERED:
        lines += [f"10:11 - INFO - rl_loss: 0.5, entropy: 0.25, data: {{'count': 256, 'total_reward': {r}}}"]
        lines += [f"10:11 - INFO - reward: {{'format': 1.0, 'reward': {i % 2}.0}}"] if i % 4 == 0 else []
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_capitals_part_the_words_of_a_name(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{r},0.25" for i, r in NUMBERED)
    log = log_of(tmp_path, f"iteration,AverageReward,StdReward\n{rows}\n", "progress.csv")
    assert log.series["reward/mean"].values.tolist() == REWARDS
    assert log.series["reward/std"].values.tolist() == [0.25] * 12


def test_of_two_names_of_the_reward_the_one_that_few_rows_have_is_a_sample(tmp_path: Path) -> None:
    rows = [{"step": i, "total_reward": r} | ({"reward": 1.0} if i % 5 == 0 else {}) for i, r in NUMBERED]
    log = log_of(tmp_path, "\n".join(map(json.dumps, rows)), "log.jsonl")
    assert log.series["reward/mean"].values.tolist() == REWARDS


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 1 | Batch {i} | Reward: {r} | Acc: 50.00% ({c}/16)",
        "Rollout {i} | mean reward {r} | solved {c}/16",
        "Episode {i}: reward {r}, solved {c}/16, length 120",
        "Update {i}: reward {r} [{c}/16 correct]",
        "Epoch {i} ({i}%|█| {i}/99 [00:01<00:02]) step {i} reward {r} ({c}/16)",
    ],
)
def test_a_count_behind_the_reward_is_one_of_answers(tmp_path: Path, line: str) -> None:
    lines = [line.format(i=i, r=r, c=int(16 * r)) for i, r in NUMBERED]
    assert rewards_of(tmp_path, lines) == NUMBERED


def test_statistics_have_the_name_of_what_they_are_of(tmp_path: Path) -> None:
    lines = [f"step {i} length: mean=120 max=200; reward: mean={r} std=0.25 min=0 max=1" for i, r in NUMBERED]
    log = log_of(tmp_path, "\n".join(lines))
    assert log.series["reward/mean"].values.tolist() == REWARDS and log.series["reward/std"].values[0] == 0.25
    assert log.series["rollout/length"].values[0] == 120


@pytest.mark.parametrize("line", ["步骤 {i}/60：平均奖励 {r}，损失 0.5", "第 {i} 步 | 奖励: {r} | 损失: 0.5"])
def test_words_in_chinese(tmp_path: Path, line: str) -> None:
    assert rewards_of(tmp_path, [line.format(i=i, r=r) for i, r in NUMBERED]) == NUMBERED


def test_a_log_of_scores_alone_is_read_by_them(tmp_path: Path) -> None:
    assert rewards_of(tmp_path, [f"iteration {i} | mean return {r} | entropy 0.5" for i, r in NUMBERED]) == NUMBERED
    acc = log_of(tmp_path, "\n".join(f"step {i} | acc {r} | kl 0.5" for i, r in NUMBERED))
    assert "reward/mean" not in acc.series and acc.series["acc"].values.tolist() == REWARDS


@pytest.mark.parametrize(
    "lines",
    [
        ["Step {i} - Average Reward: {r}", "Step {i} - Sample: reward 1.0 for 'Oslo'"],
        ["Step {i}", "Prompt: What is 3+4? Reward 0.0", "mean_reward: {r}", "Reward 1.0"],
    ],
)
def test_the_reward_of_one_completion_beside_a_mean_is_not_the_reward(tmp_path: Path, lines: list[str]) -> None:
    assert rewards_of(tmp_path, [line.format(i=i, r=r) for i, r in NUMBERED for line in lines]) == NUMBERED
