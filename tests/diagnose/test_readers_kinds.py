"""Kinds of logs that people bring: small ones of the same form, and the reward in each; and what they are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.base.errors import DataError
from holdfast.cli.main import app
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import headline
from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers.facts import row_in
from holdfast.diagnose.readers.names import host_of, like_a_reward, spelled

from .written import NUMBERED, REWARDS, jsonl, lines, points, read, write


def rows(*parts: dict[str, Any], every: int = 1) -> str:
    """A row of JSON for each part of every step; `"R"` is the reward of the step, and parts but the first come at
    every so many steps."""

    def filled(value: Any, i: int, r: float) -> Any:
        if isinstance(value, dict):
            return {name: filled(part, i, r) for name, part in value.items()}
        return {"I": i, "R": r}.get(value, value) if isinstance(value, str) else value

    return jsonl(filled(part, i, r) for i, r in NUMBERED for k, part in enumerate(parts) if k == 0 or i % every == 0)


def table(header: str, row: str) -> str:
    return f"{header}\n{lines(row)}"


def notebook(*outputs: object) -> str:
    cells = [{"cell_type": "markdown", "source": "x"}, {"cell_type": "code", "outputs": outputs}]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4})


SHOWN = [
    '<progress value="6" max="6"></progress>',
    "<table><tr><th>Step</th><th>Training Loss</th><th>reward</th></tr>\n<tr><td>1</td><td>0.2</td><td>9</td></tr>",
    "<tr><td>2</td><td>0.1</td><td>8</td></tr></table>\n",
    '<table border="1">\n <thead><tr style="x: y;"><th>Step</th><th>kl / x</th><th>reward</th></tr></thead>\n',
    *lines("<tr>\n<td>{i}</td>\n<td>No Log</td><td> <b>{r}</b></td></tr>").splitlines(keepends=True),
    "</tbody></table><p>9\t9\t9",
]
PROSE = "\nwe go step by step down\n1 2 3\n4 5 6 7 8\n"
BAR = "Training:  {i}%|█▏| {i}/60 [00:{i:02d}<00:10, 1.0it/s, loss=0.5, reward={r}]"

FILES = {
    # What stands in a file of its own kind.
    "bold.md": "| Step | Reward |\n|---|---|\n" + lines("| **{i}** | {r} |"),
    "iterations.md": "# Run\n\n| Iteration | Reward |\n|---|---|\n" + lines("| {i} | {r} |") + "\nDone.\n",
    "pandas.txt": table("    step  mean_reward   loss", "{i}0  {i:4} {r:12}    0.5") + PROSE,
    "pandas-without-index.txt": table("step  mean_reward   loss", "{i:4} {r:12}    0.5") + PROSE,
    "lists.json": json.dumps({"name": "x", "history": {"mean_reward": REWARDS, "loss": [0.5] * 12}}, indent=1),
    "epochs.json": json.dumps([{"epoch": i, "reward": r} for i, r in NUMBERED]),
    "lists-of-numbers.json": json.dumps([{"step": i, "reward": r, "rewards": [0.0, 1.0]} for i, r in NUMBERED]),
    "by-step.json": json.dumps({str(i): {"reward": r, "loss": 0.5} for i, r in NUMBERED}),
    "nested.json": json.dumps(
        {"training": {"steps": [{"step": i, "metrics": {"reward": r}} for i, r in NUMBERED]}, "eval": {"acc": 0.5}}
    ),
    "over-lines.jsonl": "\n".join(json.dumps({"step": i, "reward": r}, indent=1) for i, r in NUMBERED),
    "names.jsonl": rows({"step": "I", "mean_reward": "R"}),
    "minmax.jsonl": rows({"step": "I", "reward/min": 0.0, "reward/max": 1.0, "mean_reward": "R"}),
    "metrics.jsonl": rows({"step": "I", "metrics": {"reward": "R"}}),
    "nested.jsonl": rows({"step": "I", "metrics": {"reward": {"mean": "R", "std": 0.1}}}),
    "train.jsonl": rows({"step": "I", "time": 0.5, "train": {"reward": "R", "loss": 0.5}}),
    "epochs.jsonl": rows({"epoch": "I", "avg_reward": "R", "at": "9:00"}),
    "alone.jsonl": rows({"step": "I", "env_reward": "R", "kl": 0.1}),
    "wrapped.jsonl": jsonl(
        {"log": f"step {i} loss 0.5 reward {r}\n", "stream": "stdout", "time": "2026-01-02T10:11:12Z"}
        for i, r in NUMBERED
    ),
    "fields.jsonl": rows({"ts": "2026-01-02", "msg": "train", "fields": {"global_step": "I", "reward_mean": "R"}}),
    "text.jsonl": jsonl(
        {"step": i, "event": "end", "metrics": f"{{'reward': {r}, 'kl_div': np.float64(0.5)}}"} for i, r in NUMBERED
    ),
    "completions.jsonl": jsonl(
        {"task_id": f"q{i}", "reward": {"total": r + d, "format": 1.0}, "completion_len": 10}
        for i, r in NUMBERED
        for d in (-0.125, 0.125)
    ),
    "samples.jsonl": rows({"step": "I", "total_reward": "R"}, {"step": "I", "reward": 1.0}, every=5),
    "names.csv": table("step,Avg. Reward", "{i},{r}"),
    "long.csv": "step,tag,value,dir_name\n" + lines("{i},train/reward,{r},a", "{i},train/loss,0.5,a"),
    "shares.csv": "step,reward\n" + "".join(f"{i},{100 * r:.1f}%\n" for i, r in NUMBERED),
    "object-before.csv": '#{"env_id": "a"}\n' + table("step,reward", "{i},{r}"),
    "comments-before.csv": "# run 3\n# lr 1e-6\n\n" + table("step,reward", "{i},{r}"),
    "separator-before.csv": "sep=,\n" + table("step,reward", "{i},{r}"),
    "separator-of-none-before.csv": "sep=\n" + table("step,reward", "{i},{r}"),
    "blank-before.csv": "\n" + table("step,reward", "{i},{r}"),
    "run-a-tag-train_reward.csv": table("Wall time,Step,Value", "170000000{i:02},{i},{r}"),
    "reward.csv": table("Wall time,Step,Value", "170000000{i:02},{i},{r}"),
    "table.ipynb": notebook(
        {"data": {"text/html": SHOWN, "text/plain": ["<HTML>"]}}, {"text": "step 1 loss 1 reward 9"}
    ),
    "printed.ipynb": notebook({"text": ["Rewards: 44 (0.30%)\n"]}, {"text": [lines("step {i} reward {r} loss 0.5")]}),
    "result.ipynb": notebook({"data": {"text/plain": lines("{{'loss': 0.5, 'reward': {r}, 'step': {i}}},")}}),
}


def counted(form: str) -> str:
    """Lines with a count of answers, `{c}`, that moves with the reward."""
    return "".join(form.format(i=i, r=r, c=int(16 * r)) + "\n" for i, r in NUMBERED)


PRINTED = {
    # What scripts, terminals and tables print, as a train.log.
    "a count before the row": lines("{i}/12 | loss=0.50 | reward={r}"),
    "epochs with a count": lines("Epoch:[1/1]({i}/12), Reward: {r}, KL_ref: 0.0010, Avg Response Len: 271.38"),
    "statistics below the step": "Batch reward stats - mean: 9.0\n"
    + lines("epoch 0, step {i}\n[DEBUG] Batch reward stats - mean: {r}, min: -0.4000, max: 4.0000\nenv/search\n1.5"),
    "prime-rl": lines("09:02:17  SUCCESS Step {i} |   1m36s | Reward {r} | Turns 3.1 | Truncation 14.0%"),
    "a wrapped line of verl": lines("(W pid=1) step:{i}\n - critic/score/mean:{r}\n(W pid=1)  - actor/lr:1e-6"),
    "plain words": lines("step {i} loss 0.5 reward {r}"),
    "brackets": lines("[step 0{i}] loss=0.5 reward={r}"),
    "walls": lines("Step {i}/40 | Loss: 0.5 | Mean Reward: {r}"),
    "a line of logging": lines("2026-01-02 10:11:12,123 - INFO - trainer - iteration {i} loss 0.5 avg_reward {r}"),
    "colours": lines("\x1b[32mINFO\x1b[0m [train.py:33] Epoch {i}: loss=0.5, reward={r}"),
    "a bar": lines(" {i}%|█▏   | {i}/40 [00:01<00:12,  3.1it/s, loss=0.5, reward={r}]"),
    "bars in one line": "begin\n" + "".join(BAR.format(i=i, r=r) for i, r in NUMBERED) + "\n",
    "tensors": lines("step {i}: loss=tensor(0.5, device='cuda:0', grad_fn=<NegBackward0>), reward=tensor([{r}])"),
    "types of numpy": lines("step {i} | loss: np.float64(0.5) | reward: np.float32({r})"),
    "a dict of Python": lines("step {i} | {{'loss': 0.5, 'reward': {r}}}"),
    "an object of JSON": lines('step {i} metrics: {{"loss": 0.5, "reward": {r}}}'),
    "numbers as texts": lines("step {i} | {{'loss': '0.5', 'reward': '{r}'}}"),
    "wide marks": lines("step {i}：loss：0.5，reward：{r}"),
    "thousands": lines("step {i}/40 Tokens: 1,234,567 Loss: 0.5 MeanRew: {r}"),
    "a deviation behind": lines("step {i}, Mean Reward: {r} ± 0.25, Policy Loss: 0.5"),
    "a list of equal numbers": lines("step {i}: rewards=[{r} {r}], loss=0.5"),
    "Chinese with colons": lines("步骤 {i}/60：平均奖励 {r}，损失 0.5"),
    "Chinese with walls": lines("第 {i} 步 | 奖励: {r} | 损失: 0.5"),
    "a return": lines("iteration {i} | mean return {r} | entropy 0.5"),
    "a count of answers in a batch": counted("Epoch 1 | Batch {i} | Reward: {r} | Acc: 50.00% ({c}/16)"),
    "a count of answers in a rollout": counted("Rollout {i} | mean reward {r} | solved {c}/16"),
    "a count of answers in an episode": counted("Episode {i}: reward {r}, solved {c}/16, length 120"),
    "a count of answers in brackets": counted("Update {i}: reward {r} [{c}/16 correct]"),
    "a count of answers behind a bar": counted("Epoch {i} ({i}%|█| {i}/99 [00:01<00:02]) step {i} reward {r} ({c}/16)"),
    "a table below a heading": lines(
        "20260102-10:11:12.123 Stats INFO: Epoch 1/2 Step {i}/40 done.",
        "│ actor/task_reward/avg │ {r:.4e} │",
        "│ actor/seq_len/avg     │ 4.0000e+02 │",
    ),
    "a heading of logging above lines with a step of their own": "".join(
        f"({i}/40) reward {r}\n10:11 INFO step {i // 4 * 4}: saved\n" for i, r in NUMBERED
    ),
    "the line of an epoch that sums up its steps": "".join(
        f"step {i} | loss 0.5 | reward {r}\n"
        + f"Epoch {i // 4} finished: avg loss 0.5, avg reward 0.9\n" * (i % 4 == 0)
        for i, r in NUMBERED
    ),
    "epochs where nothing finer is said": lines("Epoch {i} finished: avg reward {r}"),
    "a reward below the line with its step": lines(
        "Epoch: 0 | Step: {i} | Actor Loss: 0.5", "Latency: 12.17s", "Average reward score: {r}"
    ),
    "a sample that is shown now and then": "".join(
        f"10:11 - INFO - rl_loss: 0.5, entropy: 0.25, data: {{'count': 256, 'total_reward': {r}}}\n"
        + f"10:11 - INFO - reward: {{'format': 1.0, 'reward': {i % 2}.0}}\n" * (i % 4 == 0)
        for i, r in NUMBERED
    ),
    "the reward of one completion beside a mean": lines(
        "Step {i} - Average Reward: {r}", "Step {i} - Sample: reward 1.0 for 'Oslo'"
    ),
    "the reward of one completion around a mean": lines(
        "Step {i}", "Prompt: What is 3+4? Reward 0.0", "mean_reward: {r}", "Reward 1.0"
    ),
    "workers that say the same": lines(*(f"(Worker pid={k}) step {{i}}/40 loss=0.5 reward={{r}}" for k in "12")),
    "ranks that say the same": lines(*(f"(rank{k}) step {{i}}/40 loss=0.5 reward={{r}}" for k in "01")),
    "a line that is printed twice": lines(*["(trainer) step {i}/40 loss=0.5 reward={r}"] * 2),
    "graders that say the same without a step": lines(*(f"grader {rank}: reward_mean={{r}}" for rank in "ab")),
    "W&B's goodbye": lines("step {i}/40 loss=0.5 reward={r}")
    + "wandb: Run summary:\nwandb:   train/reward_spread 0.25\nwandb:   train/loss 5.5\n",
    "the summary of transformers": lines("Step {i} | reward: {r}")
    + "TrainOutput(global_step=12, training_loss=0.3, metrics={'train_runtime': 3.5, 'train_loss': 0.3})\n",
}


REWARD_AND_LOSS = {"plain words", "brackets", "walls", "a line of logging", "colours", "a bar"} | {
    "pandas.txt",
    "pandas-without-index.txt",
}
"""Dates, colours, counters and prose beside these are no series."""


@pytest.mark.parametrize("case", [*FILES, *PRINTED])
def test_the_reward_is_read(tmp_path: Path, case: str) -> None:
    log = read(tmp_path, FILES[case], case) if case in FILES else read(tmp_path, PRINTED[case])
    assert points(log) == NUMBERED
    loss = log.series.get("loss")
    assert loss is None or set(loss.values) == {0.5}
    if "completion around" in case:
        assert set(log.series) == {"reward/mean", "reward_shown"}
    if case in REWARD_AND_LOSS:
        assert set(log.series) - {"epoch"} == {"reward/mean", "loss"}


@pytest.mark.parametrize("separator", [";", "\t", ","])
@pytest.mark.parametrize("decimal", [".", ","])
def test_cells_may_stand_between_other_marks_and_have_decimal_commas(
    tmp_path: Path, separator: str, decimal: str
) -> None:
    cells = [f"{reward:.3f}".replace(".", decimal) for reward in REWARDS]
    quoted = [f'"{cell}"' if separator == decimal else cell for cell in cells]
    text = "".join(f"{i}{separator}{cell}\n" for i, cell in enumerate(quoted, 1))
    assert points(read(tmp_path, f"step{separator}reward\n{text}", "log.csv")) == NUMBERED


def test_thousands_stay_thousands(tmp_path: Path) -> None:
    log = read(tmp_path, "step\treward\n" + "".join(f"{i}\t1,{100 + i}\n" for i in range(12)), "log.tsv")
    assert log.series["reward/mean"].values.tolist() == [1100 + i for i in range(12)]


@pytest.mark.parametrize(
    "text",
    [
        FILES["table.ipynb"][:400],
        notebook({"data": ["x"]}, {"text": {"a": 1}}, {"data": {"text/html": [1, None], "text/plain": 5}}, 3, None),
        notebook({"data": {"text/html": "<table><tr><th>Step</th><th>reward"}}),
        '{"nbformat": 4, "cells": {"outputs": 1}}',
        '{"cells": ["cell_type", {"cell_type": "code", "outputs": null}]}',
        '{"cells": [{"cell_type": ' + "[" * 99 + "]" * 99 + "}]}",
    ],
)
def test_a_notebook_without_a_log_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="Save it with its outputs"):
        read(tmp_path, text, "run.ipynb")
    with pytest.raises(DataError, match="folder without a log"):
        read_log(tmp_path)


# ---- whose it is, and what its names mean


def test_the_console_of_prime_rl_is_one_of_its_logs(tmp_path: Path) -> None:
    trained = "09:02:17  SUCCESS Step {i} |    1m4s | Loss -0.0078 | Mismatch KL {r} | Grad. Norm 1.8771 | LR 1.00e-06"
    log = read(tmp_path, PRINTED["prime-rl"] + lines(trained), "rl.log")
    assert log.host == "prime-rl" and points(log, "sampler/mismatch_kl") == NUMBERED
    assert log.series["rollout/truncated_fraction"].values.tolist() == [0.14] * 12
    assert {"grad/norm", "lr", "rollout/turns"} <= set(log.series)


@pytest.mark.parametrize(
    ("trainable", "reward", "note"),
    [({"judge": 0.0, "solver": 1.0}, 0.3, "solver, which is trained"), ({}, 0.9, "--name reward=METRIC")],
)
def test_of_several_agents_the_trained_one(
    tmp_path: Path, trainable: dict[str, float], reward: float, note: str
) -> None:
    share = {f"train/agg/effective/{name}/is_trainable/mean": value for name, value in trainable.items()}
    rewards = {f"train/agg/effective/{name}/reward/mean": value for name, value in (("judge", 0.9), ("solver", 0.3))}
    log = read(tmp_path, rows({"step": "I", **rewards, **share, "optim/lr": 1e-6}), "agents.jsonl")
    assert set(log.series["reward/mean"].values) == {reward} and note in log.notes[0]


def test_trainer_and_orchestrator_are_one_run(tmp_path: Path) -> None:
    inner = tmp_path / "run_default"
    inner.mkdir()
    write(tmp_path, rows({"step": "I", "mismatch_kl/all/mean": 0.1, "time/step": 3.0}), "metrics.jsonl")
    write(inner, rows({"step": "I", "train/agg/effective/reward/mean": "R", "time/step": 4.0}), "metrics.jsonl")
    log = read_log(tmp_path)
    assert points(log) == NUMBERED and "sampler/mismatch_kl" in log.series and "one run" in log.notes[0]


VERL = ("critic/score/mean", "critic/rewards/mean", "critic/returns/mean", "actor/grad_norm", "response_length/mean")


@pytest.mark.parametrize("mark", ["_", "/", ".", " "])
def test_names_of_a_host_are_known_with_any_mark_between_their_parts(tmp_path: Path, mark: str) -> None:
    names = [name.replace("/", mark) for name in VERL]
    cells = "".join(f"{i},{r},{r - 0.1},{-r},1.0,100.0\n" for i, r in NUMBERED)
    path = write(tmp_path, ",".join(["step", *names]) + f"\n{cells}", "metrics.csv")
    log = read_log(path)
    assert log.host == "verl" and points(log) == NUMBERED
    assert {"grad/norm", "rollout/length", "critic/returns/mean"} <= set(log.series)
    (given,) = read_logs(path, {"reward": names[1]})
    assert given.series["reward/mean"].values.tolist() == pytest.approx([r - 0.1 for r in REWARDS])


def test_the_score_is_the_reward_before_rewards_and_never_returns() -> None:
    assert like_a_reward(["critic_returns_mean", "critic_rewards_mean"]) == "critic_rewards_mean"
    assert like_a_reward(["batch_return", "env_task_score"]) == "env_task_score"


def test_no_two_names_become_one_by_their_spelling() -> None:
    assert spelled("verl", ["critic/score/mean", "critic_score_mean"]) == {}
    assert len(set(spelled("verl", ["critic_score_mean", "critic.score.mean"]).values())) == 1


@pytest.mark.parametrize("names", [["actor_grad_norm", "reward", "kl"], ["policy_loss", "vllm_kl", "ppo_clip_ratio"]])
def test_a_host_whose_names_have_no_marks_is_still_known(names: list[str]) -> None:
    assert host_of(names) == "openrlhf"


def test_names_of_a_table_that_someone_typed_are_known(tmp_path: Path) -> None:
    typed = lines("{i}     {r}       0.97           250            0.25").splitlines()
    header = "Step  reward_mean  clipped_ratio  mean_length  zero_std_frac"
    log = read(tmp_path, "\n".join([header, *typed[:3], "...", *typed[3:]]), "table.txt")
    for name, value in {
        "rollout/truncated_fraction": 0.97,
        "rollout/length": 250.0,
        "rollout/mixed_group_fraction": 0.75,
    }.items():
        assert log.series[name].values.tolist() == [value] * 12, name


def test_statistics_have_the_name_of_what_they_are_of(tmp_path: Path) -> None:
    log = read(tmp_path, lines("step {i} length: mean=120 max=200; reward: mean={r} std=0.25 min=0 max=1"))
    assert points(log) == NUMBERED and log.series["reward/std"].values[0] == 0.25
    assert log.series["rollout/length"].values[0] == 120


def test_capitals_part_the_words_of_a_name(tmp_path: Path) -> None:
    log = read(tmp_path, table("iteration,AverageReward,StdReward", "{i},{r},0.25"), "progress.csv")
    assert points(log) == NUMBERED and log.series["reward/std"].values.tolist() == [0.25] * 12


def test_the_mean_of_a_log_of_one_thing_is_taken_for_the_reward(tmp_path: Path) -> None:
    log = read(tmp_path, rows({"step": "I", "mean": "R", "max": 1.0}), "log.jsonl")
    assert points(log) == NUMBERED and any("for the reward" in note for note in log.notes)


def test_numbers_in_objects_and_lists_of_a_row_are_read(tmp_path: Path) -> None:
    log = read(tmp_path, rows({"step": "I", "loss": 0.5, "reward": {"mean": "R", "why": "x"}, "kl": [1.0, 3.0]}))
    assert points(log) == NUMBERED and set(log.series["kl/reference"].values) == {2.0}


def test_an_accuracy_is_not_taken_for_the_reward(tmp_path: Path) -> None:
    log = read(tmp_path, lines("step {i} | acc {r} | kl 0.5"))
    assert "reward/mean" not in log.series and points(log, "acc") == NUMBERED


@pytest.fixture
def anonymous(tmp_path: Path) -> Path:
    return write(tmp_path, rows({"step": "I", "epoch": 0, "quality": "R", "max": 1.0}), "log.jsonl")


def test_a_name_that_the_user_gives(anonymous: Path) -> None:
    log = read_log(anonymous)
    said = headline(log, diagnose(log))
    assert "--name reward=METRIC" in said and "max" in said and "quality" in said and "epoch" not in said
    for command in ("diagnose", "report"):
        more = ["--out", str(anonymous.with_suffix(".html"))] if command == "report" else ["--json"]
        done = CliRunner().invoke(app, [command, str(anonymous), "--name", "reward=quality", *more])
        assert "No reward" not in done.output and done.exit_code == 0
    refused = CliRunner().invoke(app, ["diagnose", str(anonymous), "--name", "reward"])
    assert refused.exit_code != 0


def test_a_name_that_the_log_lacks(anonymous: Path) -> None:
    with pytest.raises(DataError, match=r"--name reward=qualtiy.*did you mean 'quality'"):
        read_logs(anonymous, {"reward": "qualtiy"})


# ---- one line


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("step 3 eval reward 0.5 grad norm 2.0", (3, {"eval_reward": 0.5, "grad_norm": 2.0})),
        ("step 3 format reward 0.5 reward 0.25", (3, {"format_reward": 0.5, "reward": 0.25})),
        ("step 3 loss 1e-3 time 10:11 speed 3.1it/s share 50%", (3, {"loss": 0.001, "share": 0.5})),
        ("step 3 Rewards: 0.5 (30%)", (3, {"reward": 0.5})),
        ("step 3 loss 0.5 reward inf", (3, {"loss": 0.5, "reward": float("inf")})),
        ("step 3 rewards=['0.5', '1.0'] lengths=[10, 20] names=[a, b]", (3, {"reward": 0.75, "lengths": 15.0})),
        ("the reward of step 3 is high", None),
        ("loss 0.5 reward 0.25", None),
        ("step 3: saved in 2.5 s, reward model loaded", None),
        ("step 0.5 loss 0.5", None),
        ("step 3 Zero/Negative Rewards: 44 (0.30%)", None),
    ],
)
def test_names_keep_the_word_before_them_and_prose_is_no_row(line: str, row: object) -> None:
    found = row_in(line)
    assert (found and (found[0], found[1].numbers)) == row
