"""Baselines: what rejection sampling and the short answers learn, and a stop in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.listening import Told

from holdfast.agent.trajectory import Group
from holdfast.base.errors import CheckpointError
from holdfast.model.checkpoint import model_folder
from holdfast.model.language_model import LanguageModel, load_model
from holdfast.recipe import Config, load
from holdfast.tasks.opening import load_questions, load_retrievers
from holdfast.train.prepare import prepare
from holdfast.train.start import starting_policy
from holdfast_research import baselines
from holdfast_research.baselines import CORRECT, Course, rejection_sampling, sft, short_answers
from holdfast_research.methods import SHORT, words
from holdfast_research.probes import open_run

Recipe = Callable[..., Config]

SMALL: dict[str, Any] = {
    "run.device": "cpu",
    "run.threads": 1,
    "protocol.prompt": "Question: {question}\n",
    "warm_start.steps": 60,
    "warm_start.lr": 1e-2,
    "world.scripts.malformed": 0.0,
    "reward.f1": 1.0,
    "reward.format": 0.5,
    "train.steps": 2,
    "train.questions": 4,
    "train.group_size": 4,
    "train.optimizer_steps_per_rollout": 3,
    "train.lr": 3e-3,
    "eval.every": 0,
    "eval.questions": 4,
}


def losses(listener: Told) -> list[float]:
    return [detail["loss"] for _, detail in listener.advanced if "loss" in detail]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    """recipe({"train.steps": 5}): the smoke test's recipe with some settings changed."""

    def make(changes: Mapping[str, Any] | None = None) -> Config:
        settings = SMALL | dict(changes or {})
        return load(None, words({**SHORT, **settings}))

    return make


def a_start(config: Config) -> LanguageModel:
    return starting_policy(prepare(config))


@pytest.fixture
def some_correct(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """So tiny a model is never correct: a rollout is when its number of tokens is even. Counts the calls."""
    sampled = baselines.roll_out
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

    monkeypatch.setattr(baselines, "roll_out", counted)
    monkeypatch.setattr(baselines, "score", judged)
    return calls


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / CORRECT).read_text().splitlines()]


def test_what_is_correct_is_kept_once_and_learned(recipe: Recipe, some_correct: list[int], tmp_path: Path) -> None:
    listener, config = Told(), recipe({"train.steps": 2})
    model = rejection_sampling(config, tmp_path / "run", listener=listener)
    found = rows(tmp_path / "run")
    ends = [row for row in found if "sampled" in row]
    kept = [row for row in found if "sampled" not in row]
    assert [row["sampled"] for row in ends] == [16, 16]  # 4 questions × 4
    assert sum(row["correct"] for row in ends) == len(kept) > 0
    assert all(len(row["token_ids"]) % 2 == 0 for row in kept)
    assert len({(row["id"], tuple(row["token_ids"])) for row in kept}) == len(kept)
    assert all(sum(row["loss_mask"]) > 0 and len(row["loss_mask"]) == len(row["token_ids"]) for row in kept)
    assert listener.stages[-1] == (f"learning from {len(kept)} correct rollouts", 6)  # 2 × 3 optimizer steps
    assert losses(listener)[-1] < losses(listener)[-6]
    assert (model / "config.json").is_file() and model == tmp_path / "run" / "model"
    assert model_folder(tmp_path / "run", "last") == model, "which is what `ask` and `eval` open"
    with pytest.raises(CheckpointError, match=r"has a model and no steps; probe it as a model: .*/run/model --recipe"):
        open_run(tmp_path / "run", "last", [], listener, with_reference=False)


def test_a_stopped_sampling_goes_on_after_its_last_whole_step(
    recipe: Recipe, some_correct: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = recipe({"train.steps": 3})
    undisturbed = rejection_sampling(config, tmp_path / "a")
    del some_correct[:]
    whole = (tmp_path / "a" / CORRECT).read_bytes()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.toml").write_bytes((tmp_path / "a" / "config.toml").read_bytes())
    second = whole.index(b'"sampled"', whole.index(b'"sampled"') + 1)
    (tmp_path / "b" / CORRECT).write_bytes(whole[: second - 5])  # the second step was being written
    resumed = rejection_sampling(config, tmp_path / "b")
    assert some_correct == [1, 2], "the first step is not sampled again"
    assert (tmp_path / "b" / CORRECT).read_bytes() == whole
    assert (resumed / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_nothing_correct_leaves_the_start_as_it_is(recipe: Recipe, tmp_path: Path) -> None:
    listener = Told()
    config = recipe({"train.steps": 1})
    model = rejection_sampling(config, tmp_path / "run", listener=listener)
    assert any("none of the 16 sampled rollouts was correct" in note for note in listener.notes)
    start = a_start(config).model.state_dict()
    saved = load_model(config.model, model, torch.device("cpu")).model.state_dict()
    assert all(torch.equal(saved[name], value) for name, value in start.items())
    with pytest.raises(CheckpointError, match="sampled with another recipe"):
        rejection_sampling(recipe({"train.steps": 2}), tmp_path / "run")


def test_short_answers_are_taught(recipe: Recipe) -> None:
    """What is learned are the answer and the end; after passages only where one of them holds the answer."""
    config = recipe()
    questions, retrievers = load_questions(config).train, load_retrievers(config)
    tokenizer = a_start(config).tokenizer
    for retriever in (None, retrievers.train):
        examples = short_answers(config, questions, retriever, tokenizer, 20)
        assert len(examples) == 20 if retriever is None else 0 < len(examples) < 20
        for example in examples:
            learned = list(zip(example.token_ids, example.loss_mask, strict=True))
            text = tokenizer.decode([i for i, m in learned if m])
            prompt = tokenizer.decode([i for i, m in learned if not m])
            assert prompt.endswith("Answer:") and text.endswith(tokenizer.eos_token) and text.startswith(" ")
            asked = prompt.partition("Question: ")[2].removesuffix("\nAnswer:")
            (question,) = [q for q in questions if q.question == asked]
            assert text.removesuffix(tokenizer.eos_token).strip() == question.golden_answers[0]
            assert ("Doc 1(Title: " in prompt) == (retriever is not None)
            assert retriever is None or any(gold in prompt for gold in question.golden_answers)


def test_short_answers_are_learned_without_the_warm_start(recipe: Recipe, tmp_path: Path) -> None:
    listener = Told()
    config = recipe({"protocol.max_total_tokens": 300})
    course = Course(steps=20, batch_size=8, lr=1e-2)
    model = sft(config, tmp_path / "run", course, passages=True, listener=listener)
    assert listener.stages[-1] == ("supervised learning", 20)
    assert losses(listener)[-1] < losses(listener)[-20] and (model / "config.json").is_file()
