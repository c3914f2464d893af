"""Which rows are a run, and at which step: several runs in one file, evaluations, counters, epochs, and no step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DataError
from holdfast.diagnose.readers import read_log, read_logs, runs, text
from holdfast.diagnose.readers.axes import axis_in, counter_in, phase_in
from holdfast.diagnose.readers.text import Tally

from .written import NUMBERED, REWARDS, jsonl, lines, points, read, write

LOST = [(i, -r) for i, r in NUMBERED]
ROWS = [{"step": i, "reward": r} for i, r in NUMBERED]

# ---- several runs


@pytest.mark.parametrize(
    "row",
    [
        "step {i}/40 loss=0.5 reward={r}",
        "{{'loss': 0.5, 'reward': {r}, 'grad_norm': 1.0, 'epoch': {i}}}",
        "step:{i} - critic/score/mean:{r} - actor/grad_norm:1.0",
    ],
    ids=["prints", "dicts", "verl"],
)
def test_runs_that_a_mark_tells_apart_are_runs_of_their_own(tmp_path: Path, row: str) -> None:
    lost = row.replace("{r}", "-{r}")
    text = lines(f"\x1b[36m(lr1e-5, pid=27)\x1b[0m {lost}", f"\x1b[36m(lr1e-6, pid=31)\x1b[0m {row}")
    down, up = read_logs(write(tmp_path, text))
    assert (down.name, up.name) == ("train: lr1e-5", "train: lr1e-6")
    assert (points(down), points(up)) == (LOST, NUMBERED)


TITLES = ("=== seed {i} ===", "##### run lr=1e-{i} #####", "--------- seed {i} ---------")


@pytest.mark.parametrize("title", TITLES)
def test_runs_below_titles_are_runs_of_their_own(tmp_path: Path, title: str) -> None:
    lost = lines("step {i} reward -{r} loss 0.5")
    text = f"{title.format(i=1)}\n{lost}{title.format(i=2)}\n{lines('step {i} reward {r} loss 0.5')}"
    down, up = read_logs(write(tmp_path, text))
    assert "1" in down.name and "2" in up.name
    assert (points(down), points(up)) == (LOST, NUMBERED)


def test_a_run_below_a_title_is_read_to_its_end_and_not_to_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "".join(f"=== seed {seed} ===\n" + lines(f"step {{i}} reward {seed}{{r}}") for seed in range(9))
    read: list[int] = []

    def counted(path: Path, tally: Tally) -> Iterator[tuple[int, str]]:
        read.append(0)
        for number, line in text.lines(path, tally):
            read[-1] = number
            yield number, line

    monkeypatch.setattr(runs, "lines", counted)
    assert len(read_logs(write(tmp_path, log))) == 9
    assert sum(read) < 0.75 * len(read) * len(log.splitlines())  # on average half of the file stands before its end


@pytest.mark.parametrize("title", [f"=== {of} ===" for of in ("epoch {i}", "level {i}", "training", "evaluation {i}")])
def test_titles_of_epochs_and_the_same_title_again_begin_no_run(tmp_path: Path, title: str) -> None:
    lost = lines("step {i} reward -{r} loss 0.5")
    text = f"{title.format(i=1)}\n{lost}{title.format(i=2)}\n{lines('step {i} reward {r} loss 0.5')}"
    assert len(read_logs(write(tmp_path, text))) == 1


def test_parts_of_one_run_with_other_names_are_one_run(tmp_path: Path) -> None:
    log = read(tmp_path, lines("(rollouts pid=1) step {i} reward {r}", "(learner pid=2) step {i} policy_loss 0.5"))
    assert points(log) == NUMBERED and "policy_loss" in log.series


def test_a_list_of_runs_is_read_run_by_run_and_lists_without_a_reward_are_left_out(tmp_path: Path) -> None:
    runs = [
        {
            "run_id": f"{sign}:0",
            "name": name,
            "seed": 3,
            "trace": [1.0, 2.0],
            "log": [{"step": i, "reward": sign * r} for i, r in NUMBERED],
        }
        for name, sign in (("down", -1), ("up", 1))
    ]
    for value in (runs, {"runs": runs, "lengths": {"n": [3.0, 4.0]}}):
        down, up = read_logs(write(tmp_path, json.dumps(value), "results.json"))
        assert down.name.endswith("down") and up.name.endswith("up")
        assert (points(down), points(up)) == (LOST, NUMBERED)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_object_of_several_runs_is_read_run_by_run(tmp_path: Path, indent: int | None) -> None:
    lists = {"reward": REWARDS, "loss": REWARDS}
    value = {"E1": {"key": "x", "merged": ROWS}, "E2": {"merged": ROWS[:6]}, "E3": lists}
    logs = read_logs(write(tmp_path, json.dumps(value, indent=indent), "runs.json"))
    assert [(log.name, len(log.steps)) for log in logs] == [("runs: E1", 12), ("runs: E2", 6), ("runs: E3", 12)]


@pytest.mark.parametrize("label", ["run_name", "config"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_rows_that_name_their_run_are_read_run_by_run(tmp_path: Path, label: str, one_by_one: bool) -> None:
    rows = [{label: run, "step": i, "reward": sign * r} for i, r in NUMBERED for run, sign in (("a", 1), ("b", -1))]
    if one_by_one:
        rows.sort(key=lambda row: str(row[label]))
    a, b = read_logs(write(tmp_path, jsonl(rows), "log.jsonl"))
    assert (a.name, b.name, points(a), points(b)) == ("log: a", "log: b", NUMBERED, LOST)


def test_a_text_that_changes_within_a_run_names_no_run(tmp_path: Path) -> None:
    rows = [{"stage": "warm" if i < 6 else "main", **row} for i, row in enumerate(ROWS)]
    assert points(read(tmp_path, jsonl(rows), "log.jsonl")) == NUMBERED


def test_a_chart_by_time_is_numbered_run_by_run(tmp_path: Path) -> None:
    cells = "".join(f"{0.7 * i},{r},{-r}\n" for i, r in NUMBERED)
    text = f"Relative Time (Process),a - train/reward,b - train/reward\n{cells}"
    a, b = read_logs(write(tmp_path, text, "chart.csv"))
    assert (a.name, b.name, points(a), points(b)) == ("a", "b", NUMBERED, LOST)
    assert any("Relative Time" in note for note in a.notes)


# ---- evaluations

EVALUATED = {
    "train.log": lines("Train | step {i} | reward: {r}", "Eval | step {i} | reward: 9.0"),
    "log.jsonl": jsonl(
        {"type": phase, "update": i, "reward": r} for i, mean in NUMBERED for phase, r in (("train", mean), ("eval", 9))
    ),
    "run.json": json.dumps({"train": ROWS, "eval": [{"step": i, "reward": 9.0} for i, _ in NUMBERED]}),
}


@pytest.mark.parametrize("name", EVALUATED)
def test_what_was_evaluated_is_told_from_what_was_trained(tmp_path: Path, name: str) -> None:
    log = read(tmp_path, EVALUATED[name], name)
    assert points(log) == NUMBERED and points(log, "eval/reward") == [(i, 9.0) for i, _ in NUMBERED]


def test_rows_of_evaluations_alone_have_no_phase() -> None:
    assert phase_in([{"type": "eval"}, {"type": "eval"}]) is None


# ---- steps


@pytest.mark.parametrize("name", ["update", "iteration", "episode", "batch_index", "Iter", "train_batch"])
def test_any_counter_of_updates_is_the_step(tmp_path: Path, name: str) -> None:
    rows = [{"tokens": 100 * i, name: 3 * i, "seed": 7, "mean_reward": r} for i, r in NUMBERED]
    assert points(read(tmp_path, jsonl(rows), "log.jsonl")) == [(3 * i, r) for i, r in NUMBERED]


def test_a_counter_of_anything_is_the_step_where_no_other_is() -> None:
    rows = [{"seen": 64 * i, "time": i, "reward": r} for i, r in NUMBERED]
    assert axis_in(rows) is None and counter_in(rows) == "seen"
    assert counter_in([{"reward": r, "time": i, "seed": 1} for i, r in NUMBERED]) is None


def test_a_step_that_never_moves_is_none(tmp_path: Path) -> None:
    rows = [{"train/global_step": 0, "_step": 2 * i, "reward": r} for i, r in NUMBERED]
    assert points(read(tmp_path, jsonl(rows), "log.jsonl")) == [(2 * i, r) for i, r in NUMBERED]
    assert axis_in(rows[:1]) == "train/global_step"


def test_a_step_that_few_rows_have_gives_way_to_one_that_all_have() -> None:
    rows: list[dict[str, Any]] = [{"_step": i, "reward": r} for i, r in NUMBERED]
    rows += [{"_step": 20 + i, "global_step": i, "loss": 0.5} for i in range(3)]
    assert axis_in(rows) == "_step"


def test_a_single_row_of_a_step_again_replaces_the_first(tmp_path: Path) -> None:
    log = read(tmp_path, jsonl([*ROWS, {"step": 12, "reward": 0.75}]), "log.jsonl")
    assert points(log) == [*NUMBERED[:-1], (12, 0.75)]


def test_bars_of_lightning_continue_over_epochs(tmp_path: Path) -> None:
    bars = [f"Epoch {e}:  {i}%|█  | {i}/3 [00:01<00:02, v_num=0, reward={e}.{i}]" for e in (0, 1) for i in (1, 2, 3)]
    log = read(tmp_path, "\r".join(bars) + "\r")
    assert points(log) == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 1.1), (5, 1.2), (6, 1.3)]


def test_a_bar_of_lightning_without_a_total_is_the_row_of_its_last_drawing(tmp_path: Path) -> None:
    """It first shows the epoch before. Behind it stands what is said of a checkpoint, with a finer step."""
    bar = "\rEpoch {i}: : 0it [04:20, ?it/s, loss=0.5, v_num=0, avg_reward={r}]"
    said = "  Epoch {i}, global step {i}00: 'avg_reward' was not in top 1"
    log = read(tmp_path, lines(bar.replace("{r}", "0.9") + bar + said, bar.replace("{r}", "0.9") + bar))
    assert points(log) == NUMBERED and not log.resumed and not log.notes


def test_a_count_behind_the_steps_in_words_is_of_something_else(tmp_path: Path) -> None:
    text = "".join(
        f"step {i} | loss 0.5 | reward {r}\nstep {i} | entropy 0.25 | reward {r}\n"
        + f"wrote questions: {i // 4}/12 | reward 0.9\n" * (i in (8, 12))
        for i, r in NUMBERED
    )
    log = read(tmp_path, text)
    assert points(log) == NUMBERED and not log.resumed
    assert any("2 lines with a count of something else" in note for note in log.notes)


def test_rows_that_a_callback_wrote_again_at_every_step_are_read_once(tmp_path: Path) -> None:
    every = [{"step": 5 * i + k, "reward": r, "loss": 0.5, "k": k} for i, r in NUMBERED for k in range(5)]
    log = read(tmp_path, jsonl({**row, "k": 1} for row in every), "log.jsonl")
    assert points(log) == [(5 * i, r) for i, r in NUMBERED]
    assert any("48 rows that repeat the row before them" in note for note in log.notes)
    assert len(points(read(tmp_path, jsonl(every), "log.jsonl"))) == 60, "a metric moves at every step"
    assert len(points(read(tmp_path, jsonl({**row, "k": 1} for row in every[:34] + every[35:]), "log.jsonl"))) == 59


@pytest.mark.parametrize(
    ("epochs", "steps"),
    [([5, 10, 15], [5, 10, 15]), ([0.5, 1, 1.5], [1, 2, 3]), ([1, 1, 2], [1, 2, 3])],
)
@pytest.mark.parametrize("name", ["run.csv", "run.jsonl", "run.md"])
def test_whole_epochs_that_rise_are_steps(tmp_path: Path, name: str, epochs: list[float], steps: list[int]) -> None:
    text = {
        "run.csv": "epoch,reward,loss\n" + "".join(f"{epoch},0.25,1.0\n" for epoch in epochs),
        "run.jsonl": jsonl({"epoch": epoch, "reward": 0.25, "loss": 1.0} for epoch in epochs),
        "run.md": "epoch | reward | loss\n" + "".join(f"{epoch} | 0.25 | 1.0\n" for epoch in epochs),
    }[name]
    log = read(tmp_path, text, name)
    assert points(log) == [(step, 0.25) for step in steps]
    assert any("counted as steps" in note for note in log.notes) == (steps[0] == 1)


# ---- printed lines without a step


def test_a_line_below_a_heading_says_one_thing_whatever_it_is_called(tmp_path: Path) -> None:
    rows = lines("==== Step {i}/12 ====", "Preparing batch...", "  • Avg Reward: {r}", "  • KL Error: 0.4")
    log = read(tmp_path, f"{rows}Step 3 was the best: 2\n")
    assert points(log) == NUMBERED and set(log.series["kl_error"].values) == {0.4}


def test_a_reward_that_is_said_again_and_again_without_a_step_is_numbered(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        lines("some text", "mean_length: 256   clipped_ratio: 1", "[grader] reward_mean={r}, reward_std=0.1"),
    )
    assert points(log) == NUMBERED and any("no steps" in note for note in log.notes)


def test_a_count_in_such_lines_is_their_step(tmp_path: Path) -> None:
    log = read(tmp_path, lines("Generated {i}0 rollouts w/ average reward {r}"))
    assert points(log) == [(10 * i, r) for i, r in NUMBERED]


def test_lines_of_configuration_are_no_rows(tmp_path: Path) -> None:
    text = (
        "(pid=7) TF config: TransformerConfig(hidden=8, step=3, aux_loss=0.5, z_loss=2)\n"
        "Error executing job with overrides: ['trainer.step=500', 'reward.len=40']\n"
        "step 500 kl_loss 0.001\n"
    )
    with pytest.raises(DataError, match="neither rows with a step"):
        read(tmp_path, text)


def test_one_step_alone_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="step 1 loss"):
        read_log(write(tmp_path, "step 3 loss 0.5 reward 0.5\n"))


# ---- blocks and bars


BLOCKS = {
    "sb3": "-----------\n| rollout/ |  |\n|    ep_rew_mean | {r} |\n| time/ | |\n|    iterations | {i} |\n-----------",
    "areal": "StatsLogger INFO: Epoch 1/1 Step {i}/12 Train step {i}/12 done.\n╒══════════╤═════╤═════╤═════╕\n"
    "│ ppo_actor/task_reward/avg │ {r} │ ppo_actor/update/lr │ 1e-6 │\n├──────────┼─────┼─────┼─────┤\n"
    "│ ppo_actor/update/grad_norm │ 0.3 │  │  │\n╘══════════╧═════╧═════╧═════╛",
    "open-instruct": "╭──────── Metrics ────────╮\n│  objective  verifiable_reward: {r} |     │\n"
    "│             kl2_avg: 0.25               │\n│  optim      grad_norm: 0.30             │\n"
    "│  other      training_step: {i} | lr: 1e-06  │\n╰─────────────────────────╯",
}


@pytest.mark.parametrize(("kind", "host"), [("sb3", "unknown"), ("areal", "areal"), ("open-instruct", "open-instruct")])
def test_a_block_between_rules_is_the_row_of_its_step_wherever_the_step_stands(
    tmp_path: Path, kind: str, host: str
) -> None:
    log = read(tmp_path, lines(BLOCKS[kind]))
    assert (log.host, points(log)) == (host, NUMBERED)
    assert kind == "sb3" or len(log.series["grad/norm"]) == len(REWARDS)


def test_a_block_with_a_text_in_it_is_read_by_lines(tmp_path: Path) -> None:
    block = "╭──── Step {i} ────╮\n│ step {i} reward {r} │\n│ the prompt: who │\n╰──────────────╯"
    assert points(read(tmp_path, lines(block))) == NUMBERED


BAR = "Train epoch [1/1]: {share:3d}%|████  | {count}/8 [00:20<00:00,  2.53s/it, {said}]"


@pytest.mark.parametrize("drawn", ["\n", "\r"])
@pytest.mark.parametrize(
    "said", ["pg=-0.0036, rm={r}, ret=0.1, glen=121, kl=0.1, act_lr=9e-7", "act_loss=-0.1, reward={r}, act_lr=9e-7"]
)
def test_a_bar_for_each_step_is_the_row_of_its_last_drawing(tmp_path: Path, said: str, drawn: str) -> None:
    """As OpenRLHF draws them. Its reward was `rm`."""
    bars = (
        BAR.format(share=count * 100 // 8, count=count, said=said.format(r=reward if count == 8 else 0.9))
        for reward in REWARDS
        for count in (1, 5, 8)
    )
    log = read(tmp_path, drawn.join(bars))
    assert (log.host, points(log)) == ("openrlhf", NUMBERED)
    assert log.series["lr"].values[0] == 9e-7
