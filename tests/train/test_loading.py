"""From a recipe to questions and retrievers: own files, held-out questions, indexes, and input that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, DataError
from holdfast.recipe import Config
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.dense_building import build_dense
from holdfast.retrieval.encoder import spec_of
from holdfast.tasks import opening as loading
from holdfast.tasks.opening import load_questions, load_retriever, load_retrievers
from holdfast.tasks.world.facts import build_world

Recipe = Callable[..., Config]


def questions(count: int, name: str = "thing") -> list[dict[str, Any]]:
    return [{"question": f"Where is {name} {i}?", "golden_answers": [f"town {i}"]} for i in range(count)]


def passages(count: int) -> list[dict[str, Any]]:
    return [
        {"id": str(i), "contents": f"Thing {i}\nThing {i} stands in town {i}, near running waters."}
        for i in range(count)
    ]


@pytest.fixture
def own_files(tmp_path: Path, write_rows: Callable[..., str]) -> dict[str, Any]:
    """A recipe's settings for questions and passages of one's own."""
    return {
        "data.train": write_rows(tmp_path / "train.jsonl", questions(20)),
        "retrieval.corpus": write_rows(tmp_path / "corpus.jsonl", passages(20)),
    }


def test_the_worlds_training_index_has_no_passage_of_another_region(recipe: Recipe) -> None:
    splits, retrievers = load_questions(recipe()), load_retrievers(recipe())
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (40, 6, 5)
    unseen = build_world(recipe().world).facts["test"][0]
    assert retrievers.train.search([unseen.subject], 3)[0] == [] or all(
        hit.document.id.startswith("train-") for hit in retrievers.train.search([unseen.subject], 3)[0]
    )
    found = retrievers.eval.search([f"{unseen.written} of {unseen.subject}"], 1)[0]
    assert found[0].document.id == unseen.doc_id


def test_a_server_searches_in_place_of_an_index(
    recipe: Recipe, own_files: dict[str, Any], retrieve_server: Callable[..., Any]
) -> None:
    settings = {"data.train": own_files["data.train"]}
    own = load_retriever(recipe(own_files))
    server = retrieve_server(own)
    retrievers = load_retrievers(recipe(settings | {"retrieval.url": server.url}))
    assert retrievers.train is retrievers.eval and not retrievers.train.in_process
    assert retrievers.train.search(["thing 3"], 2) == own.search(["thing 3"], 2) != [[]]
    retrievers.train.search(["thing 3"], 2)
    assert [request["queries"] for request in server.requests] == [["thing 3"]]  # the second came from the cache


def test_several_answers_in_one_text_are_said(
    recipe: Recipe, own_files: dict[str, Any], tmp_path: Path, write_rows: Callable[..., str]
) -> None:
    joined = [{"question": f"{i}?", "golden_answers": f"{i}; number {i}"} for i in range(10)]
    own_files["data.train"] = write_rows(tmp_path / "q.jsonl", joined)
    notes: list[str] = []
    load_questions(recipe(own_files), note=notes.append)
    assert len(notes) == 1 and "data.train" in notes[0] and "write a list" in notes[0]


def test_every_tenth_question_is_held_out(recipe: Recipe, own_files: dict[str, Any]) -> None:
    splits = load_questions(recipe(own_files))
    assert [e.index for e in splits.dev] == [0, 10]
    assert [e.index for e in splits.train] == [i for i in range(20) if i % 10]
    assert splits.test == ()


def test_files_for_dev_and_test_leave_the_training_file_whole(
    recipe: Recipe, own_files: dict[str, Any], tmp_path: Path, write_rows: Callable[..., str]
) -> None:
    for split in ("dev", "test"):
        own_files[f"data.{split}"] = write_rows(tmp_path / f"{split}.jsonl", questions(3, split))
    splits = load_questions(recipe(own_files))
    assert (len(splits.train), len(splits.dev), len(splits.test)) == (20, 3, 3)
    assert splits.test[0].id == "test/test/0"


def test_bad_rows_are_counted_and_said(
    recipe: Recipe, own_files: dict[str, Any], tmp_path: Path, write_rows: Callable[..., str]
) -> None:
    own_files["data.train"] = write_rows(
        tmp_path / "q.jsonl", [*questions(10), {"question": "Who?", "golden_answers": ["the"]}, {"question": "?"}]
    )
    own_files["retrieval.corpus"] = write_rows(tmp_path / "c.jsonl", [*passages(5), {"id": "3", "contents": "again"}])
    notes: list[str] = []
    splits = load_questions(recipe(own_files), note=notes.append)
    load_retrievers(recipe(own_files), note=notes.append)
    assert len(splits.train) + len(splits.dev) == 10
    assert len(notes) == 2
    assert "data.train" in notes[0] and "skipped 1 row (line 11): golden_answers: 'the' is empty without" in notes[0]
    assert "; skipped 1 row (line 12): " in notes[0]
    assert "retrieval.corpus" in notes[1] and "skipped 1 row (line 6): id: '3' occurred on an earlier" in notes[1]


# ---- indexes


def test_an_index_is_saved_and_used_again(
    recipe: Recipe, own_files: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_files["retrieval.index"] = str(tmp_path / "deep" / "index")
    first = load_retriever(recipe(own_files)).search(["thing 7 water"], 3)
    written = (tmp_path / "deep" / "index" / "manifest.json").stat().st_mtime_ns
    monkeypatch.setattr(loading, "corpus_hash", pytest.fail)  # the corpus is not read while its file stays the same
    again = load_retriever(recipe(own_files)).search(["thing 7 water"], 3)
    assert again == first and first[0][0].document.id == "7"
    assert (tmp_path / "deep" / "index" / "manifest.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_an_index_brings_its_own_passages(
    recipe: Recipe, own_files: dict[str, Any], tmp_path: Path, kind: str, encoder: Any
) -> None:
    corpus, index = Path(own_files.pop("retrieval.corpus")), tmp_path / "index"
    if kind == "bm25":
        build_bm25(corpus, index, stem=False)
    else:
        build_dense(corpus, index, spec_of(str(encoder())), device="cpu")
    config = recipe(own_files | {"retrieval.index": str(index)})
    retriever, query = load_retriever(config), load_questions(config).train[0].question
    assert retriever.in_process
    assert retriever.search([query], 2) == open_index(index, device="cpu").search([query], 2)
    with_corpus = own_files | {"retrieval.index": str(index), "retrieval.corpus": str(corpus), "retrieval.stem": False}
    assert load_retriever(recipe(with_corpus)).search([query], 2)
    corpus.write_text(corpus.read_text() + json.dumps({"id": "new", "contents": "x"}) + "\n")
    with pytest.raises(DataError, match="built from another corpus"):
        load_retriever(recipe(with_corpus))


def test_an_index_that_cannot_be_written_is_an_error(recipe: Recipe, own_files: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"retrieval\.index: .* cannot be written: "):
        load_retriever(recipe(own_files | {"retrieval.index": own_files["data.train"] + "/index"}))
