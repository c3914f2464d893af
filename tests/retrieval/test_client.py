"""Both clients against a server on loopback: the same hits as in process, retries that end, failures in sentences."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.base import retries
from holdfast.base.errors import (
    ConfigError,
    RetrievalError,
    RetrieverGarbled,
    RetrieverRefused,
    RetrieverTimeout,
    RetrieverUnreachable,
)
from holdfast.retrieval import client as module
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.client import AsyncHTTPRetriever, ClientStats, HTTPRetriever
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
        return await AsyncHTTPRetriever(address, **settings).search(queries, k)

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


def test_a_server_that_restarts_is_waited_for(
    retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the retries, until it answers or the patience ends."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            client.url = server.url + "/retrieve"

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{closed.getsockname()[1]}/retrieve"
    server = retrieve_server(bm25)
    client = AsyncHTTPRetriever(gone, retries=1, backoff=0.1, patience=20)
    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    monkeypatch.setattr(retries, "monotonic", lambda: sum(pauses))
    assert asyncio.run(client.search(["lake"], 2)) == bm25.search(["lake"], 2)
    assert len(pauses) == client.stats.retries == 5

    client.url, pauses[:] = gone, [0.0] * 5
    with pytest.raises(RetrieverUnreachable):
        asyncio.run(client.search(["lake"], 2))
    assert sum(pauses[6:]) == pytest.approx(20), "after the retry"


@pytest.mark.parametrize("host", ["xn--axn--a", "xn--a", "999.1.1.1"])
def test_a_host_that_no_name_server_may_be_asked_for(search: Search, host: str) -> None:
    with pytest.raises(ConfigError, match=f"http://{host}:80/retrieve' is not the address of a retriever"):
        search(f"http://{host}:80", ["lake"], 1)


def test_proxy_variables_are_not_read(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert search(retrieve_server(bm25).url, ["lake"], 1)


@pytest.mark.parametrize("settings", [{"timeout": 0.0}, {"retries": -1}, {"backoff": -0.1}, {"patience": -1.0}])
@pytest.mark.parametrize("client", [HTTPRetriever, AsyncHTTPRetriever])
def test_numbers_that_cannot_work(client: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the timeout must be above 0 seconds, the others 0 or more"):
        client("http://127.0.0.1:8000", **settings)


def test_a_slow_drip_is_a_timeout(search: Search) -> None:
    """A byte now and then keeps a connection alive for ever; an attempt ends all the same."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1000:
                    if stop.wait(0.02):
                        return
                    try:
                        connection.sendall(bytes([byte]))
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(RetrieverTimeout):
            search(f"http://127.0.0.1:{listener.getsockname()[1]}", ["lake"], 1, timeout=0.3, retries=0)
        assert time.monotonic() - began < 3
        stop.set()
        thread.join()


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


def test_the_token_of_the_environment_is_sent(
    search: Search, retrieve_server: Start, bm25: BM25Retriever, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = retrieve_server(bm25)
    search(server.url, ["lake"], 1)
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    search(server.url, ["lake"], 1)
    assert server.authorizations == [None, "Bearer secret"]


@pytest.mark.parametrize("client", [HTTPRetriever, AsyncHTTPRetriever])
def test_a_token_that_cannot_be_sent_is_refused_at_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = threading.active_count()
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret\n")
    with pytest.raises(ConfigError, match="HOLDFAST_TOKEN"):
        client("http://127.0.0.1:8000")
    assert threading.active_count() == threads


def test_everything_is_counted_by_its_class(retrieve_server: Start, bm25: BM25Retriever) -> None:
    server = retrieve_server(bm25)
    client = HTTPRetriever(server.url, retries=1, backoff=0.001)
    server.replies += [DOWN, DOWN, (200, b"garbage"), (422, b"no")]
    for expected in (RetrieverRefused, RetrieverGarbled, RetrieverRefused):
        with pytest.raises(expected):
            client.search(["lake"], 1)
    client.search(["lake"], 1)
    assert client.stats == ClientStats(4, 1, 1, Counter(RetrieverRefused=2, RetrieverGarbled=1))
    client.close()


def test_threads_share_a_client_and_leave_none_behind(retrieve_server: Start, bm25: BM25Retriever) -> None:
    server = retrieve_server(bm25)
    before = threading.active_count()
    client = HTTPRetriever(server.url)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(client.search, [[q] for q in ["lake", "animal", "town"] * 20], [2] * 60))
    assert found == [bm25.search([query], 2) for query in ["lake", "animal", "town"] * 20]
    client.close()
    client.close()  # twice is once
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)  # the server's own threads end when their connections do
    assert threading.active_count() <= before


def test_a_client_nobody_holds_ends_its_thread(retrieve_server: Start, bm25: BM25Retriever) -> None:
    client = HTTPRetriever(retrieve_server(bm25).url)
    client.search(["lake"], 1)
    thread = client._thread._thread
    del client
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_searches_on(retrieve_server: Start, bm25: BM25Retriever) -> None:
    client = HTTPRetriever(retrieve_server(bm25).url)
    expected = client.search(["lake"], 1)
    child = os.fork()
    if child == 0:
        os._exit(0 if client.search(["lake"], 1) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
    client.close()


def test_the_client_is_not_in_process() -> None:
    assert HTTPRetriever("http://127.0.0.1:8000").in_process is False
