"""`holdfast serve`: whether a folder is an index or a run, and which options go with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document

from .test_cli_ask import QUESTION, Run, runs

__all__ = ["runs"]


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """What was served: (a folder or a desk, settings)."""
    calls: list[tuple[Any, dict[str, Any]]] = []

    def fake(what: Any, *, on_ready: Callable[[str], None], **settings: Any) -> None:
        calls.append((what, settings))
        on_ready("http://127.0.0.1:1234")

    monkeypatch.setattr("holdfast.evaluate.endpoint.serve_agent", fake)
    monkeypatch.setattr("holdfast.retrieval.server.serve", fake)
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    return calls


@pytest.fixture
def index(runs: Any) -> str:
    BM25Retriever.build([Document("a", "Orsa\nA town.")]).save("own")
    return "own"


@pytest.mark.parametrize("named", ["old", "runs/old"])
def test_a_run_is_served_as_an_agent(runs: Any, served: Any, holdfast: Run, named: str) -> None:
    said = holdfast("serve", named, "--checkpoint", "step-000020", "--sample", "--port", "0").stdout
    assert runs == [(Path("runs/old"), "step-000020", False)]
    ((desk, settings),) = served
    assert (desk.name, desk.waiting, settings) == ("old", 16, {"host": "127.0.0.1", "port": 0, "token": None})
    assert len(desk.examples) == 3 and desk.notes(desk.examples[0]) == []
    assert "runs/old at http://127.0.0.1:1234" in said and "model: old" in said
    assert said.endswith("Stopped.\n")


def test_settings_replace_those_of_the_runs_recipe(runs: Any, served: Any, holdfast: Run) -> None:
    holdfast("serve", "old", "--protocol.max_turns", "7", "--waiting", "3")
    ((desk, _),) = served
    assert (desk.agent.protocol.max_turns, desk.waiting) == (7, 3)


def test_an_index_is_served_as_before(index: str, served: Any, holdfast: Run) -> None:
    holdfast("serve", index, "--topk", "5")
    ((folder, settings),) = served
    assert (folder, settings["topk"], settings["batching"].waiting) == (Path(index), 5, 20_000)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["old", "--topk", "3"], "--topk is for serving an index, and this is a run"),
        (["own", "--checkpoint", "last"], "--checkpoint is for serving a run, and this is an index"),
        (["own", "--trust-code"], "--trust-code is for serving a run, and this is an index"),
        (["own", "--protocol.topk", "5"], "--protocol.topk is for serving a run, and this is an index"),
        (["odl"], "odl is not a run folder; there is no index folder of that name either"),
    ],
)
def test_what_does_not_go_with_the_folder_is_refused(
    index: str, served: Any, holdfast: Run, arguments: list[str], sentence: str
) -> None:
    assert sentence in holdfast("serve", *arguments, code=2).stderr
    assert served == []


def test_without_a_token_other_machines_are_a_warning(
    runs: Any, served: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "anyone who reaches 0.0.0.0 can ask" in holdfast("serve", "old", "--host", "0.0.0.0").stderr
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    assert "anyone" not in holdfast("serve", "old", "--host", "0.0.0.0").stderr
    assert [settings["token"] for _, settings in served] == [None, "secret"]


# ---- `ask` says the same of a question


def test_ask_says_which_words_are_new_and_what_to_try(
    runs: Any, holdfast: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.ask.new_words", lambda question, *_: ["one"] if "who" in question else [])
    said = holdfast("ask", "old", stdin=f"who?\n{QUESTION}\n").stdout
    first, second, offer = said.split("\n\n")
    assert first == "question  who?\nnote      one\nanswers   Kelan"
    assert second == f"question  {QUESTION}\nanswers   Kelan"
    assert offer.startswith("To try, held-out questions:\n  ") and len(offer.strip().splitlines()) == 4
