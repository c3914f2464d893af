"""Logs of every kind that is read, most of them written by the trainers themselves."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.readers import find, read_log, read_logs
from holdfast.train.listener import StepResult
from holdfast.train.tracking import MetricsFile

from .conftest import LOGS


def jsonl(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def values(log: Any, name: str) -> dict[int, float]:
    return dict(zip(log.series[name].steps.tolist(), log.series[name].values.tolist(), strict=True))


# ---- ours


def test_a_run_folder_of_ours_with_its_settings_and_its_dropped_values(tmp_path: Path) -> None:
    run = tmp_path / "calm"
    run.mkdir()
    rows = ({"reward/mean": 0.5, "grad/norm": 2}, {"reward/mean": 0.25, "grad/norm": math.inf}, {"reward/mean": 0.75})
    file = MetricsFile(run / "metrics.jsonl")
    for step, row in enumerate(rows, 1):
        file.step(StepResult(step=step, metrics=row))
    file.close()
    (run / "config.toml").write_text('[run]\nname = "calm"\n[loss.penalty]\nname = "llds"\ncoef = 0.5\n')
    log = read_log(run)
    assert (log.format, log.host, log.name, log.notes) == ("holdfast", "holdfast", "calm", ())
    assert values(log, "reward/mean") == {1: 0.5, 2: 0.25, 3: 0.75}
    assert log.series["grad/norm"].steps.tolist() == [1, 2]  # what was not finite was logged, and step 3 logged nothing
    assert math.isnan(log.series["grad/norm"].values[1])
    assert log.steps.tolist() == [1, 2, 3]
    assert log.settings == {"run.name": "calm", "loss.penalty.name": "llds", "loss.penalty.coef": 0.5}
    assert set(log.series) == {"reward/mean", "grad/norm"}
    alone = read_log(run / "metrics.jsonl")
    assert alone.name == "calm" and alone.settings == log.settings


# ---- TRL


def history(state: Path) -> list[dict[str, Any]]:
    return json.loads(state.read_text())["log_history"]


def test_trl_rows_of_one_step_merge_and_names_are_ours() -> None:
    state = LOGS / "trl-stock" / "checkpoint-6" / "trainer_state.json"
    rows = history(state)
    log = read_log(state)
    assert (log.format, log.host, log.name) == ("trl", "trl", "trl-stock")
    assert log.steps.tolist() == [1, 2, 3, 4, 5, 6]
    for theirs, ours in {
        "reward": "reward/mean",
        "entropy": "entropy/mean",
        "grad_norm": "grad/norm",
        "completions/mean_length": "rollout/length",
        "learning_rate": "lr",
        "eval_reward": "eval/reward/mean",
        "eval_entropy": "eval/entropy/mean",
        "kl": "kl/reference",
        "reward_std": "reward/std",
    }.items():
        assert values(log, ours) == {row["step"]: row[theirs] for row in rows if theirs in row}, ours
    assert values(log, "rollout/mixed_group_fraction") == {
        row["step"]: 1 - row["frac_reward_zero_std"] for row in rows if "frac_reward_zero_std" in row
    }
    assert log.settings["per_device_train_batch_size"] == 4 and log.settings["max_steps"] == 6
    nothing = [row["step"] for row in rows if None in row.values()]  # where everything was NaN
    assert nothing and all(math.isnan(values(log, "rewards/sometimes/mean")[step]) for step in nothing)


def test_our_observers_series_come_first_and_the_hosts_own_keeps_its_name() -> None:
    rows = history(LOGS / "trl-observed/checkpoint-6/trainer_state.json")
    log = read_log(LOGS / "trl-observed/checkpoint-6/trainer_state.json")
    for ours in ("rollout/length", "ratio/max", "likelihood/correct", "displacement/correct"):
        found = {row["step"]: row[f"holdfast/{ours}"] for row in rows if f"holdfast/{ours}" in row}
        assert found and values(log, ours) == found
    assert values(log, "completions/mean_length") == values(log, "rollout/length")
    assert not any("holdfast/" in name for name in log.series)


def test_of_a_folder_with_checkpoints_the_newest_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(LOGS / "trl-stock", run)
    assert read_log(run).steps.max() == 6
    (run / "checkpoint-10").mkdir()  # begun, not finished
    (run / "checkpoint-40.tmp").mkdir()
    log = read_log(run)
    assert log.steps.max() == 6 and log.name == "run"
    assert read_log(tmp_path).name == tmp_path.name  # the only run below it
    assert read_log(run / "checkpoint-3").steps.max() == 3


def test_a_checkpoint_newer_than_the_state_of_the_run_that_ended_is_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(LOGS / "trl-stock", run)
    shutil.copy(run / "checkpoint-3" / "trainer_state.json", run / "trainer_state.json")
    os.utime(run / "trainer_state.json", (1e9, 1e9))
    os.utime(run / "checkpoint-6" / "trainer_state.json", (2e9, 2e9))
    assert read_log(run).steps.max() == 6  # made longer after it had ended at 3
    os.utime(run / "trainer_state.json", (3e9, 3e9))
    assert read_log(run).steps.max() == 3


def written(folder: Path, *, steps: int, reward: float, at: float) -> None:
    """A checkpoint of a run with a reward of its own, with the time of its state."""
    folder.mkdir(parents=True)
    rows = [{"step": step, "reward": reward + 0.001 * step} for step in range(1, steps + 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    os.utime(folder / "trainer_state.json", (at, at))


def test_a_rerun_in_the_same_folder_is_read_and_not_what_was_left_there(tmp_path: Path) -> None:
    written(tmp_path / "checkpoint-60", steps=60, reward=0.1, at=1e9)
    written(tmp_path / "checkpoint-40", steps=40, reward=0.1, at=1e9 - 1)
    written(tmp_path / "checkpoint-20", steps=20, reward=0.9, at=2e9)
    log = read_log(tmp_path)
    assert log.steps.max() == 20 and log.series["reward/mean"].values.min() > 0.9
    (note,) = [note for note in log.notes if "checkpoint" in note]
    assert note.startswith("Read checkpoint-20: checkpoint-60 has a higher number, but is older")
    assert read_log(tmp_path / "checkpoint-60").steps.max() == 60


@pytest.mark.parametrize("times", [(1e9, 2e9), (2e9, 1e9), (1e9, 1e9)])
def test_of_one_run_the_last_checkpoint_is_read_whatever_the_times_of_a_copy(
    tmp_path: Path, times: tuple[float, float]
) -> None:
    for steps, at in zip((20, 100), times, strict=True):
        written(tmp_path / f"checkpoint-{steps}", steps=steps, reward=0.1, at=at)
    log = read_log(tmp_path)
    assert log.steps.max() == 100 and not any("checkpoint" in note for note in log.notes)


def test_an_output_folder_without_any_state_says_so(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5").mkdir()
    with pytest.raises(DataError, match=r"checkpoints, but none with a trainer_state\.json.*holdfast can read"):
        read_log(tmp_path)


def test_a_history_dumped_by_itself(tmp_path: Path) -> None:
    rows, whole = history(LOGS / "trl-stock/checkpoint-6/trainer_state.json"), read_log(LOGS / "trl-stock/checkpoint-6")
    for text in (json.dumps(rows), "\n".join(map(json.dumps, rows))):
        (tmp_path / "history.json").write_text(text)
        log = read_log(tmp_path / "history.json")
        assert log.host == "trl" and same_series(log, whole)


def same_series(a: Any, b: Any) -> bool:
    assert set(a.series) == set(b.series)
    return all(
        np.array_equal(a.series[name].steps, b.series[name].steps)
        and np.array_equal(a.series[name].values, b.series[name].values, equal_nan=True)
        for name in a.series
    )


# ---- verl


def test_verls_file_and_console_say_the_same() -> None:
    file, console = read_log(LOGS / "verl-file.jsonl"), read_log(LOGS / "verl-console.log")
    assert file.format == file.host == console.format == console.host == "verl"
    assert file.steps.tolist() == list(range(7))
    assert same_series(file, console)
    norms = values(file, "grad/norm")  # null in the file, nan in the console
    assert math.isnan(norms[4]) and norms[3] == 0.5
    assert console.settings["data.max_response_length"] == 12
    assert console.settings["actor_rollout_ref.actor.policy_loss.loss_mode"] == "holdfast_llds"
    rows = [json.loads(line) for line in (LOGS / "verl-file.jsonl").read_text().splitlines()]
    for theirs, ours in {
        "critic/score/mean": "reward/mean",
        "actor/entropy": "entropy/mean",
        "actor/pg_clipfrac": "clip/fraction",
        "rollout_corr/kl": "sampler/logprob_gap",
        "actor/holdfast/drift/positive": "drift/positive",
        "actor/ppo_kl": "actor/ppo_kl",
        "val-core/nq/reward/mean@1": "eval/nq/score",
    }.items():
        assert values(file, ours) == {row["step"]: row["data"][theirs] for row in rows if theirs in row["data"]}, ours


@pytest.mark.parametrize(
    "line",
    [
        "step:7 - actor/entropy:np.float64(0.5) - actor/lr:True",
        "\x1b[36m(TaskRunner pid=123)\x1b[0m step:7 - actor/entropy:0.500",
        "Training Progress:  10%|█ | 1/10 [00:01<00:09]\rstep:7 - actor/entropy:0.5 - timing_s/gen:np.float32(nan)",
        "2026-11-21 10:00:00,123 INFO (main_task pid=9) step:7 - actor/entropy:.5 - x:inf",
    ],
)
def test_a_line_of_the_console_in_all_its_dresses(tmp_path: Path, line: str) -> None:
    path = tmp_path / "job.out"
    path.write_text(f"WARNING something else, step: 3\nglobal_step:9 - x:1\n{line}\nbye\n", newline="")
    log = read_log(path)
    assert values(log, "entropy/mean") == {7: 0.5}
    assert log.steps.tolist() == [7] and log.name == "job"


def test_a_console_line_keeps_what_is_no_number_in_a_note(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("step:1 - actor/entropy:0.5 - actor/lr:fast - actor/grad_")
    log = read_log(path)
    assert set(log.series) == {"entropy/mean"}
    assert log.notes == ("Left out 2 values: not a number (the first: line 1: actor/lr:fast).",)


def test_a_torn_line_of_a_configuration_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    lines = [
        "{'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06,",
        "                                  'other",
        "                                           'warmup': 5}},",
        "                       'rollout': {'n': 8, 'top_p': 0.9}},",
        " 'trainer': {'save_freq': 20}}",
        "step:1 - actor/entropy:0.5",
    ]
    path.write_text("\n".join(lines))
    log = read_log(path)
    assert set(log.series) == {"entropy/mean"} and log.notes == ()
    assert log.settings == {
        "actor_rollout_ref.actor.optim.lr": 1e-06,
        "actor_rollout_ref.actor.optim.warmup": 5,
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.top_p": 0.9,
        "trainer.save_freq": 20,
    }


# ---- W&B


@pytest.mark.parametrize("name", ["wandb-trl.csv", "wandb-trl.jsonl"])
def test_a_wandb_history_of_trl_is_its_trainer_state_again(name: str) -> None:
    log, state = read_log(LOGS / name), read_log(LOGS / "trl-stock" / "checkpoint-6")
    assert (log.format, log.host) == ("wandb", "trl")
    assert values(log, "reward/mean") == pytest.approx(values(state, "reward/mean"), rel=1e-12)
    assert values(log, "eval/reward/mean") == pytest.approx(values(state, "eval/reward/mean"), rel=1e-12)
    assert set(log.series) == set(state.series)
    assert log.steps.tolist() == state.steps.tolist()  # train/global_step, not W&B's count of calls


def test_a_wandb_history_of_verl_and_one_of_ours(tmp_path: Path) -> None:
    verl = tmp_path / "verl.csv"
    verl.write_text(
        ",_step,_runtime,actor/entropy,critic/score/mean,note\n0,1,9.5,0.5,,x\n1,2,9.9,NaN,0.25,\n2,3,9.9,Infinity,,\n"
    )
    log = read_log(verl)
    assert (log.format, log.host) == ("wandb", "verl")
    assert log.series["entropy/mean"].steps.tolist() == [1, 2, 3]
    assert np.array_equal(log.series["entropy/mean"].values, [0.5, np.nan, np.inf], equal_nan=True)
    assert values(log, "reward/mean") == {2: 0.25}
    assert log.notes == ("Left out 1 value: not a number (line 2: note is a string).",)
    ours = jsonl(
        tmp_path / "ours.jsonl",
        {"_step": 0, "_timestamp": 1.0, "step": 11, "reward/mean": 0.5, "grad/norm": "NaN", "eval/em": None},
        {"_step": 1, "_timestamp": 2.0, "step": 12, "reward/mean": "0.25", "grad/norm": "-Infinity"},
    )
    log = read_log(ours)
    assert (log.format, log.host) == ("wandb", "holdfast")
    assert values(log, "reward/mean") == {11: 0.5, 12: 0.25}
    assert np.array_equal(log.series["grad/norm"].values, [np.nan, -np.inf], equal_nan=True)
    assert "eval/em" not in log.series


def test_a_chart_with_several_runs() -> None:
    logs = read_logs(LOGS / "wandb-chart.csv")
    assert [log.name for log in logs] == ["calm-sun-1", "wild - moon-2"]
    calm, wild = (values(log, "reward/mean") for log in logs)
    assert {step: value + 0.5 for step, value in calm.items()} == wild and len(calm) == 3
    assert all(log.host == "trl" for log in logs)
    assert "__MIN" in logs[0].notes[0]
    with pytest.raises(DataError, match="contains 2 runs: calm-sun-1, wild - moon-2"):
        read_log(LOGS / "wandb-chart.csv")


# ---- folders


def test_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("s/b", "a", "b"):
        (tmp_path / name).mkdir(parents=True)
        jsonl(tmp_path / name / "metrics.jsonl", {"step": 1, "reward/mean": 1.0})
    (tmp_path / "c" / "run" / "checkpoint-3").mkdir(parents=True)
    state = LOGS / "trl-stock/checkpoint-3/trainer_state.json"
    shutil.copy(state, tmp_path / "c" / "run" / "checkpoint-3")
    shutil.copy(LOGS / "verl-console.log", tmp_path / "job.log")
    (tmp_path / "noise.log").write_text("nothing to see\n")
    (tmp_path / "empty.csv").write_text("")
    names = ["job", "a", "b", "run", str(Path("s/b"))]  # of two runs of one name the place tells
    assert [log.name for log in read_logs(tmp_path)] == names
    with pytest.raises(DataError, match=r"contains 5 runs: job, a, b, run, .*Name one of them"):
        read_log(tmp_path)
    assert read_log(tmp_path / "c").name == "c"


def test_compressed_files_are_read_whatever_their_names(tmp_path: Path) -> None:
    for name in ("verl-file.jsonl", "verl-console.log", "wandb-trl.csv"):
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress((LOGS / name).read_bytes()))
        log, plain = read_log(packed), read_log(LOGS / name)
        assert same_series(log, plain) and log.name == plain.name
        packed.rename(tmp_path / "x.jsonl")
        assert same_series(read_log(tmp_path / "x.jsonl"), plain)


# ---- cost


def test_a_folder_of_more_logs_than_are_read_says_how_many_it_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "_MAX_FILES", 3)
    for number in range(5):
        jsonl(tmp_path / f"{number}.jsonl", {"step": 1, "reward/mean": 0.5})
    assert len(read_logs(tmp_path)) == 3
    assert caplog.messages == [f"left out 2 files and folders of {tmp_path}; only 3 are searched"]
