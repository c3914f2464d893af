"""What a `/retrieve` server may answer, read into hits, and everything it may not, each in a sentence."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.errors import ConfigError, RetrievalError
from holdfast.retrieval.types import Hit
from holdfast.retrieval.wire import parse_answer, request_body, retrieve_url

URL = "http://127.0.0.1:8000/retrieve"


def parse(result: Any, *, queries: int = 1, k: int = 3) -> list[list[Hit]]:
    return parse_answer(200, json.dumps({"result": result}).encode(), queries=queries, k=k, url=URL)


def test_a_request_asks_for_scores() -> None:
    assert request_body(("a", "b"), 5) == {"queries": ["a", "b"], "topk": 5, "return_scores": True}


@pytest.mark.parametrize("address", ["http://h:1", "http://h:1/", "https://h", "http://h:1/retrieve", "http://h/x/y"])
def test_an_address_without_a_path_gets_one(address: str) -> None:
    expected = address if address.count("/") > 3 or address.endswith("retrieve") else address.rstrip("/") + "/retrieve"
    assert retrieve_url(address) == expected


@pytest.mark.parametrize("address", ["", "localhost:8000", "ftp://h", "http://", "http://h:port", "http://h:99999"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a retriever; write one like http://"):
        retrieve_url(address)


@pytest.mark.parametrize(
    ("item", "identity", "title", "text", "score"),
    [
        ({"document": {"id": "7", "contents": '"Orsa"\nA town.'}, "score": 1.5}, "7", "Orsa", "A town.", 1.5),
        ({"document": {"id": 7, "contents": "Orsa\nA town."}, "score": 2}, "7", "Orsa", "A town.", 2.0),
        (
            {"document": {"title": "Orsa", "text": "A town.", "contents": "Orsa\nA town."}},
            None,
            "Orsa",
            "A town.",
            None,
        ),
        ({"document": {"title": "Orsa", "text": "A town."}, "score": None}, None, "Orsa", "A town.", None),
        ({"document": "Orsa\nA town.", "score": 0.0}, None, "Orsa", "A town.", 0.0),
        ({"id": "7", "contents": "Orsa\nA town."}, "7", "Orsa", "A town.", None),
        ({"text": "A town."}, None, "", "A town.", None),
        ("Orsa\nA town.", None, "Orsa", "A town.", None),
    ],
)
def test_every_known_shape_of_a_hit(
    item: Any, identity: str | None, title: str, text: str, score: float | None
) -> None:
    ((hit,),) = parse([[item]])
    assert (hit.document.title, hit.document.text) == (title, text)
    assert hit.score == score if score is not None else math.isnan(hit.score)
    if identity is not None:
        assert hit.document.id == identity
    else:  # the same text is the same document, another is another
        assert hit.document.id == parse([[item]])[0][0].document.id
        assert hit.document.id != parse([["other"]])[0][0].document.id


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_one_list_per_query_possibly_empty_and_never_more_than_k(queries: int) -> None:
    hits = parse([["a", "b", "c"], [], ["d"]][:queries], queries=queries, k=2)
    assert [[h.document.contents for h in row] for row in hits] == [["a", "b"], [], ["d"]][:queries]


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (500, b"<html>Internal  Server\nError</html>", "answered 500 to 2 queries: <html>Internal Server Error</html>"),
        (404, b"", "answered 404 to 2 queries: an empty answer"),
        (200, b"upstream died", "answered with something that is not JSON: upstream died"),
        (200, b"\xff\xfe", "answered with something that is not JSON"),
        (200, b"[]", "without a `result` that holds one list per query: []"),
        (200, b'{"error": "busy"}', 'without a `result` that holds one list per query: {"error": "busy"}'),
        (200, b'{"result": ["a", "b"]}', "without a `result` that holds one list per query"),
        (200, b'{"result": [[]]}', "answered 1 of 2 queries; a /retrieve server gives one list per query"),
        (200, b'{"result": [[], [], []]}', "answered 3 of 2 queries"),
        (200, b'{"result": [[], [{"body": "x"}]]}', "neither `contents` nor `text`: it is the fields body"),
        (200, b'{"result": [[], [{"document": null}]]}', "neither `contents` nor `text`: it is NoneType"),
        (200, b'{"result": [[3], []]}', "neither `contents` nor `text`: it is int"),
    ],
)
def test_every_bad_answer_is_a_sentence_with_the_address(status: int, body: bytes, sentence: str) -> None:
    with pytest.raises(RetrievalError) as caught:
        parse_answer(status, body, queries=2, k=3, url=URL)
    assert URL in str(caught.value) and sentence in str(caught.value)


def test_a_long_answer_is_quoted_in_part() -> None:
    with pytest.raises(RetrievalError) as caught:
        parse_answer(502, b"x" * 10_000, queries=1, k=1, url=URL)
    assert len(str(caught.value)) < 300 and str(caught.value).endswith("x …")
