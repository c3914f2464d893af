"""Both clients against a server on loopback: the same hits as in process, retries that end, failures in sentences."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.errors import ConfigError, RetrievalError
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.client import AsyncHTTPRetriever, HTTPRetriever
from holdfast.retrieval.types import Document, Hit

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
        client = AsyncHTTPRetriever(address, **settings)
        try:
            return await client.search(queries, k)
        finally:
            await client.close()

    yield with_threads if request.param == "sync" else lambda *a, **s: asyncio.run(with_loop(*a, **s))


@pytest.mark.parametrize("queries", [["lake"], ["lake", "animal"], ["lake", "nothing at all", "animal"], []])
def test_hits_are_those_of_the_retriever_behind(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, queries: list[str]
) -> None:
    server = retrieve_server(bm25)
    assert search(server.url, queries, 2) == bm25.search(queries, 2)
    expected = [{"path": "/retrieve", "queries": queries, "topk": 2, "return_scores": True}]
    assert server.requests == (expected if queries else [])


def test_what_passes_by_itself_is_tried_again(search: Search, retrieve_server: Start, bm25: BM25Retriever) -> None:
    server = retrieve_server(bm25)
    server.replies += [DOWN, (500, b"")]
    assert search(server.url, ["lake"], 2, retries=2, backoff=0.001) == bm25.search(["lake"], 2)
    assert len(server.requests) == 3


def test_tries_are_counted(search: Search, retrieve_server: Start) -> None:
    server = retrieve_server()
    server.replies += [DOWN] * 3
    with pytest.raises(RetrievalError, match=f"{server.url}/retrieve answered 503 to 1 queries: warming up"):
        search(server.url, ["lake"], 2, retries=1, backoff=0.001)
    assert len(server.requests) == 2


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
    assert time.monotonic() - started < 5
    server.hold.set()


def test_nobody_there(search: Search) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(RetrievalError, match=f"{address}/retrieve cannot be reached .*is the retriever running there"):
        search(address, ["lake"], 2, retries=1, backoff=0.001)


def test_proxy_variables_are_not_read(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert search(retrieve_server(bm25).url, ["lake"], 1)


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"retries": -1}, {"backoff": -0.1}])
@pytest.mark.parametrize("client", [HTTPRetriever, AsyncHTTPRetriever])
def test_numbers_that_cannot_work(client: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the timeout must be above 0 seconds, the others 0 or more"):
        client("http://127.0.0.1:8000", **settings)


def test_pauses_double_and_are_spread(monkeypatch: pytest.MonkeyPatch, retrieve_server: Start) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    server = retrieve_server()
    server.replies += [DOWN] * 40
    client = HTTPRetriever(server.url, retries=3, backoff=1.0)
    for _ in range(10):
        with pytest.raises(RetrievalError):
            client.search(["lake"], 1)
    client.close()
    for attempt in range(3):
        own = pauses[attempt::3]
        assert len(set(own)) > 1 and all(2**attempt * 0.5 <= pause <= 2**attempt * 1.5 for pause in own)


def test_the_client_is_not_in_process() -> None:
    assert HTTPRetriever("http://127.0.0.1:8000").in_process is False
