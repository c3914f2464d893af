"""Kinds of logs that people bring: small ones of the same form, and the reward in each; and lines of scripts."""

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
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log, read_logs
from holdfast.diagnose.readers.facts import row_in

REWARDS = [0.25, 0.5, 0.125, 0.75, 0.375, 1.0]


def lines(form: str, first: int = 1) -> str:
    return "\n".join(form.format(i=i, r=r) for i, r in enumerate(REWARDS, first))


def rows(**of_all: Any) -> str:
    return "\n".join(json.dumps({"step": i, **of_all, "mean_reward": r}) for i, r in enumerate(REWARDS, 1))


def completions() -> str:
    """Two completions of each prompt, whose mean is the reward."""
    return "\n".join(
        json.dumps({"task_id": f"q{i}", "reward": {"total": r + d, "format": 1.0}, "completion_len": 10})
        for i, r in enumerate(REWARDS)
        for d in (-0.125, 0.125)
    )


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


KINDS = {
    "counts.log": lines("{i}/6 | loss=0.50 | reward={r}"),
    "epochs.log": lines("Epoch:[1/1]({i}/6), Reward: {r}, KL_ref: 0.0010, Avg Response Len: 271.38"),
    "facts.log": "Batch reward stats - mean: 9.0\n"
    + lines("epoch 0, step {i}\n[DEBUG] Batch reward stats - mean: {r}, min: -0.4000, max: 4.0000\nenv/search\n1.5"),
    "prime.log": lines("09:02:17  SUCCESS Step {i} |   1m36s | Reward {r} | Turns 3.1 | Truncation 14.0%"),
    "wrapped.log": lines("(TaskRunner pid=1) step:{i}\n - critic/score/mean:{r}\n(TaskRunner pid=1)  - actor/lr:1e-6"),
    "bold.md": "| Step | Reward |\n|---|---|\n" + lines("| **{i}** | {r} |"),
    "lists.json": json.dumps({"name": "x", "history": {"mean_reward": REWARDS, "loss": [1.0] * 6}}, indent=1),
    "names.jsonl": rows(),
    "minmax.jsonl": rows(**{"reward/min": 0.0, "reward/max": 1.0}),
    "metrics.jsonl": "\n".join(json.dumps({"step": i, "metrics": {"reward": r}}) for i, r in enumerate(REWARDS, 1)),
    "nested.jsonl": "\n".join(
        json.dumps({"step": i, "metrics": {"reward": {"mean": r, "std": 0.1}}}) for i, r in enumerate(REWARDS, 1)
    ),
    "train.jsonl": "\n".join(
        json.dumps({"step": i, "time": 0.5, "train": {"reward": r, "loss": 1.0}}) for i, r in enumerate(REWARDS, 1)
    ),
    "epochs.jsonl": "\n".join(
        json.dumps({"epoch": i, "avg_reward": r, "at": "9:00"}) for i, r in enumerate(REWARDS, 1)
    ),
    "epochs.json": json.dumps([{"epoch": i, "reward": r} for i, r in enumerate(REWARDS, 1)]),
    "names.csv": "step,Avg. Reward\n" + lines("{i},{r}"),
    "long.csv": "step,tag,value,dir_name\n" + lines("{i},train/reward,{r},a\n{i},train/loss,1.0,a"),
    "shares.csv": "step,reward\n" + "\n".join(f"{i},{100 * r}%" for i, r in enumerate(REWARDS, 1)),
    "completions.jsonl": completions(),
    "table.ipynb": notebook(
        {"data": {"text/html": SHOWN, "text/plain": ["<HTML>"]}}, {"text": "step 1 loss 1 reward 9"}
    ),
    "printed.ipynb": notebook({"text": ["Rewards: 44 (0.30%)\n"]}, {"text": [*lines("step {i} reward {r} loss 0")]}),
    "result.ipynb": notebook({"data": {"text/plain": lines("{{'loss': 0.1, 'reward': {r}, 'step': {i}}},")}}),
    "alone.jsonl": "\n".join(json.dumps({"step": i, "env_reward": r, "kl": 0.1}) for i, r in enumerate(REWARDS, 1)),
}


def reward_of(log: Log) -> tuple[list[int], list[float]]:
    series = log.series["reward/mean"]
    return series.steps.tolist(), series.values.tolist()


@pytest.mark.parametrize("name", KINDS)
def test_the_reward_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(KINDS[name], encoding="utf-8")
    assert reward_of(read_log(path)) == ([1, 2, 3, 4, 5, 6], REWARDS)


@pytest.mark.parametrize(
    "text",
    [
        KINDS["table.ipynb"][:400],
        notebook({"data": ["x"]}, {"text": {"a": 1}}, {"data": {"text/html": [1, None], "text/plain": 5}}, 3, None),
        notebook({"data": {"text/html": "<table><tr><th>Step</th><th>reward"}}),
        '{"nbformat": 4, "cells": {"outputs": 1}}',
        '{"cells": ["cell_type", {"cell_type": "code", "outputs": null}]}',
        '{"cells": [{"cell_type": ' + "[" * 99 + "]" * 99 + "}]}",
    ],
)
def test_a_notebook_without_a_log_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.ipynb").write_text(text)
    with pytest.raises(DataError, match="Save it with its outputs"):
        read_log(tmp_path / "run.ipynb")
    with pytest.raises(DataError, match="folder without a log"):
        read_log(tmp_path)


def test_the_console_of_prime_rl_is_one_of_its_logs(tmp_path: Path) -> None:
    path = tmp_path / "rl.log"
    trained = "09:02:17  SUCCESS Step {i} |    1m4s | Loss -0.0078 | Mismatch KL {r} | Grad. Norm 1.8771 | LR 1.00e-06"
    path.write_text(f"{KINDS['prime.log']}\n{lines(trained)}")
    log = read_log(path)
    assert log.host == "prime-rl"
    assert log.series["sampler/mismatch_kl"].values.tolist() == REWARDS
    assert log.series["rollout/truncated_fraction"].values.tolist() == [0.14] * 6
    assert {"grad/norm", "lr", "rollout/turns"} <= set(log.series)


def agents(**trainable: float) -> str:
    of = {"judge": 0.9, "solver": 0.3}
    share = {f"train/agg/effective/{name}/is_trainable/mean": value for name, value in trainable.items()}
    rewards = {f"train/agg/effective/{name}/reward/mean": value for name, value in of.items()}
    return "\n".join(json.dumps({"step": i, **rewards, **share, "optim/lr": 1e-6}) for i in range(1, 7))


@pytest.mark.parametrize(
    ("trainable", "reward", "note"),
    [({"judge": 0.0, "solver": 1.0}, 0.3, "solver, which is trained"), ({}, 0.9, "--name reward=METRIC")],
)
def test_of_several_agents_the_trained_one(
    tmp_path: Path, trainable: dict[str, float], reward: float, note: str
) -> None:
    path = tmp_path / "agents.jsonl"
    path.write_text(agents(**trainable))
    log = read_log(path)
    assert set(reward_of(log)[1]) == {reward} and note in log.notes[0]


def test_trainer_and_orchestrator_are_one_run(tmp_path: Path) -> None:
    inner = tmp_path / "run_default"
    inner.mkdir()
    trained = [{"step": i, "mismatch_kl/all/mean": 0.1, "time/step": 3.0} for i in range(1, 7)]
    rolled = [{"step": i, "train/agg/effective/reward/mean": r, "time/step": 4.0} for i, r in enumerate(REWARDS, 1)]
    for folder, part in ((tmp_path, trained), (inner, rolled)):
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, part)))
    log = read_log(tmp_path)
    assert reward_of(log)[1] == REWARDS and "sampler/mismatch_kl" in log.series and "one run" in log.notes[0]


@pytest.fixture
def anonymous(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text(
        "\n".join(json.dumps({"step": i, "epoch": 0, "quality": r, "max": 1.0}) for i, r in enumerate(REWARDS))
    )
    return path


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


# ---- lines that a script of one's own prints


def written(folder: Path, lines: list[str], end: str = "\n") -> Path:
    path = folder / "train.log"
    path.write_text(end.join(lines) + end, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "line",
    [
        "step {i} loss {loss} reward {reward}",
        "[step 0{i}] loss={loss} reward={reward}",
        "Step {i}/40 | Loss: {loss} | Mean Reward: {reward}",
        "2026-01-02 10:11:12,123 - INFO - trainer - iteration {i} loss {loss} avg_reward {reward}",
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
        ("step 3 loss 1e-3 time 10:11 speed 3.1it/s share 50%", (3, {"loss": 0.001, "share": 0.5})),
        ("the reward of step 3 is high", None),
        ("loss 0.5 reward 0.25", None),
        ("step 3: saved in 2.5 s, reward model loaded", None),
        ("step 0.5 loss 0.5", None),
        ("step 3 Zero/Negative Rewards: 44 (0.30%)", None),
        ("step 3 Rewards: 0.5 (30%)", (3, {"reward": 0.5})),
    ],
)
def test_names_keep_the_word_before_them_and_prose_is_no_row(line: str, row: object) -> None:
    found = row_in(line)
    assert (found and (found[0], found[1].numbers)) == row


def test_one_step_alone_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="step 1 loss"):
        read_logs(written(tmp_path, ["step 3 loss 0.5 reward 0.5"]))


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [([5, 10, 15], [5, 10, 15]), ([0.5, 1, 1.5], [1, 2, 3]), ([1, 1, 2], [1, 2, 3])],
)
@pytest.mark.parametrize("name", ["run.csv", "run.jsonl", "run.md"])
def test_whole_epochs_that_rise_are_steps(tmp_path: Path, name: str, epochs: list[float], steps: list[int]) -> None:
    rows = [(epoch, 0.25, 1.0) for epoch in epochs]
    named = [{"epoch": epoch, "reward": 0.25, "loss": 1.0} for epoch in epochs]
    text = {
        "run.csv": "epoch,reward,loss\n" + "\n".join(",".join(map(str, row)) for row in rows),
        "run.jsonl": "\n".join(map(json.dumps, named)),
        "run.md": "\n".join(" | ".join(map(str, row)) for row in [("epoch", "reward", "loss"), *rows]),
    }[name]
    (tmp_path / name).write_text(text)
    log = read_log(tmp_path / name)
    assert reward_of(log)[0] == steps
    assert any("counted as steps" in note for note in log.notes) == (steps[0] == 1)
