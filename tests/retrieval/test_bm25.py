"""BM25 against the formula, its ties, its silence, and its files."""

import json
import logging
import math
import random
import re

import pytest

from holdfast.base.errors import DataError
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.corpus import corpus_hash
from holdfast.retrieval.types import Document, Hit

TOWNS = (
    Document("orsa", '"Orsa"\nOrsa is a town by the northern lake.'),
    Document("mora", '"Mora"\nMora lies in the valley; skiers race there.'),
    Document("it", '"It"\nIt is a film about a clown.'),
    Document("rome", '"Rome"\nRome is a city. Running water is old in Rome.'),
)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.document.id for hit in hits]


@pytest.fixture(scope="module")
def towns() -> BM25Retriever:
    return BM25Retriever.build(TOWNS)


def naive(documents: list[str], query: str, k: int, k1: float, b: float) -> list[tuple[int, float]]:
    """Lucene's BM25 from the formula: Σ ln(1 + (N − n + .5)/(n + .5)) · tf / (tf + k1 (1 − b + b·len/mean len))."""
    words = [re.findall(r"\w+", text.lower()) for text in documents]
    mean = sum(map(len, words)) / len(words)
    scored = []
    for i, text in enumerate(words):
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            n, tf = sum(word in other for other in words), text.count(word)
            if tf:
                idf = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
                score += idf * tf / (tf + k1 * (1 - b + b * len(text) / mean))
        if score > 0:
            scored.append((i, score))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


@pytest.mark.parametrize("settings", [{"k1": 0.9, "b": 0.4}, {"k1": 1.5, "b": 0.75}])
def test_against_the_formula(settings):
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(30)]
    texts = [" ".join(rng.choices(vocabulary, k=rng.randint(1, 12))) for _ in range(60)]
    retriever = BM25Retriever.build([Document(str(i), t) for i, t in enumerate(texts)], stem=False, **settings)
    for _ in range(50):
        query = " ".join(rng.choices([*vocabulary, "unknown"], k=rng.randint(1, 4)))
        expected = naive(texts, query, 5, **settings)
        (hits,) = retriever.search([query], 5)
        assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected], rel=1e-5)
        # Where scores differ by more than rounding, the documents are the same ones too.
        clear = len({round(score, 4) for _, score in expected}) == len(expected)
        assert not clear or ids(hits)[:4] == [str(i) for i, _ in expected][:4]


def test_one_list_per_query_in_order(towns):
    results = towns.search(["orsa", "clown", "orsa"], 2)
    assert [ids(hits) for hits in results] == [["orsa"], ["it"], ["orsa"]]
    assert towns.search([], 2) == []


@pytest.mark.parametrize("query", ["", "   ", "?!", "zzz", "the zzz", "漢字"])
def test_nothing_to_find_finds_nothing(towns, query):
    assert towns.search([query], 3) == [[]]


def test_only_documents_that_hold_a_word_are_hits(towns):
    assert sorted(ids(towns.search(["town clown"], 4)[0])) == ["it", "orsa"]


def test_stop_words_count_only_when_the_query_is_nothing_else(towns):
    assert ids(towns.search(["it"], 1)[0]) == ["it"]
    assert ids(towns.search(["it and the lake"], 4)[0]) == ["orsa"]


def test_stemming_folds_inflections_on_both_sides(towns):
    assert ids(towns.search(["who runs?"], 3)[0]) == ["rome"]
    assert ids(towns.search(["skier racing"], 3)[0]) == ["mora"]
    assert BM25Retriever.build(TOWNS, stem=False).search(["who runs?"], 3) == [[]]


def test_equal_scores_come_in_corpus_order_for_every_k():
    # Three texts by turns, a hundred times each: a partition, or an unstable sort, returns equals in any order.
    texts = ["same word", "same same word", "same other longer text"]
    retriever = BM25Retriever.build([Document(f"{i % 3}-{i}", texts[i % 3]) for i in range(300)])
    full = ids(retriever.search(["same"], 300)[0])
    assert full == [f"{kind}-{i}" for kind in (1, 0, 2) for i in range(kind, 300, 3)]
    for k in (1, 2, 50, 99, 100, 101, 150, 299):
        assert ids(retriever.search(["same"], k)[0]) == full[:k]


def test_k_beyond_the_corpus_and_below_one(towns):
    assert len(towns.search(["is"], 100)[0]) == 3
    with pytest.raises(ValueError, match="k = 0"):
        towns.search(["is"], 0)


def test_a_document_without_words_is_indexed_and_never_found():
    retriever = BM25Retriever.build([Document("a", "..."), Document("b", "word"), Document("c", "")])
    assert ids(retriever.search(["word"], 3)[0]) == ["b"]


def test_corpora_that_cannot_be_indexed():
    with pytest.raises(DataError, match="the corpus is empty"):
        BM25Retriever.build([])
    with pytest.raises(DataError, match="none of the 1 documents contains a word"):
        BM25Retriever.build([Document("a", "?!")])
    with pytest.raises(DataError, match="two documents have the id 'a'"):
        BM25Retriever.build([Document("a", "x"), Document("a", "y")])


def test_it_is_quiet(capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        BM25Retriever.build(TOWNS).search(["orsa", ""], 2)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


@pytest.mark.parametrize("stem", [True, False])
def test_save_and_load_give_the_same_hits(tmp_path, stem):
    built = BM25Retriever.build([*TOWNS, Document("é", "Ünïcode 漢字\nline\u2028separator")], stem=stem)
    built.save(tmp_path / "deep" / "index")
    loaded = BM25Retriever.load(tmp_path / "deep" / "index", expected_hash=built.corpus_hash)
    queries = ["northern towns", "running rome", "clowns", "漢字", "ünïcode"]
    assert loaded.search(queries, 3) == built.search(queries, 3)
    assert tuple(loaded.documents) == built.documents
    assert loaded.corpus_hash == corpus_hash(built.documents)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["index"]


def test_saving_fills_no_folder_that_has_something(tmp_path, towns):
    (tmp_path / "empty").mkdir()
    towns.save(tmp_path / "empty")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with pytest.raises(DataError, match="exists already; name a new folder"):
        towns.save(tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter"]


def test_an_index_of_another_corpus_is_refused(tmp_path, towns):
    towns.save(tmp_path / "index")
    with pytest.raises(DataError, match="built from another corpus"):
        BM25Retriever.load(tmp_path / "index", expected_hash=corpus_hash(TOWNS[1:]))


def test_no_index(tmp_path):
    with pytest.raises(DataError, match=r"is not an index: it has no manifest\.json"):
        BM25Retriever.load(tmp_path)
    with pytest.raises(DataError, match="is not an index"):
        BM25Retriever.load(tmp_path / "missing")


@pytest.mark.parametrize("name", ["manifest.json", "documents.jsonl", "scores.f4"])
def test_an_index_that_was_not_copied_whole_is_refused(tmp_path, towns, name):
    towns.save(tmp_path / "index")
    file = tmp_path / "index" / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=r"is damaged.*build the index again"):
        BM25Retriever.load(tmp_path / "index")
    file.unlink()
    with pytest.raises(DataError, match=r"is missing|is not an index"):
        BM25Retriever.load(tmp_path / "index")


def test_an_index_of_another_version_is_refused(tmp_path, towns):
    towns.save(tmp_path / "index")
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "index" / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(DataError, match="another version of holdfast"):
        BM25Retriever.load(tmp_path / "index")
