from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.agent import SearchAgent
from holdfast.agent.protocol import CLEAN
from holdfast.evaluate.questions import answerable, new_words
from holdfast.recipe import Config, load
from holdfast.recipe.loading import find_recipe
from holdfast.tasks.opening import open_retriever, open_tasks
from holdfast.tasks.world.model import world_tokenizer

from ..agent.conftest import Shelf


@pytest.fixture(scope="module")
def config() -> Config:
    return load(find_recipe("quickstart"))


@pytest.fixture(scope="module")
def agent(config: Config) -> SearchAgent:
    """An agent of the bundled world that knows its words and passages, and cannot say anything."""
    policy: Any = type("Policy", (), {"tokenizer": world_tokenizer(config.world, [], CLEAN)})()
    return SearchAgent(policy=policy, retriever=open_retriever(config, open_tasks(config)), protocol=CLEAN)


def test_the_words_of_the_world_are_not_new(agent: SearchAgent, config: Config) -> None:
    questions = open_tasks(config).questions()
    for example in [*questions.test[:200], *questions.train[:200]]:
        assert new_words(example.question, agent, config) == []


def test_words_are_new_to_the_model_and_to_the_passages_apart(agent: SearchAgent, config: Config) -> None:
    asked = "What is the mentor's capital of France, and of France?"
    new = ["words that the model has never seen: capital, France", "words that no passage has: capital, France"]
    assert new_words(asked, agent, config) == new
    large = load(find_recipe("quickstart"), ["--model.path", "some/model"])
    assert new_words(asked, agent, large) == new[1:], "a large model reads any word"
    elsewhere = replace(agent, retriever=Shelf(lambda query: []))
    assert new_words(asked, elsewhere, config) == new[:1], "a server's passages are not searched word by word"
    assert new_words("Who was it?", agent, config) == []


def row(question: str, em: float | None) -> str:
    return json.dumps({"question": question, "em_greedy": [em], "em_sampled": [1.0, 0.0]}) + "\n"


def test_questions_to_try_are_those_it_has_answered(tmp_path: Path, config: Config) -> None:
    rows = [
        row("A?", 0.0),
        row("B?", 1.0),
        row("C?", None),
        "no json\n",
        row("D?", 1.0),
        row("E?", 1.0),
        row("F?", 1.0),
    ]
    (tmp_path / "answers.jsonl").write_text("".join(rows))
    assert answerable(tmp_path, config) == (
        "held-out questions that it has answered correctly",
        ["B?", "D?", "E?"],
    )


@pytest.mark.parametrize("rows", [None, "", row("A?", 0.0), "no json\n"])
def test_without_such_questions_others_are_shown_and_not_praised(
    tmp_path: Path, config: Config, rows: str | None
) -> None:
    if rows is not None:
        (tmp_path / "answers.jsonl").write_text(rows)
    what, questions = answerable(tmp_path, config)
    assert what == "held-out questions"
    assert questions == [example.question for example in open_tasks(config).questions().test[:3]]
