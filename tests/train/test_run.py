"""Whole runs in seconds: what they write, and that one which was stopped goes on as if it never had been."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import __version__
from holdfast.config import Config, dump, load
from holdfast.errors import CheckpointError, ConfigError
from holdfast.metrics import glossary_entry
from holdfast.train import run as engine
from holdfast.train.checkpoint import find_damage, list_checkpoints, step_folder
from holdfast.train.folder import RunFolder
from holdfast.train.run import resume, train, warm_start_only
from holdfast.train.session import open_agent
from holdfast.train.trainer import Trainer

Recipe = Callable[..., Config]

EVERYTHING: dict[str, Any] = {
    "train.steps": 6,
    "train.warmup": 3,
    "train.displacement_every": 2,
    "checkpoint.every": 2,
    "eval.every": 2,
    "loss.kl_coef": 0.05,
    "loss.entropy_coef": 0.01,
    "loss.penalty.answer_weight": "adaptive-paper",
    "sampling.temperature": 0.9,
}
OTHERWISE: dict[str, Any] = {
    "train.steps": 2,
    "checkpoint.every": 1,
    "loss.penalty.name": "sapo",
    "loss.reduction": "seq-mean-token-mean",
    "loss.ratio": "sequence",
    "model.gradient_checkpointing": True,
    "sampling.top_p": 0.9,
    "sampling.top_k": 40,
    "sampling.keep_mask": True,
    "retrieval.drop": 0.5,
    "train.micro_batch_tokens": 600,
}


class Killed(BaseException):
    """Nothing in holdfast catches it."""


def kill_after(told: Any, step: int) -> Any:
    """An observer that ends everything when it is told of a step."""
    remember = told.step

    def die(at: int, total: int, metrics: Mapping[str, float]) -> None:
        remember(at, total, metrics)
        if at == step:
            raise Killed

    told.step = die
    return told


def kill_when(words: str, remember: Callable[[str], None]) -> Callable[[str], None]:
    """A `note` that ends everything when it hears these words."""

    def note(message: str) -> None:
        remember(message)
        if words in message:
            raise Killed

    return note


def comparable(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl without what a clock says."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clock = ("retrieval/latency_ms", "tokens_per_s")
    return [
        {k: v for k, v in row.items() if not k.startswith("time") and not k.endswith("_s") and k not in clock}
        for row in rows
    ]


def weights_of(run_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    (newest, *_) = list_checkpoints(run_dir)
    return load_file(newest / "model" / "model.safetensors") | load_file(newest / "optimizer.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    assert comparable(one) == comparable(other)
    for name in ("trajectories.jsonl", "displacement.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    left, right = weights_of(one), weights_of(other)
    assert left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
    results = [json.loads((folder / "results.json").read_text()) for folder in (one, other)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def whole(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with everything switched on that was never stopped."""
    torch.set_num_threads(1)
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(recipe(EVERYTHING), run_dir)
    return run_dir


# ---- what a run writes


def test_the_run_folder(whole: Path, recipe: Recipe) -> None:
    assert {p.name for p in whole.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "trajectories.jsonl",
        "displacement.jsonl",
        "findings.json",
        "report.html",
        "checkpoints",
        "results.json",
    }
    assert load(whole / "config.toml") == recipe(EVERYTHING)
    assert {p.name for p in (whole / "checkpoints").iterdir()} == {"best", "step-000004", "step-000006"}
    assert all(find_damage(p) is None for p in (whole / "checkpoints").iterdir())


def test_the_metrics(whole: Path) -> None:
    rows = comparable(whole)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5, 6]
    assert ["eval/em" in row for row in rows] == [True, False, True, False, True, False, True]
    assert set(rows[0]) == {"step", "eval/em", "eval/f1", "eval/em_greedy", "eval/f1_greedy", "eval/searches"}
    assert all(glossary_entry(name) for row in rows for name in row if name != "step")
    for step, row in enumerate(rows[1:], start=1):
        assert row["penalty/noise_floor"] == 0.0 and row["optimizer_steps_per_rollout"] == 3
        assert row["lr"] == pytest.approx(3e-3 * min(1, step / 4))  # three steps of warm-up
        assert row["loss/kl"] >= 0 and abs(row["sampler/logprob_gap"]) < 1e-4
        assert ("displacement/rows" in row) == (step % 2 == 1)  # every second one, the first among them
    # So small a model is not the same on every build of torch: some step, not a certain one, has something to learn.
    assert any(row["rollout/mixed_groups"] > 0 and row["penalty/active_fraction"] > 0 for row in rows[1:])
    assert all(row["grad/norm"] > 0 for row in rows[2:])
    assert rows[1]["loss/kl"] < rows[6]["loss/kl"]  # the policy leaves its reference


def test_the_displacement_of_single_rollouts(whole: Path) -> None:
    """The lists are what the metrics are means of."""
    metrics = {row["step"]: row for row in comparable(whole) if "displacement/rows" in row}
    rows = [json.loads(line) for line in (whole / "displacement.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(metrics) == [1, 3, 5]
    for row in rows:
        own = metrics[row["step"]]
        assert len(row["correct"]) + len(row["incorrect"]) == own["displacement/rows"]
        for kind in ("correct", "incorrect"):
            if row[kind]:
                assert sum(row[kind]) / len(row[kind]) == pytest.approx(own[f"displacement/{kind}"], rel=1e-3, abs=1e-6)


def test_the_trajectories(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "trajectories.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [step for step in range(1, 7) for _ in range(4)]
    first = rows[0]
    assert first["id"].startswith("world/train/") and first["question"].endswith("?") and first["golden_answers"]
    keys = {"text", "observation", "hits"}
    for row in rows:  # displacement is measured at every second step, the first among them
        for turn in row["turns"]:
            assert set(turn) - {"query"} == (keys | {"token_chars", "token_changes"} if row["step"] % 2 else keys)
            if row["step"] % 2:
                assert sum(turn["token_chars"]) == len(turn["text"])
                assert len(turn["token_chars"]) == len(turn["token_changes"])
    assert any(change for row in rows for turn in row["turns"] for change in turn.get("token_changes", ()))
    assert any("query" in turn for row in rows for turn in row["turns"])
    assert first["reward"] == pytest.approx(
        first["reward_parts"]["em"] + first["reward_parts"]["f1"] + 0.5 * first["reward_parts"]["format"]
    )


def test_the_results(whole: Path) -> None:
    results = json.loads((whole / "results.json").read_text())
    assert (results["split"], results["questions"], results["steps"]) == ("test", 5, 6)
    assert results["holdfast"] == __version__
    assert set(results["before"]) == set(results["after"]) == {"em", "f1", "em_greedy", "f1_greedy", "searches"}
    assert results["before"] != results["after"]
    assert results["verdict"].startswith(("Learned", "Held", "Fell", "Collapsed")) and results["seconds"] > 0
    assert len(results["samples"]) == 3 and len(results["samples"][0]["turns"][0]) == 2


def test_the_observer_is_told_everything(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    summary = train(recipe({"eval.every": 1}), tmp_path / "run", observer=told)
    names = [name for name, _ in told.stages]
    assert names == ["questions and index", "training", "final evaluation on test"]  # the warm start was in the cache
    assert any("taken from the cache" in note for note in told.notes)
    assert dict(told.stages)["training"] == 2
    assert [step for step, _ in told.steps] == [0, 1, 2]
    assert told.steps[2][1]["eval/em"] == comparable(tmp_path / "run")[2]["eval/em"]
    assert summary.steps == 2 and summary.run_dir == tmp_path / "run" and summary.samples


def test_a_warm_start_is_watched_and_kept(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    config = recipe({"warm_start.seed": 5, "warm_start.steps": 6, "train.steps": 1})
    train(config, tmp_path / "one", observer=told)
    assert ("warm start", 6) in told.stages
    assert [done for done, _ in told.advanced][:6] == [*range(1, 7)] and told.advanced[0][1]["loss"] > 3
    train(config, tmp_path / "two")
    # From the cache it is the same policy.
    assert_same_run(tmp_path / "one", tmp_path / "two")


def test_two_seeds_of_a_run_share_a_start_and_differ(recipe: Recipe, tmp_path: Path) -> None:
    for seed in (1, 2):
        train(recipe({"run.seed": seed, "eval.every": 1, "train.steps": 1}), tmp_path / str(seed))
    one, two = comparable(tmp_path / "1"), comparable(tmp_path / "2")
    assert one[0]["eval/em_greedy"] == two[0]["eval/em_greedy"]
    assert one[0]["eval/f1_greedy"] == two[0]["eval/f1_greedy"]
    assert one[1] != two[1]


def test_a_run_folder_that_is_taken_is_refused(whole: Path, recipe: Recipe) -> None:
    before = (whole / "config.toml").read_bytes()
    with pytest.raises(ConfigError, match=r"holds a run already \(metrics\.jsonl\); continue it with --resume"):
        train(recipe({"train.steps": 1}), whole)
    assert (whole / "config.toml").read_bytes() == before


def test_the_test_questions_are_read_at_the_end_alone(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, int]] = []
    evaluate = engine.evaluate

    def spy(policy: Any, examples: Any, workspace: Any, **options: Any) -> Any:
        read.append((examples[0].split, len(told.steps)))
        return evaluate(policy, examples, workspace, **options)

    monkeypatch.setattr(engine, "evaluate", spy)
    train(recipe({"eval.every": 1, "train.steps": 1}), tmp_path / "run", observer=told)
    assert read == [("dev", 0), ("dev", 1), ("test", 2), ("test", 2)]  # after, and before
    resume(tmp_path / "run")
    assert len(read) == 4


# ---- stopped and continued


def test_a_stopped_run_goes_on_as_if_it_never_had_been(whole: Path, recipe: Recipe, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(Killed):
        train(recipe(EVERYTHING), run_dir, observer=kill_after(told, 5))
    assert len(comparable(run_dir)) == 6 and not (run_dir / "results.json").exists()
    told.notes.clear()
    del told.step  # lives
    summary = resume(run_dir, observer=told)
    assert "resumed after step 4" in told.notes
    assert summary.steps == 6
    assert_same_run(whole, run_dir)


def test_so_does_another_recipe(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    """SAPO, GSPO's ratio, recomputed activations, a truncated sampler, many micro-batches."""
    train(recipe(OTHERWISE), tmp_path / "whole")
    with pytest.raises(Killed):
        train(recipe(OTHERWISE), tmp_path / "run", observer=kill_after(told, 2))
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    rows = comparable(tmp_path / "whole")
    assert all(row["penalty/noise_floor"] == 0.0 for row in rows)
    assert all(row["sampler/mass_kept"] < 1 for row in rows)


def test_so_does_a_process_killed_in_the_middle(whole: Path, recipe: Recipe, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (tmp_path / "recipe.toml").write_text(dump(recipe(EVERYTHING)))
    code = (
        "import sys; from pathlib import Path; from holdfast.config import load; from holdfast.train.run import train; "
        "train(load(sys.argv[1]), Path(sys.argv[2]))"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "recipe.toml"), str(run_dir)])
    until = time.monotonic() + 300
    log = run_dir / "metrics.jsonl"
    while time.monotonic() < until and child.poll() is None:
        # In the middle of step 4, 5 or 6, or while one of their checkpoints is being written.
        if log.is_file() and log.read_bytes().count(b"\n") >= 4:
            break
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    assert not (run_dir / "results.json").exists()
    resume(run_dir)
    assert_same_run(whole, run_dir)


def test_a_kill_before_the_first_checkpoint_costs_no_more_than_the_steps_made(
    recipe: Recipe, tmp_path: Path, told: Any
) -> None:
    config = recipe({"train.steps": 2, "checkpoint.every": 2})
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "run", observer=kill_after(told, 1))
    del told.step
    resume(tmp_path / "run", observer=told)
    assert any("no checkpoint yet, so the run begins again" in note for note in told.notes)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_kill_between_the_best_model_and_the_checkpoint_does_no_harm(
    whole: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, save = tmp_path / "run", Trainer.save

    def die_at_four(self: Trainer, folder: Path, **more: Any) -> None:
        if self.completed == 4:
            raise Killed
        save(self, folder, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", die_at_four)
        with pytest.raises(Killed):
            train(recipe(EVERYTHING), run_dir)
    assert [p.name for p in list_checkpoints(run_dir)] == ["step-000002"]
    resume(run_dir)
    assert_same_run(whole, run_dir)
    states = [json.loads((folder / "checkpoints" / "best" / "state.json").read_text()) for folder in (whole, run_dir)]
    assert states[0] == states[1]


def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(whole: Path, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "results.json").unlink()
    state = step_folder(run_dir, 6) / "model" / "model.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    resume(run_dir, observer=told)
    assert any("step-000006 is refused" in note and "step-000004" in note for note in told.notes)
    assert "resumed after step 4" in told.notes
    assert_same_run(whole, run_dir)
    assert [p.name for p in list_checkpoints(run_dir)] == ["step-000006", "step-000004"]


def test_a_cut_last_line_is_dropped(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "results.json").unlink()
    for name in ("metrics.jsonl", "trajectories.jsonl", "displacement.jsonl"):
        with (run_dir / name).open("a") as file:
            file.write('{"step": 6, "rew')
    resume(run_dir)
    assert_same_run(whole, run_dir)


def test_a_run_killed_in_its_last_evaluation_is_evaluated(whole: Path, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "results.json").write_text('{"split": "te')
    resume(run_dir, observer=told)
    assert [name for name, _ in told.stages][-1] == "final evaluation on test" and not told.steps
    assert_same_run(whole, run_dir)


def test_a_finished_run_is_left_as_it_is(whole: Path, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    summary = resume(run_dir, observer=told)
    assert told.stages == [] and "is finished: all 6 steps are made" in told.notes[0]
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before
    results = json.loads((run_dir / "results.json").read_text())
    assert summary.after == results["after"] and summary.verdict == results["verdict"]
    assert summary.samples[0].turns[0][0] == results["samples"][0]["turns"][0][0]


def test_a_run_may_be_made_longer(recipe: Recipe, tmp_path: Path) -> None:
    """By its recipe: the schedule counts steps from the start, so it is the run it would have been."""
    long = recipe({"train.steps": 3, "checkpoint.every": 1})
    train(long, tmp_path / "whole")
    train(recipe({"train.steps": 1, "checkpoint.every": 1}), tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(dump(long))
    assert resume(tmp_path / "run").steps == 3
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_other_threads_are_told_of(whole: Path, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "results.json").unlink()
    text = (run_dir / "config.toml").read_text()
    (run_dir / "config.toml").write_text(text.replace("threads = 1", "threads = 2"))
    told.note = kill_when("goes on with", told.note)
    with pytest.raises(Killed):
        resume(run_dir, observer=told)
    assert "goes on with threads 2 instead of threads 1" in told.notes[-1] and "drift" in told.notes[-1]


def test_another_training_file_is_not_continued_on(whole: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    (run_dir / "results.json").unlink()
    text = (run_dir / "config.toml").read_text()
    (run_dir / "config.toml").write_text(text.replace("train_questions = 40", "train_questions = 41"))
    with pytest.raises(CheckpointError, match="belongs to other questions"):
        resume(run_dir)
    assert comparable(run_dir) == comparable(whole)  # nothing of it was cut off


def test_two_processes_do_not_share_a_folder(recipe: Recipe, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    other = pytest.raises(ConfigError, match=r"another process is training in .*run\. Wait for it or stop it")
    with RunFolder(tmp_path / "run").writing(), other:
        resume(tmp_path / "run")
    resume(tmp_path / "run")


def test_what_is_no_run_is_not_resumed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no run folder: it has no config\.toml"):
        resume(tmp_path)


# ---- the agent of a run


def test_the_agent_of_a_run_answers(whole: Path) -> None:
    last, best = open_agent(whole), open_agent(whole, "best")
    newest = weights_of(whole)
    assert torch.equal(last.model.state_dict()["model.norm.weight"], newest["model.norm.weight"])
    assert not last.model.training and best.model is not last.model
    assert last.retriever.search(["mentor"], 1)[0] and last.protocol.max_turns == 3


# ---- runs in which something is off


def test_a_run_without_contrast_is_told_of_and_ends(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    """All rewards equal: advantages and policy gradient are exactly 0, and somebody should know."""
    config = recipe({"reward": {"em": 1.0}, "train.steps": 6, "train.weight_decay": 0.0})
    train(config, tmp_path / "run", observer=told)
    rows = comparable(tmp_path / "run")
    assert all(row["rollout/mixed_groups"] == 0 and row["grad/norm"] == 0 for row in rows)
    assert all(row["penalty/active_fraction"] == 0 for row in rows)
    assert ("GRP001", 5) in [(alarm.code, alarm.step) for alarm in told.alarms]
    assert "PEN001" not in [alarm.code for alarm in told.alarms]  # with nothing to learn, nothing drifts


# ---- the warm start alone


def test_a_warm_start_alone(recipe: Recipe, tmp_path: Path) -> None:
    made = warm_start_only(recipe(), tmp_path / "run")
    assert made == tmp_path / "run" / "model"
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= {path.name for path in made.iterdir()}
    # And a run may start from it as from any model.
    start = {"model.path": str(made), "warm_start.steps": 0, "train.steps": 1, "eval.every": 1}
    train(recipe(start), tmp_path / "next")
    train(recipe({"train.steps": 1, "eval.every": 1}), tmp_path / "direct")
    assert comparable(tmp_path / "next") == comparable(tmp_path / "direct")


def test_a_warm_start_of_no_steps_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"warm_start\.steps = 0"):
        warm_start_only(recipe({"warm_start.steps": 0}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_tiny_model_learns_from_a_file_too(whole: Path, recipe: Recipe, tmp_path: Path) -> None:
    """The sampled episodes of a run are such a file."""
    own = {"warm_start.data": str(whole / "trajectories.jsonl"), "warm_start.steps": 3, "train.steps": 1}
    scripted = warm_start_only(recipe({"warm_start.steps": 3}), tmp_path / "scripted")
    learned = warm_start_only(recipe(own), tmp_path / "learned")
    assert (scripted / "tokenizer.json").read_bytes() == (learned / "tokenizer.json").read_bytes()
    assert (scripted / "model.safetensors").read_bytes() != (learned / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model.lora_rank": 4}, "the tiny model has nothing worth freezing"),
        ({"data.train": "q.jsonl", "retrieval.corpus": "c.jsonl"}, "knows only the bundled world's words"),
        ({"warm_start.data": "nowhere.jsonl"}, r"warm_start\.data = 'nowhere\.jsonl' cannot be read: No such file"),
    ],
)
def test_a_start_that_cannot_work_is_refused(
    recipe: Recipe,
    tmp_path: Path,
    write_rows: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    problem: str,
) -> None:
    write_rows(tmp_path / "q.jsonl", [{"question": f"{i}?", "golden_answers": "x"} for i in range(10)])
    write_rows(tmp_path / "c.jsonl", [{"id": "1", "contents": "a\nb"}])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=problem):
        train(recipe(changes), tmp_path / "run")
