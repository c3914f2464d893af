"""Consoles, notebook tables and metrics files of trainers: the fixtures, and short texts for one thing each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log

from .conftest import LOGS


def written(folder: Path, text: str | bytes, name: str = "run.log") -> Log:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_log(folder / name)


def row(epoch: float, reward: float = 0.5, **more: Any) -> str:
    """A console dict."""
    return repr({"loss": 0.01, "grad_norm": 0.25 + epoch, "reward": reward, "reward_std": 0.25, "epoch": epoch} | more)


def rows(epochs: Iterable[float], **more: Any) -> str:
    return "".join(row(epoch, **more) + "\n" for epoch in epochs)


def steps(log: Log, name: str = "reward/mean") -> list[int]:
    return log.series[name].steps.tolist()


def values(log: Log, name: str) -> list[float]:
    return log.series[name].values.tolist()


@pytest.mark.parametrize(
    ("name", "form", "host", "at", "series"),
    [
        ("trl-console.log", "console", "trl", range(2, 25, 2), ("reward/mean", "sampler/logprob_abs_gap", "lr")),
        ("trl-strings.log", "console", "trl", range(5, 61, 5), ("kl/reference", "reward/group_std", "rollout/length")),
        ("swift-logging.jsonl", "trl", "trl", range(1, 9), ("rollout/mixed_group_fraction", "entropy/mean")),
        ("notebook.md", "table", "trl", range(1, 11), ("loss", "kl/reference", "rewards/word_count/mean")),
        ("notebook.txt", "table", "trl", range(1, 11), ("loss", "kl/reference", "rewards/word_count/mean")),
        ("slime.log", "console", "slime", range(4), ("reward/mean", "clip/fraction", "sampler/logprob_abs_gap")),
        ("skyrl.log", "console", "skyrl", range(1, 5), ("reward/mean", "entropy/mean", "sampler/logprob_abs_gap")),
        ("openrlhf.log", "console", "openrlhf", range(1, 5), ("reward/mean", "sampler/logprob_gap", "kl/reference")),
        ("tinker.jsonl", "jsonl", "tinker", range(4), ("reward/mean", "rollout/mixed_group_fraction")),
        ("prime-rl.jsonl", "jsonl", "prime-rl", range(4), ("reward/mean", "sampler/mismatch_kl", "grad/norm")),
        ("wandb-summary.txt", "console", "trl", [40], ("reward/mean", "grad/norm")),
    ],
)
def test_every_kind_is_read(name: str, form: str, host: str, at: Iterable[int], series: tuple[str, ...]) -> None:
    log = read_log(LOGS / name)
    assert (log.format, log.host) == (form, host)
    assert log.steps.tolist() == list(at)
    for one in series:
        assert steps(log, one) == list(at) and np.isfinite(log.series[one].values).any()


def test_an_evaluation_and_a_summary_are_no_rows_of_training() -> None:
    log = read_log(LOGS / "trl-console.log")
    assert (steps(log, "eval/reward/mean"), values(log, "eval/reward/mean")) == ([12, 24], [0.42, 0.54])
    assert steps(log, "train_loss") == [24] and not log.notes


def test_the_means_beside_a_summary_do_not_replace_those_of_the_last_row(tmp_path: Path) -> None:
    summary = {"train_runtime": 3.5, "train_loss": 0.25, "reward": 0.9, "reward_std": 0.0, "epoch": 1.0}
    log = written(tmp_path, rows([0.25, 0.5, 0.75]) + f"{summary}\n")
    assert set(values(log, "reward/mean")) == {0.5} and values(log, "train_loss") == [0.25]
    assert not any("replaced" in note for note in log.notes)


def test_texts_are_numbers_and_a_cut_row_is_noted() -> None:
    log = read_log(LOGS / "trl-strings.log")
    assert math.isnan(values(log, "grad/norm")[6]) and np.isfinite(values(log, "reward/mean")).all()
    assert log.settings["logging_steps"] == 5
    assert [note.partition(":")[0] for note in log.notes] == ["Skipped 1 row"]


# ---- steps


@pytest.mark.parametrize("line", ["logging_steps=10,", "--logging_steps 10 \\", "'logging_steps': 10"])
def test_the_setting_that_was_printed_counts_and_without_it_a_step_is_a_row(tmp_path: Path, line: str) -> None:
    alone = written(tmp_path, rows((0.1, 0.2, 0.3)))
    assert steps(alone) == [1, 2, 3] and alone.notes[0].startswith("The log has no steps")
    log = written(tmp_path, line + "\n" + rows((0.1, 0.2, 0.3)))
    assert steps(log) == [10, 20, 30] and not log.notes


def bar(step: int, total: int, name: str = "") -> str:
    return f"\r{name} {step}%|██  | {step}/{total} [00:01<00:01,  1.0s/it]"


def test_a_bar_shows_the_steps_of_a_run_that_goes_on(tmp_path: Path) -> None:
    text = bar(0, 300) + "".join(
        f"{bar(step, 300)}{bar(9, 10, 'Map:')}\r   \r{row(step / 100)}\n" for step in (110, 120, 130)
    )
    assert steps(written(tmp_path, text)) == [110, 120, 130]


def test_a_bar_that_lags_shows_how_many_steps_a_row_is(tmp_path: Path) -> None:
    shown = [0, 0, 10, 15, 15, 30]
    text = "".join(f"{bar(step, 30)}\r{row(k / 10)}\n" for k, step in enumerate(shown, 1))
    assert steps(written(tmp_path, text)) == [5, 10, 15, 20, 25, 30]


def test_the_bar_of_a_second_run_has_another_total(tmp_path: Path) -> None:
    text = "".join(f"{bar(10 * k, 300)}\r{row(k / 10)}\n" for k in (1, 2, 3, 4))
    text += "".join(f"{bar(5 * k, 50)}\r{row(k / 10, reward=0.75)}\n" for k in (1, 2, 3))
    log = written(tmp_path, text)
    assert steps(log) == [5, 10, 15] and values(log, "reward/mean") == [0.75] * 3
    assert "the last run was read" in log.notes[0]


def test_epochs_that_go_back_are_a_run_that_was_resumed(tmp_path: Path) -> None:
    log = written(tmp_path, rows((0.1, 0.2, 0.3, 0.4)) + rows((0.3, 0.4, 0.5), reward=0.75))
    assert (steps(log), values(log, "reward/mean")) == ([1, 2, 3, 4, 5], [0.5, 0.5, 0.75, 0.75, 0.75])
    again = written(tmp_path, rows((0.1, 0.2, 0.3)) + rows((0.1, 0.2), reward=0.75))
    assert (steps(again), values(again, "reward/mean")) == ([1, 2], [0.75, 0.75])


def test_processes_that_print_the_same_row_count_once(tmp_path: Path) -> None:
    text = "".join((row(k / 10, reward=k / 8) + "\n") * 4 for k in range(1, 6))
    log = written(tmp_path, text)
    assert steps(log) == [1, 2, 3, 4, 5] and values(log, "reward/mean") == [k / 8 for k in range(1, 6)]
    assert log.notes[0].startswith("Every row occurs 4 times")


def test_rows_of_a_dead_run_are_not_taken_for_copies(tmp_path: Path) -> None:
    same = {"loss": 0.0, "grad_norm": 0.0, "learning_rate": 1e-6, "reward": 0.0, "kl": 0.0}
    for epochs in ([round(k / 200, 2) for k in range(12)], [0.0] * 3 + [0.01] * 3):
        text = "".join(f"{same | {'epoch': epoch}}\n" for epoch in epochs)
        assert len(written(tmp_path, text).steps) == len(epochs)


def test_steps_that_begin_again_while_the_run_goes_on_are_counted_on(tmp_path: Path) -> None:
    lines = [{"step": step % 3 + 1, "reward": 0.5, "kl": 0.1, "num_tokens": 100 * step} for step in range(6)]
    log = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "log.jsonl")
    assert steps(log) == [1, 2, 3, 4, 5, 6] and "numbering was continued from there" in log.notes[0]
    for line in lines[3:]:
        line["num_tokens"] -= 300  # another run
    log = written(tmp_path, "".join(json.dumps(line) + "\n" for line in lines), "log.jsonl")
    assert steps(log) == [1, 2, 3] and "the last run was read" in log.notes[0]


def test_rows_with_an_epoch_alone_are_numbered(tmp_path: Path) -> None:
    lines = [{"loss": 0.1, "reward": k / 8, "epoch": k / 10} for k in range(1, 4)]
    for name, text in {
        "a.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "a.json": json.dumps(lines),
        "a.csv": "\n".join(["loss,reward,epoch", *(",".join(map(str, line.values())) for line in lines)]),
        "a.tsv": "\n".join(["loss\treward\tepoch", *("\t".join(map(str, line.values())) for line in lines)]),
    }.items():
        log = written(tmp_path, text, name)
        assert (steps(log), values(log, "reward/mean")) == ([1, 2, 3], [0.125, 0.25, 0.375]), name


# ---- lines


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[32m" + row(0.1) + "\x1b[0m",
        row(0.1).replace("0.5", "tensor(0.5, device='cuda:0')"),
        row(0.1).replace("'", '"'),
        row(0.1).replace(", 'reward'", ",\n 'reward'"),  # pprint, or a terminal that is too narrow
        row(0.1).replace("'reward': 0.5", "'rew\nard': 0.5"),
        "{'x': 1}{'text': \"it's\", 'n': 2}" + row(0.1),
        "prompt {question}\n" + row(0.1),
        '{"an": "object"}\nwords\nwords\n' + row(0.1),
    ],
)
def test_one_row_among_other_text(tmp_path: Path, text: str) -> None:
    log = written(tmp_path, text + "\n")
    assert (steps(log), values(log, "reward/mean")) == ([1], [0.5])


@pytest.mark.parametrize(
    ("word", "number"), [("nan", math.nan), ("-inf", -math.inf), ("inf", math.inf), ("None", math.nan)]
)
def test_words_for_numbers(tmp_path: Path, word: str, number: float) -> None:
    log = written(tmp_path, rows((0.1,)).replace("'loss': 0.01", f"'loss': {word}"))
    assert np.array_equal(log.series["loss"].values, [number], equal_nan=True)


def test_two_dicts_in_a_line_and_line_ends_of_windows(tmp_path: Path) -> None:
    assert steps(written(tmp_path, f"{row(0.1)} {row(0.2)}\r\n{row(0.3)}\r\n")) == [1, 2, 3]
    assert steps(written(tmp_path, f"{row(0.1)}\r{row(0.2)}\r{row(0.3)}")) == [1, 2, 3]


def test_other_dicts_are_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has neither rows with a step"):
        written(tmp_path, "{'learning_rate': 1e-6, 'batch_size': 8}\n{'question': 'a', 'answer': 'b'}\n{'reward': 1}\n")


def test_a_dict_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    log = written(tmp_path, rows((0.1,)) + "{'loss': 0.1, 'reward':\n" + "words\n" * 2000 + rows((0.2,)))
    assert steps(log) == [1, 2] and log.notes[0].startswith("Skipped 1 row: cut off (line 2")


# ---- tables


@pytest.mark.parametrize(
    "text",
    [
        "| Step | Training Loss | reward |\n|---|---|---|\n| 1 | 0.1 | 0.5 |\n| 2 | 0.2 | 0.25 |\n",
        "Words.\n\nStep\tTraining Loss\treward\n1\t0.1\t0.5\n2\t0.2\t0.25\nWords.\n",
        "Step   Training Loss   reward\n1      0.100000        0.500000\n2      0.200000        0.250000\n",
        "Step | Training Loss | reward\n1 | 0.1 | 0.5\n2 | 0.2 | 0.25\n3 | 0.2\n",
    ],
)
def test_tables(tmp_path: Path, text: str) -> None:
    log = written(tmp_path, text, "table.txt")
    assert (steps(log), values(log, "reward/mean"), values(log, "loss")) == ([1, 2], [0.5, 0.25], [0.1, 0.2])


def test_an_empty_cell_was_not_logged(tmp_path: Path) -> None:
    text = "Step | Training Loss | Validation Loss | reward\n1 | No log | 0.5 | nan\n2 | 0.25 |  | 1,000.5\n"
    log = written(tmp_path, text)
    assert steps(log, "loss") == [2] and steps(log, "eval/loss") == [1]
    assert np.array_equal(log.series["reward/mean"].values, [math.nan, 1000.5], equal_nan=True)


def test_sparklines_are_no_numbers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="only W&B's sparklines"):
        written(tmp_path, "wandb: Run history:\nwandb:   actor/entropy ▁▂▃▅▇\nwandb:   actor/lr ▁▁▁▁▁\n")
