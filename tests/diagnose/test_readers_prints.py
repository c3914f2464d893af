"""Lines that a script of one's own prints: what is a row, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers.prints import row_in


def written(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "train.log"
    path.write_text(end.join(lines) + end, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "line",
    [
        "step {i} loss {loss} reward {reward}",
        "step: {i}, loss: {loss}, reward: {reward}",
        "[step 0{i}] loss={loss} reward={reward}",
        "Step {i}/40 | Loss: {loss} | Mean Reward: {reward}",
        "2026-01-02 10:11:12,123 - INFO - trainer - iteration {i} loss {loss} avg_reward {reward}",
        "2026-01-02 10:11:12.345 | INFO | __main__:main:33 - step={i} loss={loss} reward_mean={reward}",
        "\x1b[32mINFO\x1b[0m [train.py:33] Epoch {i}: loss={loss}, reward={reward}",
        " {i}%|█▏   | {i}/40 [00:01<00:12,  3.1it/s, loss={loss}, reward={reward}]",
    ],
)
def test_a_print_with_a_step_and_a_reward_is_a_row(tmp_path: Path, line: str) -> None:
    rewards = [0.25, 0.5, float("inf"), -0.125]
    texts = [line.format(i=i, loss=1 / 2**i, reward=reward) for i, reward in enumerate(rewards, 1)]
    log = read_log(written(tmp_path, ["starting", *texts, "done"]))
    assert (log.format, log.steps.tolist()) == ("console", [1, 2, 3, 4])
    assert log.series["reward/mean"].values.tolist() == rewards
    assert log.series["loss"].values.tolist() == [0.5, 0.25, 0.125, 0.0625]
    assert set(log.series) <= {"loss", "reward/mean", "epoch"}


def test_bars_of_lightning_continue_over_epochs(tmp_path: Path) -> None:
    bars = [f"Epoch {e}:  {i}%|█  | {i}/3 [00:01<00:02, v_num=0, reward={e}.{i}]" for e in (0, 1) for i in (1, 2, 3)]
    log = read_log(written(tmp_path, bars, end="\r"))
    assert log.series["reward/mean"].steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert log.series["reward/mean"].values.tolist() == [0.1, 0.2, 0.3, 1.1, 1.2, 1.3]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step 3 eval reward 0.5 grad norm 2.0", (3, {"eval_reward": 0.5, "grad_norm": 2.0})),
        ("step 3 format reward 0.5 reward 0.25", (3, {"format_reward": 0.5, "reward": 0.25})),
        ("step 3 loss 1e-3 time 10:11 speed 3.1it/s share 50%", (3, {"loss": 0.001})),
        ("the reward of step 3 is high", None),
        ("loss 0.5 reward 0.25", None),
        ("step 3: saved in 2.5 s, reward model loaded", None),
        ("step 0.5 loss 0.5", None),
    ],
)
def test_names_keep_the_word_before_them_and_prose_is_no_row(line: str, row: object) -> None:
    assert row_in(line) == row


def test_one_step_alone_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="step 1 loss"):
        read_logs(written(tmp_path, ["step 3 loss 0.5 reward 0.5"]))
