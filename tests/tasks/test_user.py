"""A task set of one's own: one file that trains, evaluates and is launched, and whose mistakes are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, DataError
from holdfast.loading import load_retrievers, open_tasks
from holdfast.recipe import Config, load
from holdfast.recipe.code import code_of

LETTERS = """
class Letters:
    def questions(self):
        rows = [{"question": f"Which is number {i}?", "golden_answers": [c]} for i, c in enumerate("bcdefghijkl")]
        return {"train": rows, "test": rows[:2]}

    def passages(self):
        return ({"id": c, "title": f"Letter {i}", "text": f"Number {i} is {c}."} for i, c in enumerate("bcdefghijkl"))
"""
Make = Callable[[str], Config]


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Make]:
    """made(source): a recipe beside a module with this source, whose `Letters` it trains on."""
    import sys

    before = set(sys.modules), list(sys.path)

    def make(source: str) -> Config:
        name = f"mod_{abs(hash((request.node.name, source)))}"
        (tmp_path / f"{name}.py").write_text(source)
        recipe = tmp_path / "recipe.toml"
        recipe.write_text(f'[data]\ntrain = "{name}:Letters"\n[model]\npath = "m"\n[protocol]\ntopk = 2\n')
        return load(recipe)

    yield make
    for module in set(sys.modules) - before[0]:
        if module.startswith("mod_"):
            del sys.modules[module]
    sys.path[:] = before[1]


def test_its_rows_are_questions_and_passages(made: Make) -> None:
    config = made(LETTERS)
    tasks = open_tasks(config)
    questions = tasks.questions()
    assert (len(questions.train), len(questions.dev), len(questions.test)) == (9, 2, 2), "a tenth is held out"
    assert questions.test[1].golden_answers == ("c",) and len({e.id for e in questions.train}) == 9
    (hits,) = load_retrievers(config).train.search(["number 3"], 1)
    assert hits[0].document.title == "Letter 3"
    assert code_of(config) == {"data.train": (config.data.train,)}, "that its code runs is said before"


def test_demonstrations_are_made_or_its_own(made: Make) -> None:
    from holdfast.loading import load_protocol

    config = made(LETTERS)
    tasks, retriever, protocol = open_tasks(config), load_retrievers(config).train, load_protocol(config)
    asked = tasks.questions().train
    scripted = tasks.demonstrations(asked, retriever, protocol, seed=0, most=5)
    assert len(scripted) == 5
    row = {"question": "Which?", "turns": [{"text": "<answer> b </answer>"}]}
    own = made(f"{LETTERS}\n    def demonstrations(self):\n        return [{json.dumps(row)}]\n")
    ((question, turns),) = open_tasks(own).demonstrations(asked, retriever, protocol, seed=0, most=5)
    assert (question, turns) == ("Which?", [("<answer> b </answer>", "")])


def test_its_start_is_made_again_when_its_code_has_changed(made: Make) -> None:
    one, two = open_tasks(made(LETTERS)).fingerprint(), open_tasks(made(LETTERS + "\n# other\n")).fingerprint()
    assert one and one != two


QUESTIONS = "class Letters:\n    def questions(self):\n        return "


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Letters:\n    pass\n", "no method questions()"),
        ("class Letters:\n    def __init__(self):\n        1 / 0\n", "ZeroDivisionError"),
        (f"{QUESTIONS}exit(3)\n", "questions() fails (SystemExit"),
        (f"{QUESTIONS}[]\n", "it returned list"),
        (f"{QUESTIONS}{{'train': [], 'trian': []}}\n", "rows by split"),
        (f"{QUESTIONS}{{'train': 'text'}}\n", "must be rows"),
        (f"{QUESTIONS}{{'train': ['text']}}\n", "row 1: row: must be a dict"),
        (f"{QUESTIONS}{{'train': [{{'question': 'Who?'}}]}}\n", "row 1:"),
        (f"{QUESTIONS}{{'train': [{{'question': 'Who?', 'golden_answers': ['The']}}]}}\n", "golden_answers"),
        (f"{QUESTIONS}{{'train': [{{'question': 'Who?', 'golden_answers': ['x']}}]}}\n", "too few"),
    ],
)
def test_a_mistake_of_its_code_is_named(made: Make, source: str, said: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        open_tasks(made(source)).questions()
    assert said in str(caught.value) and "data.train = 'mod_" in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("[{'id': 'a', 'text': 'x'}, {'id': 'a', 'text': 'y'}]", "row 2: id: 'a' occurred"),
        ("[{'id': 'a'}]", "row 1:"),
        ("7", "must be rows"),
        ("(1 / 0 for _ in 'a')", "ZeroDivisionError"),
    ],
)
def test_so_is_one_of_its_passages(made: Make, rows: str, said: str) -> None:
    tasks = open_tasks(
        made(LETTERS.partition("    def passages")[0] + f"    def passages(self):\n        return {rows}\n")
    )
    with pytest.raises((ConfigError, DataError)) as caught:
        list(tasks.passages())
    assert said in str(caught.value)


def test_passages_may_be_named_by_the_recipe(made: Make, tmp_path: Path) -> None:
    config = made(LETTERS.partition("    def passages")[0])
    with pytest.raises(ConfigError, match="no passages are named"):
        load_retrievers(config)
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "Letter 1\\nNumber 1 is c."}\n')
    retrieval: Any = config.retrieval.model_copy(update={"corpus": str(tmp_path / "c.jsonl")})
    (hits,) = load_retrievers(config.model_copy(update={"retrieval": retrieval})).eval.search(["letter"], 1)
    assert hits[0].document.id == "1"
