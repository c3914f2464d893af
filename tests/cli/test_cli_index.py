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
    said = holdfast("index", "build", "corpus.jsonl", "--out", "my-index").stdout
    assert "\ncorpus.jsonl: 2 passages\n" in said and 'index show my-index "a query"' in said
    shown = holdfast("index", "show", "my-index", "towns")
    assert shown.stdout == "<information>Doc 1(Title: Orsa) A town by the lake.</information>\n"
    assert "orsa" in shown.stderr  # ids and scores beside it
    quoted = holdfast("index", "show", "my-index", "towns", "--protocol", "search-r1").stdout
    assert quoted == '<information>Doc 1(Title: "Orsa") A town by the lake.</information>\n'
    assert holdfast("index", "show", "my-index", "zebra").stdout == "<information>Nothing was found.</information>\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "build", "nothing.jsonl", "--out", "x"], "nothing.jsonl does not exist"),
        (["index", "show", "nowhere", "query"], "nowhere is not an index: it does not exist"),
        (["serve", "corpus.jsonl"], "holdfast index build corpus.jsonl --out corpus-index"),
        (["serve", "docs"], "holdfast index build docs --out docs-index"),
        (
            ["index", "show", "my-index", "query", "--protocol", "nonsense"],
            "--protocol nonsense: there is no such preset",
        ),
    ],
)
def test_what_cannot_be_done_is_a_sentence(corpus: Path, holdfast: Run, arguments: list[str], message: str) -> None:
    holdfast("index", "build", "corpus.jsonl", "--out", "my-index")
    Path("docs").mkdir()
    assert message in holdfast(*arguments, code=2).stderr


def test_a_build_says_what_it_read_and_what_it_skipped_and_why(corpus: Path, holdfast: Run) -> None:
    names = ["a.md", "b.txt", "c.odt", "d.odt", "e.odt", "f.odt", "g.epub", "LICENSE"]
    Path("docs").mkdir()
    for name in names:
        Path("docs", name).write_text(f"A town by the lake of {name}.")
    way = "save it as PDF, or convert it with `pandoc FILE -o FILE.md`"
    assert holdfast("index", "build", "docs", "--out", "my-index").stdout.splitlines()[-5:-1] == [
        "docs: 2 passages of 2 files",
        f"skipped 4 files (docs/c.odt, docs/d.odt, docs/e.odt, …): .odt is not read; {way}",
        "skipped 1 file (docs/LICENSE): a name without an ending is not read",
        f"skipped 1 file (docs/g.epub): .epub is not read; {way}",
    ]


def test_a_folder_of_office_files_says_how_to_read_them(tmp_path: Path, holdfast: Run) -> None:
    for name in ("a.docx", "b.DOCX", "c.xlsx"):
        (tmp_path / name).write_bytes(b"PK")
    said = holdfast("index", "check", str(tmp_path), code=2).stderr
    assert "contains no .md" in said
    assert said.count(".docx is not read; save it as PDF") == said.count(".xlsx is not read; save it as PDF") == 1


def test_a_dense_index(corpus: Path, holdfast: Run, encoder: Any) -> None:
    model = encoder()
    holdfast("index", "build", "corpus.jsonl", "--out", "dense", "--dense", str(model))
    shown = holdfast("index", "show", "dense", "towns", "--topk", "2")
    assert shown.stdout.count("Doc ") == 2
    model.rename(model.with_name("moved"))
    assert "cannot be loaded as an encoder" in holdfast("index", "show", "dense", "towns", code=2).stderr
    moved = holdfast("index", "show", "dense", "towns", "--topk", "2", "--model", str(model.with_name("moved")))
    assert moved.stdout == shown.stdout


@pytest.mark.parametrize("options", [["--sq8"], ["--query-prefix", ""]])
def test_options_of_a_dense_index_need_its_model(corpus: Path, holdfast: Run, options: list[str]) -> None:
    said = holdfast("index", "build", "corpus.jsonl", "--out", "x", *options, code=2).stderr
    assert "--dense MODEL" in said
    assert (
        "--no-stem is for BM25"
        in holdfast("index", "build", "c", "--out", "x", "--dense", "m", "--no-stem", code=2).stderr
    )


def test_check_shows_files_lengths_and_the_worst_passages(tmp_path: Path, holdfast: Run):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Orsa\n\nThe lake of Orsa is cold and deep.\n\n# Mora\n\n" + "long " * 90)
    (docs / "b.txt").write_text("! # $ % & ! # $ % &")
    (docs / "c.png").write_bytes(b"x")
    said = holdfast("index", "check", str(docs), "--observation", "120").stdout
    lines = said.splitlines()
    assert lines[0] == f"{docs}: 3 passages of 2 files (2 of .md, 1 of .txt)"
    assert lines[1] == f"  skipped: {docs}/c.png: .png is not read"
    assert "1 garbled" in said and "1 too long" in said
    assert lines[4].split()[0] == "b.txt#1"
    assert holdfast("index", "check", str(docs), "--topk", "1").stdout.count("too long") == 0
