from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": "orsa", "contents": '"Orsa"\nA town by the lake.'}, {"id": "mora", "contents": '"Mora"\nA village.'}]
    Path("corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Path("corpus.jsonl")


def test_from_a_corpus_to_what_an_agent_sees(corpus: Path, holdfast: Run) -> None:
    said = holdfast("index", "corpus.jsonl", "--out", "my-index").stdout
    assert 'index show my-index "a query"' in said
    shown = holdfast("index", "show", "my-index", "towns")
    assert shown.stdout == "<information>Doc 1(Title: Orsa) A town by the lake.</information>\n"
    assert "orsa" in shown.stderr  # ids and scores beside it
    quoted = holdfast("index", "show", "my-index", "towns", "--protocol", "search-r1").stdout
    assert quoted == '<information>Doc 1(Title: "Orsa") A town by the lake.</information>\n'
    assert holdfast("index", "show", "my-index", "zebra").stdout == "<information>Nothing was found.</information>\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "corpus.jsonl"], "name the folder of the index: --out DIR"),
        (["index", "nothing.jsonl", "--out", "x"], "nothing.jsonl does not exist"),
        (["index", "show", "nowhere", "query"], "nowhere holds no index"),
        (["index", "show", "my-index", "query", "--protocol", "nonsense"], "--protocol nonsense: there is no such preset"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(corpus: Path, holdfast: Run, arguments: list[str], message: str) -> None:
    holdfast("index", "corpus.jsonl", "--out", "my-index")
    assert message in holdfast(*arguments, code=2).stderr


def test_help_lists_the_commands(holdfast: Run) -> None:
    text = holdfast("index", "--help").stdout
    assert "build" in text and "show" in text
    assert holdfast("index", code=2).output.strip() == text.strip()
    assert "--replace-invalid" in holdfast("index", "build", "--help").stdout
    assert "--replace-invalid" in holdfast("index", "--replace-invalid", "--help").stdout
