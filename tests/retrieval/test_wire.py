"""What a `/retrieve` server may answer, read into hits, and everything it may not, each in a sentence."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest

from holdfast.base.errors import ConfigError, RetrievalError
from holdfast.retrieval.types import Hit
from holdfast.retrieval.wire import environment_token, parse_answer, request_body, retrieve_url, retry_after

URL = "http://127.0.0.1:8000/retrieve"


def parse(result: Any, *, queries: int = 1, k: int = 3) -> list[list[Hit]]:
    return parse_answer(200, json.dumps({"result": result}).encode(), queries=queries, k=k, url=URL)


def test_a_request_asks_for_scores() -> None:
    assert request_body(("a", "b"), 5) == {"queries": ["a", "b"], "topk": 5, "return_scores": True}


@pytest.mark.parametrize("address", ["http://h:1", "http://h:1/", "https://h", "http://h:1/retrieve", "http://h/x/y"])
def test_an_address_without_a_path_gets_one(address: str) -> None:
    expected = address if address.count("/") > 3 or address.endswith("retrieve") else address.rstrip("/") + "/retrieve"
    assert retrieve_url(address) == expected


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:8000", "ftp://h", "http://", "http://h:port", "http://h:99999", "http://h/a b", "http://h\n"),
        *(f"http://{'h' * 300}", "http://a..b", "http://h/ü", "http://h\x00"),
    ],
)
def test_what_is_not_an_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a retriever; write one like http://") as caught:
        retrieve_url(address)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("rest", ["h:1", "h:1/retrieve", "h:port", "", "h/a b"])
@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_password_in_an_address_is_refused_and_not_repeated(scheme: str, rest: str) -> None:
    for password in ("hush", "hu/hush@x", "x\nhush"):
        with pytest.raises(ConfigError) as caught:
            retrieve_url(f"{scheme}://alice:{password}@{rest}")
        assert "alice" not in str(caught.value) and "hu" not in str(caught.value)
    with pytest.raises(ConfigError, match="a user or a password in it, which are not sent; leave them out"):
        retrieve_url("http://alice:hush@h:1")
    assert retrieve_url("http://h:1/a@b") == "http://h:1/a@b"


@pytest.mark.parametrize(
    "header",
    ["soon", "nan", "1e999", "-3", f"Wed, 21 Oct {10**30} 07:28:00 GMT", "Wed, 21 Oct 2015 07:28:00 +" + "9" * 20],
)
def test_a_wait_that_is_none(header: str) -> None:
    assert retry_after(header) == 0.0


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    assert environment_token() is None
    monkeypatch.setenv("HOLDFAST_TOKEN", "")
    assert environment_token() is None
    monkeypatch.setenv("HOLDFAST_TOKEN", "a-Z09._~+/=!")
    assert environment_token() == "a-Z09._~+/=!"
    for bad in ("hushé", "hush hush", " ", "hush\n", "hush\x7f"):
        monkeypatch.setenv("HOLDFAST_TOKEN", bad)
        with pytest.raises(ConfigError, match="HOLDFAST_TOKEN has a blank, a line break or a character") as caught:
            environment_token()
        assert "hush" not in str(caught.value)


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
        (200, b"[]", "without a `result` of one list per query: []"),
        (200, b'{"error": "busy"}', 'without a `result` of one list per query: {"error": "busy"}'),
        (200, b'{"result": ["a", "b"]}', "without a `result` of one list per query"),
        (200, b'{"result": [[]]}', "answered 1 of 2 queries; a /retrieve server gives one list per query"),
        (200, b'{"result": [[], [], []]}', "answered 3 of 2 queries"),
        (200, b'{"result": [[], [{"body": "x"}]]}', "neither `contents` nor `text`: it is the fields body"),
        (200, b'{"result": [[], [{"document": null}]]}', "neither `contents` nor `text`: it is NoneType"),
        (200, b'{"result": [[3], []]}', "neither `contents` nor `text`: it is int"),
        (200, b"[" * 100_000, "answered with something that is not JSON: [[["),
        (200, b'{"result": [[], []], "errors": true}', "`errors` that is not a list of one string or null per query"),
        (200, b'{"result": [[], []], "errors": 5}', "`errors` that is not a list"),
        (200, b'{"result": [[], []], "errors": "text"}', "`errors` that is not a list"),
        (200, b'{"result": [[], []], "errors": [{"a": 1}, null]}', "`errors` that is not a list"),
        (200, b'{"result": [[], []], "errors": [null, "\\ud800"]}', "failed on 1 of 2 queries; the first: ?"),
        (
            200,
            b'{"result": [[{"document": "x", "score": 1%s}], []]}' % (b"0" * 400),
            "a score that is larger than any float",
        ),
        (200, b'{"result": [["\\ud800"], []]}', "text with an incomplete character: ?"),
        (200, b'{"result": [[{"id": "\\ud800", "contents": "x"}], []]}', "incomplete character"),
        (200, b'{"result": [[{"title": "\\ud800", "text": "x"}], []]}', "incomplete character"),
        (200, b'{"result": [[{"\\ud800": 1}], []]}', "it is the fields ?"),
        (200, b'{"result": [[{"title": {"en": "x"}, "text": "x"}], []]}', "`title` is neither a string nor a number"),
        (200, b'{"result": [[{"id": [7], "contents": "x"}], []]}', "`id` is neither a string nor a number"),
    ],
)
def test_every_bad_answer_is_a_sentence_with_the_address(status: int, body: bytes, sentence: str) -> None:
    with pytest.raises(RetrievalError) as caught:
        parse_answer(status, body, queries=2, k=3, url=URL)
    assert URL in str(caught.value) and sentence in str(caught.value)
    str(caught.value).encode()  # a terminal or a log can hold it


def test_no_garbage_raises_anything_else() -> None:
    values = [None, True, 5, 1e999, 10**400, "x", "\ud800", [], [[]], {}, {"en": "x"}, [None], ["x"], [5], [{}]]
    shapes: list[Any] = [*values, *({"result": value} for value in values)]
    shapes += [{"result": [[]], "errors": value} for value in values]
    shapes += [{"result": [[{"document": value, "score": 1.0}]]} for value in values]
    for name in ("score", "id", "title", "contents", "text"):
        shapes += [{"result": [[{"document": "x", "text": "x", name: value}]]} for value in values]
        shapes += [{"result": [[{"text": "x", name: value}]]} for value in values]
    bodies = [json.dumps(shape).encode() for shape in shapes]
    read = 0
    for body in [*bodies, *(body[: len(body) // 2] for body in bodies), b'{"a":' * 50_000, b"\xff" * 9]:
        with contextlib.suppress(RetrievalError):
            ((*hits,),) = parse_answer(200, body, queries=1, k=3, url=URL)
            json.dumps([(hit.document.id, hit.document.contents) for hit in hits], ensure_ascii=False).encode()
            read += 1
    assert 30 < read < len(bodies)


def test_an_error_quotes_the_start_of_what_went_wrong() -> None:
    body = json.dumps({"result": [[]], "errors": ["line\n" * 10**5]}).encode()
    with pytest.raises(RetrievalError) as caught:
        parse_answer(200, body, queries=1, k=1, url=URL)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_a_long_answer_is_quoted_in_part() -> None:
    with pytest.raises(RetrievalError) as caught:
        parse_answer(502, b"x" * 10_000, queries=1, k=1, url=URL)
    assert len(str(caught.value)) < 300 and str(caught.value).endswith("x …")
