"""Both clients against a server on loopback: the same hits as in process, retries that end, failures in sentences."""

from __future__ import annotations

import asyncio
import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.base import retries
from holdfast.base.answers import MAX_BYTES, Answer
from holdfast.base.errors import ConfigError, RetrievalError, RetrieverGarbled, RetrieverRefused, RetrieverUnreachable
from holdfast.retrieval import client as module
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.client import AsyncHTTPRetriever, HTTPRetriever
from holdfast.retrieval.types import Document, Hit
from holdfast.retrieval.wire import parse_answer, retrieve_url

Start = Callable[..., Any]
Search = Callable[..., list[list[Hit]]]

DOWN = (503, b"warming up")


@pytest.fixture(scope="module")
def bm25() -> BM25Retriever:
    texts = {"a": "Orsa\nA town by the lake.", "b": "Mora\nTowns have lakes.", "c": "Elk\nAn animal."}
    return BM25Retriever.build([Document(key, text) for key, text in texts.items()])


@pytest.fixture(params=["sync", "async"])
def search(request: pytest.FixtureRequest) -> Iterator[Search]:
    """search(address, queries, k, **settings) with either client."""

    def with_threads(address: str, queries: list[str], k: int, **settings: Any) -> list[list[Hit]]:
        client = HTTPRetriever(address, **settings)
        try:
            return client.search(queries, k)
        finally:
            client.close()

    async def with_loop(address: str, queries: list[str], k: int, **settings: Any) -> list[list[Hit]]:
        return await AsyncHTTPRetriever(address, **settings).search(queries, k)

    yield with_threads if request.param == "sync" else lambda *a, **s: asyncio.run(with_loop(*a, **s))


def test_hits_are_those_of_the_retriever_behind(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever proxy the environment names, and with its token."""
    server, queries = retrieve_server(bm25), ["lake", "nothing at all", "animal"]
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert search(server.url, queries, 2) == bm25.search(queries, 2) and search(server.url, [], 2) == []
    assert server.requests == [{"path": "/retrieve", "queries": queries, "topk": 2, "return_scores": True}]
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    search(server.url, ["lake"], 1)
    assert server.authorizations == [None, "Bearer secret"]


def test_what_passes_by_itself_is_tried_again(search: Search, retrieve_server: Start, bm25: BM25Retriever) -> None:
    server = retrieve_server(bm25)
    server.replies += [DOWN, (500, b"")]
    assert search(server.url, ["lake"], 2, retries=2, backoff=0.001) == bm25.search(["lake"], 2)
    assert len(server.requests) == 3


def test_what_will_not_change_is_asked_once(search: Search, retrieve_server: Start) -> None:
    server = retrieve_server()
    server.replies += [(422, b"queries: field required"), DOWN]
    with pytest.raises(RetrievalError, match="answered 422"):
        search(server.url, ["lake"], 2, backoff=0.001)
    server.replies[:] = [(200, b"garbage"), DOWN]
    with pytest.raises(RetrievalError, match="not JSON: garbage"):
        search(server.url, ["lake"], 2, backoff=0.001)
    assert len(server.requests) == 2


def test_a_slow_server_is_a_timeout_and_not_a_hang(search: Search, retrieve_server: Start) -> None:
    server = retrieve_server()
    server.hold = threading.Event()
    server.replies += [DOWN] * 4
    started = time.monotonic()
    with pytest.raises(RetrievalError, match=r"did not answer within 0\.05 seconds; is the retriever overloaded"):
        search(server.url, ["lake"], 2, timeout=0.05, retries=1, backoff=0.001)
    assert time.monotonic() - started < 30
    server.hold.set()


def test_a_server_that_restarts_is_waited_for(
    retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the retries, until it answers or the patience ends."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            client._target = server.url + "/retrieve"

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}/retrieve"
    server = retrieve_server(bm25)
    client = AsyncHTTPRetriever(gone, retries=1, backoff=0.1, patience=20)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(retries, "monotonic", lambda: sum(pauses))
    assert asyncio.run(client.search(["lake"], 2)) == bm25.search(["lake"], 2)
    assert len(pauses) == 5

    client._target, pauses[:] = gone, [0.0] * 5
    with pytest.raises(RetrieverUnreachable):
        asyncio.run(client.search(["lake"], 2))
    assert sum(pauses[6:]) == pytest.approx(20), "after the retry"


def test_the_answer_to_another_request_is_tried_again(
    search: Search, retrieve_server: Start, bm25: BM25Retriever
) -> None:
    server = retrieve_server(bm25)
    server.headers["Holdfast-Request"] = "0123"
    with pytest.raises(RetrieverGarbled, match=r"status 200\) of another request"):
        search(server.url, ["lake"], 1, retries=1, backoff=0.001)
    assert len(server.requests) == 2


def test_an_answer_that_is_too_long_is_refused_once(search: Search, retrieve_server: Start) -> None:
    server = retrieve_server()
    server.replies += [(200, b"x" * (MAX_BYTES + 1)), DOWN]
    with pytest.raises(RetrieverRefused, match="more than 16 MiB; ask for fewer passages") as caught:
        search(server.url, ["lake"], 1, retries=2, backoff=0.001)
    assert caught.value.status == 200 and len(server.requests) == 1


def test_a_server_that_asks_for_time_gets_it(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    server = retrieve_server(bm25)
    server.headers["Retry-After"] = "7"
    server.replies += [(429, b"full")]
    assert search(server.url, ["lake"], 1, backoff=0.001, timeout=30) == bm25.search(["lake"], 1)
    assert slept == [7.0]


def test_a_query_that_failed_by_itself_is_no_empty_answer(search: Search, retrieve_server: Start) -> None:
    server = retrieve_server()
    server.replies += [(200, b'{"result": [[], []], "errors": [null, "too long"]}')]
    with pytest.raises(RetrieverRefused, match="failed on 1 of 2 queries; the first: too long"):
        search(server.url, ["lake", "x"], 1)


def test_threads_share_a_client_and_leave_none_behind(retrieve_server: Start, bm25: BM25Retriever) -> None:
    server = retrieve_server(bm25)
    before = threading.active_count()
    client = HTTPRetriever(server.url)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(client.search, [[q] for q in ["lake", "animal", "town"] * 20], [2] * 60))
    assert found == [bm25.search([query], 2) for query in ["lake", "animal", "town"] * 20]
    client.close()
    client.close()  # twice is once
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # the server's own threads end when their connections do
    assert threading.active_count() <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_searches_on(retrieve_server: Start, bm25: BM25Retriever) -> None:
    client = HTTPRetriever(retrieve_server(bm25).url)
    expected = client.search(["lake"], 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if client.search(["lake"], 1) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.close()


# ---- what a `/retrieve` server may answer


URL = "http://127.0.0.1:8000/retrieve"


def parsed(result: Any, *, queries: int = 1, k: int = 3) -> list[list[Hit]]:
    return parse_answer(Answer(URL, 200, json.dumps({"result": result}).encode()), queries=queries, k=k)


@pytest.mark.parametrize(
    "address",
    [
        "http://alice:hush@h:1",
        *("http://h/find?api_key=hush", "http://h?hush", "http://h/find?a=$KEY&b=hush", "http://h/find?hush=$KEY=1"),
        *("http://h/find?a=$KEY&hush", "http://h/find?a=${KEY}hush", "http://h/find?a=$KEY#hush", "http://h#hush"),
        *("http://h/find?a=$1hush", "http://h/find?a=$KEY?b=hush", "http://h/find?a=hush\n"),
    ],
)
def test_an_address_that_may_hold_a_secret_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="the address of a retriever") as caught:
        retrieve_url(address)
    assert "hush" not in str(caught.value)


def test_keys_of_an_address_are_names_of_variables(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = retrieve_server(bm25)
    address = f"{server.url}?api_key=$MY_KEY&index=$MY_INDEX"
    monkeypatch.setenv("MY_INDEX", "towns")
    with pytest.raises(ConfigError, match="MY_KEY, which the address of the retriever names, is not set"):
        search(address, ["lake"], 1)
    monkeypatch.setenv("MY_KEY", "hush+hush&/")
    search(address, ["lake"], 1)
    assert server.requests[0]["path"] == "/retrieve?api_key=hush%2Bhush%26%2F&index=towns"
    server.headers["Location"] = "http://h/retrieve?api_key=hush%2Bhush%26%2F"
    server.replies += [(302, b"")]
    with pytest.raises(RetrieverRefused, match=r"a redirect to http://h/retrieve\?api_key=\*\*\*") as caught:
        search(address, ["lake"], 1)
    assert "hush" not in str(caught.value)
    assert HTTPRetriever(address).url == f"{server.url}/retrieve?api_key=$MY_KEY&index=$MY_INDEX"


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
    ((hit,),) = parsed([[item]])
    assert (hit.document.title, hit.document.text) == (title, text)
    assert hit.score == score if score is not None else math.isnan(hit.score)
    if identity is not None:
        assert hit.document.id == identity
    else:  # the same text is the same document, another is another
        assert hit.document.id == parsed([[item]])[0][0].document.id
        assert hit.document.id != parsed([["other"]])[0][0].document.id


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (500, b"<html>Internal  Server\nError</html>", "answered 500 to 2 queries: <html>Internal Server Error</html>"),
        (404, b"", "answered 404 to 2 queries: an empty answer"),
        (200, b"upstream died", "answered with something that is not JSON: upstream died"),
        (200, b'{"error": "busy"}', 'without a `result` of one list per query: {"error": "busy"}'),
        (200, b'{"result": [[]]}', "answered 1 of 2 queries; a /retrieve server gives one list per query"),
        (200, b'{"result": [[], [], []]}', "answered 3 of 2 queries"),
        (200, b'{"result": [[], [{"body": "x"}]]}', "neither `contents` nor `text`: it is the fields body"),
        (200, b'{"result": [[], [{"document": null}]]}', "neither `contents` nor `text`: it is NoneType"),
        (200, b'{"result": [[], []], "errors": [null, "\\ud800"]}', "failed on 1 of 2 queries; the first: ?"),
        (200, b'{"result": [[], []], "errors": [{"code": 7}]}', "failed on 1 of 2 queries; the first: {'code': 7}"),
        (200, b'{"result": [[{"\\ud800": 1}], []]}', "it is the fields ?"),
    ],
)
def test_every_bad_answer_is_a_sentence_with_the_address(status: int, body: bytes, sentence: str) -> None:
    with pytest.raises(RetrievalError) as caught:
        parse_answer(Answer(URL, status, body), queries=2, k=3)
    assert URL in str(caught.value) and sentence in str(caught.value)
    str(caught.value).encode()  # a terminal or a log can hold it
