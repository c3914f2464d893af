from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.agent.agent import SearchAgent
from holdfast.agent.observations import format_hits
from holdfast.agent.protocol import CLEAN, SEARCH_R1
from holdfast.cli import ask
from holdfast.cli.transcript import show_observation
from holdfast.evaluate.openai import WordTokenizer
from holdfast.recipe import Config
from holdfast.retrieval.types import Document, Hit

from ..evaluate.conftest import ScriptedPolicy, Shelf

Run = Callable[..., Any]
QUESTION = "Who is the mentor of Mira?"


def agent(*turns: str, broken: bool = False, **protocol: Any) -> SearchAgent:
    left = list(turns)
    policy: Any = ScriptedPolicy(WordTokenizer(), lambda context, request: left.pop(0))
    shelf = Shelf({"mentor of Mira": ['"Mira"\nThat is Kelan.'], "a": ["A\nThe letter."]}, ["a"] if broken else [])
    return SearchAgent(policy=policy, retriever=shelf, protocol=replace(CLEAN, **protocol))


def asked(agent: SearchAgent) -> str:
    file = io.StringIO()
    ask.answer(agent, QUESTION, Console(file=file, highlight=False))
    return file.getvalue()


def test_a_rollout_from_question_to_answer() -> None:
    turns = ["<think> look </think>\n<search> mentor of Mira </search>", "<answer> Kelan </answer>"]
    assert asked(agent(*turns)) == (
        "question  Who is the mentor of Mira?\n"
        "thinks    look\n"
        "searches  mentor of Mira\n"
        "finds     1 Mira · That is Kelan.\n"
        "answers   Kelan\n"
    )


@pytest.mark.parametrize(
    ("turns", "changes", "reason"),
    [
        (["<search> a </search>"] * 2, {"max_turns": 2}, "all 2 turns were used up (protocol.max_turns)"),
        # In words and signs: the prompt 9, the turn 8, the passage more than what is left of 20.
        (["<search> a </search>"], {"max_total_tokens": 20}, "the rollout reached protocol.max_total_tokens = 20"),
        ([], {"max_total_tokens": 5}, "a prompt of 9 tokens fills protocol.max_total_tokens = 5"),
    ],
)
def test_a_rollout_without_an_answer_says_why(turns: list[str], changes: dict[str, int], reason: str) -> None:
    assert asked(agent(*turns, prompt="Q: {question}", **changes)).endswith(f"\nanswers   nothing: {reason}\n")


# ---- the command


def test_a_question_is_told_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("my run", "night"):
        Path("runs", name).mkdir(parents=True)
        Path("runs", name, "config.toml").touch()
    question = partial(ask._asked_and_question, with_recipe=False)
    assert question("my run", None) == ("runs/my run", None)
    assert question("Who is it?", None)[1] == "Who is it?"
    long = "Who is the mentor of the person who " + "knew the person who " * 20 + "founded Orsa?"
    assert question(long, None)[1] == long
    asked = partial(ask._asked_and_question, with_recipe=True)
    assert asked("own/model", None) == ("own/model", None)
    assert asked("night", "Who is it?") == ("runs/night", "Who is it?")
    assert asked("Who is it?", None) == (None, "Who is it?"), "of the model of the recipe"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str, bool]]:
    """Two run folders, `old` and `new`; the list tells which agents were loaded."""
    import os

    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("new", "old")):
        folder = Path("runs", name)
        (folder / "checkpoints" / "step-000020").mkdir(parents=True)
        (folder / "config.toml").write_text("[run]\n")
        os.utime(folder / "config.toml", (1e9 - age, 1e9 - age))
    Path("runs/.new.replaced").mkdir()
    Path("runs/.new.replaced/config.toml").write_text("")  # newer than both, and no run of the user's
    loaded: list[tuple[Path, str, bool]] = []

    def fake_load(
        model: str, config: Config, run: Path | None, *, greedy: bool, checkpoint: str, **_: Any
    ) -> SearchAgent:
        loaded.append((run or Path(model), checkpoint, greedy))
        return agent(*["<answer> Kelan </answer>"] * 3, max_turns=config.protocol.max_turns)

    monkeypatch.setattr("holdfast.evaluate.model.open_agent", fake_load)
    return loaded


@pytest.mark.parametrize(("arguments", "folder"), [(["old", QUESTION], "runs/old"), ([QUESTION], "runs/new")])
def test_which_run_is_asked(runs: Any, holdfast: Run, arguments: list[str], folder: str) -> None:
    text = holdfast("ask", *arguments).stdout
    assert runs == [(Path(folder), "last", True)]
    assert text == f"question  {QUESTION}\nanswers   Kelan\n"


def test_passages_of_ones_own_need_no_questions(runs: Any, holdfast: Run) -> None:
    Path("mine.toml").write_text('[model]\npath = "some/model"\n')
    holdfast("ask", QUESTION, "--recipe", "mine.toml", "--retrieval.corpus", "c.jsonl")
    assert runs == [(Path("some/model"), "last", True)]


def test_questions_may_come_from_a_pipe(runs: Any, holdfast: Run) -> None:
    text = holdfast("ask", "old", stdin="One?\n\nTwo?\n").stdout
    assert text == "question  One?\nanswers   Kelan\n\nquestion  Two?\nanswers   Kelan\n"
    assert len(runs) == 1


def test_a_search_that_fails_is_said_and_is_the_exit_code(
    runs: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    broken = agent("<search> a </search>", "<answer> Kelan </answer>", broken=True)
    monkeypatch.setattr("holdfast.evaluate.model.open_agent", lambda *_, **__: broken)
    text = holdfast("ask", "old", stdin="One?\nTwo?\n", code=2).stdout
    assert "\nanswers   nothing: no answer for a\n\nquestion  Two?\nanswers   Kelan\n" in text


def test_checkpoints(runs: Any, holdfast: Run) -> None:
    holdfast("ask", "old", QUESTION, "--checkpoint", "step-000020")
    assert runs == [(Path("runs/old"), "step-000020", True)]
    Path("mine.toml").touch()
    stderr = holdfast("ask", "some/model", QUESTION, "--recipe", "mine.toml", "--checkpoint", "best", code=2).stderr
    assert "--checkpoint best chooses among the checkpoints of a run" in stderr


def test_a_run_that_is_not_there(runs: Any, holdfast: Run) -> None:
    stderr = holdfast("ask", "odl", QUESTION, code=2).stderr
    assert stderr == (
        "error: odl is not a run folder; to ask a model, give a recipe with --recipe\n"
        "hint: newest runs here: runs/new, runs/old\n"
    )
    assert "odl" in holdfast("ask", "odl", code=2).stderr  # one word is a run, not a question


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1], ids=lambda p: p.name)
def test_passages_as_the_environment_writes_them(protocol: object) -> None:
    documents = [
        Document("1", '"Orsa"\nOrsa is a town.\nIt is old.'),
        Document("2", "Doc (1) [x]\nLong. " + "word " * 80),
    ]
    body = "".join(format_hits([Hit(d, 1.0) for d in documents], title_quotes=protocol is SEARCH_R1)).strip()
    file = io.StringIO()
    show_observation(Console(file=file, highlight=False), f"\n\n<information>{body}</information>\n\n")
    first, second = file.getvalue().splitlines()
    quote = '"' if protocol is SEARCH_R1 else ""
    assert first == f"finds     1 {quote}Orsa{quote} · Orsa is a town. It is old."
    assert second.startswith("          2 Doc (1) [x] · Long. word word")
    assert second.endswith("word …")
    assert len(second) < 300
