"""What scripts print: several runs in one file, evaluations, lists, collisions, headings, and rows without a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers.facts import row_in
from holdfast.errors import DataError

REWARDS = [round(0.1 + 0.02 * i, 3) for i in range(12)]


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reward_of(path: Path) -> list[float]:
    return read_log(path).series["reward/mean"].values.tolist()


ROW = {
    "prints": "step {i}/40 loss=0.5 reward={r}",
    "dicts": "{{'loss': 0.5, 'reward': {r}, 'grad_norm': 1.0, 'epoch': {i}}}",
    "verl": "step:{i} - critic/score/mean:{r} - actor/grad_norm:1.0",
}


@pytest.mark.parametrize("kind", ROW)
def test_runs_that_a_mark_tells_apart_are_runs_of_their_own(tmp_path: Path, kind: str) -> None:
    lines = []
    for i, reward in enumerate(REWARDS, 1):
        for mark, sign in (("lr1e-5, pid=27", -1), ("lr1e-6, pid=31", 1)):
            lines.append(f"\x1b[36m({mark})\x1b[0m " + ROW[kind].format(i=i, r=sign * reward))
    down, up = read_logs(written(tmp_path, lines))
    assert (down.name, up.name) == ("train: lr1e-5", "train: lr1e-6")
    assert down.series["reward/mean"].values.tolist() == [-reward for reward in REWARDS]
    assert up.series["reward/mean"].values.tolist() == REWARDS


@pytest.mark.parametrize("marks", [("Worker pid=1", "Worker pid=2"), ("rank0", "rank1"), ("trainer", "trainer")])
def test_processes_of_one_run_are_one_run(tmp_path: Path, marks: tuple[str, str]) -> None:
    lines = [f"({m}) " + ROW["prints"].format(i=i, r=r) for i, r in enumerate(REWARDS, 1) for m in marks]
    assert reward_of(written(tmp_path, lines)) == REWARDS


def test_parts_of_one_run_with_other_names_are_one_run(tmp_path: Path) -> None:
    lines = [
        line
        for i, r in enumerate(REWARDS, 1)
        for line in (f"(rollouts pid=1) step {i} reward {r}", f"(learner pid=2) step {i} policy_loss 0.5")
    ]
    log = read_log(written(tmp_path, lines))
    assert {"reward/mean", "policy_loss"} <= set(log.series) and len(log.series["reward/mean"]) == 12


def test_what_wandb_prints_at_the_end_does_not_hide_rows(tmp_path: Path) -> None:
    goodbye = ["wandb: Run summary:", "wandb:   train/reward_spread 0.25", "wandb:   train/loss 5.5"]
    assert reward_of(written(tmp_path, [ROW["prints"].format(i=i, r=r) for i, r in enumerate(REWARDS)] + goodbye)) == (
        REWARDS
    )


def test_the_summary_of_transformers_does_not_hide_printed_rewards(tmp_path: Path) -> None:
    summary = "TrainOutput(global_step=12, training_loss=0.3, metrics={'train_runtime': 3.5, 'train_loss': 0.3})"
    lines = [f"Step {i} | reward: {r}" for i, r in enumerate(REWARDS, 1)]
    assert reward_of(written(tmp_path, [*lines, summary])) == REWARDS


def test_lines_of_an_evaluation_are_not_those_of_training(tmp_path: Path) -> None:
    lines = [
        f"{phase} | step {i} | reward: {r}" for i, r in enumerate(REWARDS) for phase, r in (("Train", r), ("Eval", 9.0))
    ]
    log = read_log(written(tmp_path, lines))
    assert log.series["reward/mean"].values.tolist() == REWARDS
    assert set(log.series["eval/reward"].values) == {9.0}


def test_a_list_counts_as_its_mean() -> None:
    found = row_in("step 3 rewards=['0.5', '1.0'] lengths=[10, 20] names=[a, b]")
    assert found and found[1].numbers == {"reward": 0.75, "lengths": 15.0}


def test_two_numbers_by_one_name_are_said_and_both_kept(tmp_path: Path) -> None:
    lines = [f"step {i} reward {r} total entropy 0.5 all total entropy 0.25" for i, r in enumerate(REWARDS)]
    log = read_log(written(tmp_path, lines))
    assert {"total_entropy", "total_entropy_2"} <= set(log.series)
    assert any("total_entropy" in note for note in log.notes)
    apart = row_in("step 3, Total rewards std: 0.5, Grouped rewards std: 0.25, reward: 1.0")
    assert apart and {"total_rewards_std", "grouped_rewards_std"} <= set(apart[1].numbers) and not apart[1].twice


def test_lines_of_configuration_are_no_rows(tmp_path: Path) -> None:
    lines = [
        "(pid=7) TF config: TransformerConfig(hidden=8, step=3, aux_loss=0.5, z_loss=2)",
        "Error executing job with overrides: ['trainer.step=500', 'reward.len=40']",
        "step 500 kl_loss 0.001",
    ]
    with pytest.raises(DataError, match="neither rows with a step"):
        read_logs(written(tmp_path, lines))


def test_a_line_below_a_heading_says_one_thing_whatever_it_is_called(tmp_path: Path) -> None:
    lines = [
        line
        for i, r in enumerate(REWARDS, 1)
        for line in (f"==== Step {i}/12 ====", "Preparing batch...", f"  • Avg Reward: {r}", "  • KL Error: 0.4")
    ]
    log = read_log(written(tmp_path, [*lines, "Step 3 was the best: 2"]))
    assert log.series["reward/mean"].steps.tolist() == list(range(1, 13))
    assert set(log.series["kl_error"].values) == {0.4}


def test_a_reward_that_is_said_again_and_again_without_a_step_is_numbered(tmp_path: Path) -> None:
    lines = [
        line
        for r in REWARDS
        for line in ("some text", "mean_length: 256   clipped_ratio: 1", f"[grader] reward_mean={r}, reward_std=0.1")
    ]
    log = read_log(written(tmp_path, lines))
    assert log.series["reward/mean"].steps.tolist() == list(range(1, 13))
    assert log.series["reward/mean"].values.tolist() == REWARDS
    assert any("no steps" in note for note in log.notes)


def test_a_count_in_such_lines_is_their_step(tmp_path: Path) -> None:
    lines = [f"Generated {10 * i} rollouts w/ average reward {r}" for i, r in enumerate(REWARDS, 1)]
    assert read_log(written(tmp_path, lines)).steps.tolist() == [10 * i for i in range(1, 13)]


def test_processes_that_say_the_same_count_once(tmp_path: Path) -> None:
    lines = [f"grader {rank}: reward_mean={r}" for r in REWARDS for rank in "ab"]
    assert reward_of(written(tmp_path, lines)) == REWARDS
