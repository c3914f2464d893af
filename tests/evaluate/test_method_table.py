"""The table of methods: what each is, and that a new one is its definition and one entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.base.errors import ConfigError
from holdfast.cli.main import app
from holdfast.evaluate.methods import METHODS, Conversation, Limits, Method, Outcome, Prompt, method_named, search
from holdfast.evaluate.model import agent_protocol, retriever_for
from holdfast.evaluate.run import Evaluation
from holdfast.evaluate.state import read_results, read_whole_rows
from holdfast.recipe import load

from .conftest import ScriptedPolicy, Shelf, Told, evaluated_model, example


def test_searches_allowed() -> None:
    protocol = agent_protocol(METHODS["search-r1"], load(None))
    assert {name: method.searches_allowed(protocol) for name, method in METHODS.items()} == {
        "direct": "none",
        "cot": "none",
        "rag": "1",
        "ircot": "11",
        "search-o1": "5 (multi-hop 10)",
        "r1": "none",
        "search-r1": "3",
    }


def test_every_method_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "guide" / "evaluate.md").read_text(encoding="utf-8")
    rows = page.partition("## Methods")[2].partition("\n\n`search-r1`")[0].strip().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(METHODS)


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match="did you mean ircot"):
        method_named("ircoat")
    with pytest.raises(ConfigError, match="the methods are direct, cot, rag"):
        method_named("xyz")


def twice(question: str, limits: Limits) -> Conversation:
    """A toy: asks, searches with the answer, and asks again."""
    guess = yield Prompt(user=question, max_tokens=limits.answer_tokens)
    hits = yield search(guess.text)
    final = yield Prompt(user=f"{hits[0].document.contents} {question}", max_tokens=limits.answer_tokens)
    return Outcome(final.text, final.text)


def test_a_new_method_is_its_definition_and_one_entry(words: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "twice", Method(name="twice", conversation=twice, searches=True, most_searches="1"))
    answers = ["Orsa", "Tarn"]
    policy = ScriptedPolicy(words, lambda context, request: answers.pop(0))
    shelf = Shelf({"Orsa": ["Orsa lies on lake Tarn."]})
    evaluation = Evaluation(evaluated_model(policy), method_named("twice"), [example(0, "Which lake?", "Tarn")], shelf)
    evaluation.run(tmp_path, Told())
    (row,) = read_whole_rows(tmp_path / "questions.jsonl")
    assert (row["em"], row["hit"], row["searches"], row["calls"], row["status"]) == (1.0, 1.0, 1, 2, "ok")
    results = read_results(tmp_path)
    assert (results["method"], results["searches"], results["prompt"]) == ("twice", "1", "instructed")
    world = load(None, ["--world.people", "60"])
    assert retriever_for(method_named("twice"), world, ["world"]) is not None
    refused = CliRunner().invoke(app, ["eval", "run", "nowhere", "--method", "twic"])
    assert "did you mean twice?" in refused.output + str(refused.exception)
