"""Rejection sampling: what is kept, what is learned, and a stop in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config import Config
from holdfast.errors import CheckpointError
from holdfast.language_model import load_model
from holdfast.loading import load_questions, load_retrievers
from holdfast.probes.subject import checkpoint_folder
from holdfast.run_folder import KEPT
from holdfast.train import rejection
from holdfast.train.checkpoint import model_folder
from holdfast.train.rejection import rejection_sampling, whole_steps
from holdfast.train.short_answers import short_answers
from holdfast.trajectory import Group

from .whole_runs import a_start

Recipe = Callable[..., Config]


@pytest.fixture
def some_right(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """So tiny a model is never right: call an episode right when it has an even number of tokens. Counts the calls."""
    sampled = rejection.roll_out
    calls: list[int] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs["seed"][1])
        return sampled(*args, **kwargs)

    def judged(groups: Sequence[Group], *_: Any) -> list[Group]:
        return [
            Group(
                group.id,
                tuple(replace(t, reward_parts={"em": float(len(t.token_ids) % 2 == 0)}) for t in group.trajectories),
            )
            for group in groups
        ]

    monkeypatch.setattr(rejection, "roll_out", counted)
    monkeypatch.setattr(rejection, "score", judged)
    return calls


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / KEPT).read_text().splitlines()]


def test_what_is_right_is_kept_once_and_learned(
    recipe: Recipe, some_right: list[int], tmp_path: Path, told: Any
) -> None:
    config = recipe({"train.steps": 2})
    model = rejection_sampling(config, tmp_path / "run", listener=told)
    found = rows(tmp_path / "run")
    ends = [row for row in found if "sampled" in row]
    kept = [row for row in found if "sampled" not in row]
    assert [row["sampled"] for row in ends] == [16, 16]  # 4 questions × 4
    assert sum(row["kept"] for row in ends) == len(kept) > 0
    assert all(len(row["token_ids"]) % 2 == 0 for row in kept)
    assert len({(row["id"], tuple(row["token_ids"])) for row in kept}) == len(kept)
    assert all(sum(row["loss_mask"]) > 0 and len(row["loss_mask"]) == len(row["token_ids"]) for row in kept)
    assert told.stages[-1] == (f"learning from {len(kept)} right episodes", 6)  # 2 × 3 optimizer steps
    losses = [detail["loss"] for _, detail in told.advanced if "loss" in detail][-6:]
    assert losses[-1] < losses[0]
    assert (model / "config.json").is_file() and model == tmp_path / "run" / "model"
    assert model_folder(tmp_path / "run", "last") == model, "which is what `ask` and `eval` open"
    with pytest.raises(CheckpointError, match=r"has a model and no steps; probe it as a model: .*/run/model --recipe"):
        checkpoint_folder(tmp_path / "run", "last")


def test_a_stopped_sampling_goes_on_after_its_last_whole_step(
    recipe: Recipe, some_right: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe({"train.steps": 3})
    undisturbed = rejection_sampling(config, tmp_path / "a")
    del some_right[:]
    whole = (tmp_path / "a" / KEPT).read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").write_bytes((tmp_path / "a" / "config.toml").read_bytes())
    second = whole.index(b'"sampled"', whole.index(b'"sampled"') + 1)
    (tmp_path / "b" / KEPT).write_bytes(whole[: second - 5])  # the second step was being written
    resumed = rejection_sampling(config, tmp_path / "b")
    assert some_right == [1, 2], "the first step is not sampled again"
    assert (tmp_path / "b" / KEPT).read_bytes() == whole
    assert (resumed / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_nothing_right_leaves_the_start_as_it_is(recipe: Recipe, tmp_path: Path, told: Any) -> None:
    config = recipe({"train.steps": 1})
    model = rejection_sampling(config, tmp_path / "run", listener=told)
    assert any("none of the 16 sampled episodes was right" in note for note in told.notes)
    start = a_start(config).model.state_dict()
    saved = load_model(config.model, model, torch.device("cpu")).model.state_dict()
    assert all(torch.equal(saved[name], value) for name, value in start.items())
    with pytest.raises(CheckpointError, match="sampled under another recipe"):
        rejection_sampling(recipe({"train.steps": 2}), tmp_path / "run")


def test_steps_without_their_last_row_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / KEPT
    path.write_text('{"step": 0, "token_ids": [1]}\n{"step": 0, "sampled": 2, "kept": 1}\n{"step": 1, "token_ids"')
    assert whole_steps(path) == {0: [{"step": 0, "token_ids": [1]}]}
    assert path.read_text().count("\n") == 2
    assert whole_steps(tmp_path / "absent") == {}


def test_short_answers_are_taught(recipe: Recipe) -> None:
    """What is learned are the answer and the end; behind passages only where one of them holds the answer."""
    for teaches in ("direct", "rag"):
        config = recipe({"warm_start.teaches": teaches})
        questions, retriever = load_questions(config).train, load_retrievers(config).train
        tokenizer = a_start(config).tokenizer
        lessons = short_answers(config, questions, retriever, tokenizer, 20)
        assert len(lessons) == 20 if teaches == "direct" else 0 < len(lessons) < 20
        for lesson in lessons:
            text = tokenizer.decode([i for i, m in zip(lesson.token_ids, lesson.loss_mask, strict=True) if m])
            prompt = tokenizer.decode([i for i, m in zip(lesson.token_ids, lesson.loss_mask, strict=True) if not m])
            assert prompt.endswith("Answer:") and text.endswith(tokenizer.eos_token) and text.startswith(" ")
            question = prompt.partition("Question: ")[2].removesuffix("\nAnswer:")
            (example,) = [e for e in questions if e.question == question]
            assert text.removesuffix(tokenizer.eos_token).strip() == example.golden_answers[0]
            assert ("Doc 1(Title: " in prompt) == (teaches == "rag")
            assert teaches == "direct" or any(gold in prompt for gold in example.golden_answers)
