"""A run that was stopped, killed or damaged goes on as if it never had been; what cannot is refused."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import CheckpointError, MissingExtra
from holdfast.base.files import is_locked
from holdfast.base.run_folder import FINAL_EVALUATION, list_checkpoints, step_folder
from holdfast.model import hub
from holdfast.recipe import BUNDLED, dump, load
from holdfast.tasks.factbook import FactbookTasks, load_questions
from holdfast.tasks.task_set import Questions
from holdfast.train import evaluate, run
from holdfast.train.listener import StepResult
from holdfast.train.run import resume, train
from holdfast.train.saving import Saver
from holdfast.train.trainer import Trainer

from .whole_runs import EVERYTHING, Killed, Recipe, assert_same_run, comparable


def kill_after(told: Any, step: int) -> Any:
    """A listener that ends everything when it is told of a step."""
    remember = told.step

    def die(result: StepResult) -> None:
        remember(result)
        if result.step == step:
            raise Killed

    told.step = die
    return told


def test_a_stopped_run_goes_on_as_if_it_never_had_been(whole: Path, recipe: Recipe, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    with pytest.raises(Killed):
        train(recipe(EVERYTHING), run_dir, listener=kill_after(told, 3))
    assert len(comparable(run_dir)) == 4 and not (run_dir / "results.json").exists()
    told.notes.clear()
    del told.step  # lives
    summary = resume(run_dir, listener=told)
    assert "resumed after step 2" in told.notes
    assert summary.steps == 4
    assert_same_run(whole, run_dir)


def few_of(questions: Questions) -> Questions:
    return replace(questions, dev=questions.dev[:2], test=questions.test[:2])


@pytest.mark.long
def test_so_does_a_real_model(tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolLM2 on the Factbook, with shared prefixes, a penalty and a warm start from the cache."""
    with monkeypatch.context() as patch:
        patch.delenv("HOLDFAST_CACHE")
        model = hub.stored("HuggingFaceTB/SmolLM2-135M-Instruct")
    if model is None:
        pytest.skip("needs the model: holdfast model get smollm2")
    try:
        load_questions()
    except MissingExtra as error:
        pytest.skip(str(error))
    whole = FactbookTasks.questions
    monkeypatch.setattr(FactbookTasks, "questions", lambda tasks: few_of(whole(tasks)))
    few = {
        "model.path": model,
        "eval.start": "false",
        "warm_start.steps": 12,
        "loss.penalty.name": "llds",
        "train.steps": 2,
        "train.questions": 2,
        "train.optimizer_steps_per_rollout": 2,
        "checkpoint.every": 1,
        "run.threads": 1,
    }
    config = load(BUNDLED / "factbook.toml", [f"--{name}={value}" for name, value in few.items()])
    train(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train(config, tmp_path / "run", listener=kill_after(told, 2))
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert all(row["penalty/noise_floor"] == 0.0 for row in comparable(tmp_path / "whole"))


def test_a_final_evaluation_goes_on_where_it_was_stopped(
    recipe: Recipe, tmp_path: Path, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The world has five test questions, so parts of two are rolled out, sampled and greedily, for each policy."""
    monkeypatch.setattr(evaluate, "CHUNK", 2)
    train(recipe(), tmp_path / "whole", listener=told)
    assert told.stages[-1] == ("final evaluation on test", 10)
    assert told.done[-8:] == [2, 4, 5, 5, 7, 9, 10, 10]
    rolled_out: list[tuple[str, ...]] = []
    original = evaluate.Evaluator._rollouts

    def dies_in_its_fourth_part(self: Any, agent: Any, examples: Any, size: int) -> Any:
        if len(rolled_out) == 7:
            raise Killed
        rolled_out.append(tuple(example.id for example in examples))
        return original(self, agent, examples, size)

    with monkeypatch.context() as patch:
        patch.setattr(evaluate.Evaluator, "_rollouts", dies_in_its_fourth_part)
        with pytest.raises(Killed):
            train(recipe(), tmp_path / "run")
    kept = json.loads((tmp_path / "run" / FINAL_EVALUATION).read_text())
    assert kept["after"]["questions"] == 5 and "before" not in kept

    again: list[int] = []
    monkeypatch.setattr(
        evaluate.Evaluator, "_rollouts", lambda *given: (again.append(len(given[2])), original(*given))[1]
    )
    resume(tmp_path / "run")
    assert again == [2, 2, 2, 2, 1, 1]  # the starting policy's alone
    assert not (tmp_path / "run" / FINAL_EVALUATION).exists()
    results = [json.loads((tmp_path / name / "results.json").read_text()) for name in ("whole", "run")]
    assert all({**r, "seconds": 0} == {**results[0], "seconds": 0} for r in results)


def test_a_kill_between_the_best_model_and_the_checkpoint_does_no_harm(
    whole: Path, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, save = tmp_path / "run", Saver.save

    def die_at_four(self: Saver) -> None:
        if self._trainer.completed_steps == 4:
            raise Killed
        save(self)

    with monkeypatch.context() as patch:
        patch.setattr(Saver, "save", die_at_four)
        with pytest.raises(Killed):
            train(recipe(EVERYTHING), run_dir)
    assert [p.name for p in list_checkpoints(run_dir)] == ["step-000002"]
    resume(run_dir)
    assert_same_run(whole, run_dir)
    states = [json.loads((folder / "checkpoints" / "best" / "state.json").read_text()) for folder in (whole, run_dir)]
    assert states[0] == states[1]


@pytest.mark.parametrize(
    ("sent", "raised", "during", "saved"),
    [
        (signal.SIGTERM, SystemExit, "roll_out", 2),
        (signal.SIGINT, KeyboardInterrupt, "make_batch", 3),
        (signal.SIGINT, KeyboardInterrupt, "twice", None),
    ],
)
def test_a_stop_saves_the_last_whole_step(
    whole: Path,
    recipe: Recipe,
    tmp_path: Path,
    told: Any,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    raised: type[BaseException],
    during: str,
    saved: int | None,
) -> None:
    """In its rollouts at once, in its update when that is done; a second signal waits for nothing and saves nothing."""
    name = "make_batch" if during == "twice" else during
    original = getattr(Trainer, name)

    def stopped(self: Trainer, *arguments: Any) -> Any:
        if self.completed_steps == 2:
            for _ in range(2 if during == "twice" else 1):
                signal.raise_signal(sent)
        return original(self, *arguments)

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: lambda *_: sys.exit(143)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    config = recipe(EVERYTHING | {"checkpoint.every": 0})
    try:
        with monkeypatch.context() as patch, pytest.raises(raised):
            patch.setattr(Trainer, name, stopped)
            train(config, tmp_path / "run", listener=told)
        assert all(signal.getsignal(number) is handler for number, handler in handlers.items())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ([f"step-{saved:06d}"] if saved else [])
    assert any("stopping as soon as this step is finished" in note for note in told.notes) is (during != "roll_out")
    resume(tmp_path / "run")
    assert comparable(tmp_path / "run") == comparable(whole)


@pytest.fixture
def unfinished(whole: Path, tmp_path: Path) -> Path:
    """The whole run as if it had been stopped after its last checkpoint."""
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    return tmp_path / "run"


def test_a_damaged_checkpoint_is_refused_and_the_one_before_used(whole: Path, unfinished: Path, told: Any) -> None:
    state = step_folder(unfinished, 4) / "model" / "model.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    resume(unfinished, listener=told)
    assert any("step-000004 cannot be used" in note and "step-000002" in note for note in told.notes)
    assert "resumed after step 2" in told.notes
    assert_same_run(whole, unfinished)
    assert [p.name for p in list_checkpoints(unfinished)] == ["step-000004", "step-000002"]


def test_a_cut_last_line_is_dropped(whole: Path, unfinished: Path) -> None:
    for name in ("metrics.jsonl", "trajectories.jsonl", "displacement.jsonl"):
        with (unfinished / name).open("a") as file:
            file.write('{"step": 4, "rew')
    resume(unfinished)
    assert_same_run(whole, unfinished)


def test_a_finished_run_is_left_as_it_is(whole: Path, tmp_path: Path, told: Any) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    summary = resume(run_dir, listener=told)
    assert told.stages == [] and "is finished after step 4" in told.notes[0]
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before
    results = json.loads((run_dir / "results.json").read_text())
    assert summary.after == results["after"] and summary.verdict == results["verdict"]
    assert list(map(list, summary.samples[0].turns[0][0])) == results["samples"][0]["turns"][0][0]


def test_a_run_may_be_made_longer(whole: Path, recipe: Recipe, tmp_path: Path) -> None:
    """By its recipe: the schedule counts steps from the start, so it is the run it would have been."""
    train(recipe(EVERYTHING | {"train.steps": 2}), tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text(dump(recipe(EVERYTHING)))
    assert resume(tmp_path / "run").steps == 4
    assert_same_run(whole, tmp_path / "run")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("hidden = 32", "hidden = 64", r"model\.hidden = 64, but .* was trained with 32"),
        ("train_questions = 40", "train_questions = 41", "has changed since this checkpoint was saved"),
        ("seed = 0\ndevice", "seed = 7\ndevice", "was made with seed 0, this run has seed 7"),
    ],
)
def test_another_model_or_training_file_is_refused_before_a_warm_start(
    whole: Path, unfinished: Path, told: Any, old: str, new: str, problem: str
) -> None:
    text = (unfinished / "config.toml").read_text()
    assert old in text
    (unfinished / "config.toml").write_text(text.replace(old, new))
    with pytest.raises(CheckpointError, match=problem):
        resume(unfinished, listener=told)
    assert not any("warm" in name for name, _ in told.stages), "it would be made for nothing"
    assert comparable(unfinished) == comparable(whole)  # nothing of it was cut off


def test_a_folder_is_a_runs_own_while_its_start_is_made(
    recipe: Recipe, unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes minutes, in which the folder holds a recipe and looks as if nobody needed it."""

    def building(*_: Any) -> Any:
        assert is_locked(folder / "config.toml")
        raise Killed

    monkeypatch.setattr(run, "starting_policy", building)
    begins: list[tuple[Path, Callable[[Path], Any]]] = [
        (tmp_path / "new", lambda path: train(recipe(), path)),
        (unfinished, resume),
    ]
    for folder, begin in begins:
        with pytest.raises(Killed):
            begin(folder)
        assert not is_locked(folder / "config.toml")
