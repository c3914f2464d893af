import json

import pytest

from holdfast.errors import DataError
from holdfast.retrieval.corpus import corpus_hash, read_corpus
from holdfast.retrieval.types import Document


def put(tmp_path, *rows):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


GOOD = {"id": "a", "contents": '"Orsa"\nA town.', "extra": 1}


def test_rows_become_documents_and_numbers_are_ids(tmp_path):
    documents = read_corpus(put(tmp_path, GOOD, {"id": 7, "contents": "x"}))
    assert documents == (Document("a", '"Orsa"\nA town.'), Document("7", "x"))


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({"id": "a", "contents": "again"}, "id", "'a' is already on line 1"),
        ({"contents": "x"}, "id", "missing"),
        ({"id": None, "contents": "x"}, "id", "is null"),
        ({"id": True, "contents": "x"}, "id", "is true or false"),
        ({"id": "", "contents": "x"}, "id", "is empty"),
        ({"id": "b"}, "contents", "missing"),
        ({"id": "b", "contents": ""}, "contents", "is empty"),
        ({"id": "b", "contents": ["x"]}, "contents", "is a list"),
        ({"id": "b", "title": "T", "text": "x"}, "contents", "join 'title' and 'text'"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path, row, field, reason):
    heard = []
    documents = read_corpus(put(tmp_path, GOOD, row), on_skip=heard.append)
    assert [d.id for d in documents] == ["a"]
    (skipped,) = heard
    assert (skipped.line, skipped.field) == (2, field)
    assert reason in skipped.reason


def test_a_number_and_its_text_are_the_same_id(tmp_path):
    heard = []
    read_corpus(put(tmp_path, {"id": 1, "contents": "x"}, {"id": "1", "contents": "y"}), on_skip=heard.append)
    assert "already on line 1" in heard[0].reason


def test_skipped_rows_are_never_silent(tmp_path, caplog):
    read_corpus(put(tmp_path, GOOD, GOOD))
    assert "skipped 1 of 2 rows" in caplog.text


def test_an_empty_corpus(tmp_path):
    with pytest.raises(DataError, match="at least one passage"):
        read_corpus(put(tmp_path))


def test_the_hash_tells_documents_and_their_order():
    a, b = Document("a", "bc"), Document("d", "e")
    assert corpus_hash([a, b]) == corpus_hash([Document("a", "bc"), Document("d", "e")])
    others = [[b, a], [a], [Document("ab", "c"), b], [a, Document("d", "f")], [Document("a", "bcd"), Document("", "e")]]
    assert corpus_hash([a, b]) not in [corpus_hash(other) for other in others]
