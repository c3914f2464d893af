"""Every shape that clients of Search-R1, verl, SkyRL and ReCall send, and what they must get."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.base.errors import MissingExtra
from holdfast.retrieval import open_index
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.client import HTTPRetriever
from holdfast.retrieval.dense_building import build_dense
from holdfast.retrieval.encoder import spec_of
from holdfast.retrieval.server import formats, serve
from holdfast.retrieval.server.app import Limits

from ...waiting import wait_for

QUERIES = ["lake", "animal", "nothing at all"]


def post(served: Any, index: Any, path: str, body: Any, **settings: Any) -> Any:
    async def talk(client: Any) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(path, content=content)

    return served(talk, index, **settings)


def as_json(document: Any) -> dict[str, str]:
    return {"id": document.id, "contents": document.contents}


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("scores", [True, False, None])
@pytest.mark.parametrize("topk", [0, None, 1, 3, 50, "absent"])
def test_search_r1(served: Any, index: Any, count: int, scores: bool | None, topk: Any) -> None:
    body: dict[str, Any] = {"queries": QUERIES[:count], "unknown": 1}
    if topk != "absent":
        body["topk"] = topk
    if scores is not None:
        body["return_scores"] = scores
    answer = post(served, index, "/retrieve", body, topk=2)
    expected = index.search(QUERIES[:count], topk if isinstance(topk, int) and topk else 2)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    if scores:
        lists = [[{"document": as_json(h.document), "score": h.score} for h in hits] for hits in expected]
    else:
        lists = [[as_json(h.document) for h in hits] for hits in expected]
    assert answer.json() == {"result": lists}


@pytest.mark.parametrize("name", ["query", "queries"])
def test_skyrl_sends_one_query_and_gets_one_list(served: Any, index: Any, name: str) -> None:
    answer = post(served, index, "/retrieve", {name: "lake", "topk": 2, "return_scores": True})
    (hits,) = index.search(["lake"], 2)
    assert answer.json() == {"result": [[{"document": as_json(h.document), "score": h.score} for h in hits]]}


def test_recall(served: Any, index: Any) -> None:
    (hits,) = index.search(["lake"], 2)
    documents, scores = [as_json(h.document) for h in hits], [h.score for h in hits]
    for score, expected in ((False, documents), (True, [documents, scores])):
        body = {"query": "lake", "top_n": 2, "return_score": score}
        assert post(served, index, "/search", body).json() == expected
    for score, expected in ((False, [documents, []]), (True, [[documents, []], [scores, []]])):
        body = {"query": ["lake", "zebra"], "top_n": 2, "return_score": score}
        assert post(served, index, "/batch_search", body).json() == expected
    blank = post(served, index, "/search", {"query": " "})
    assert (blank.status_code, blank.json()) == (400, {"detail": "the query is blank"})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"topk": 3}, "`queries` (a list of strings) or `query` (one string) is required"),
        ({"queries": [1]}, "queries.0"),
        ({"queries": None}, "queries"),
        ({"queries": ["x"], "topk": -1}, "topk"),
        ({"queries": ["x"], "topk": 1001}, "less than or equal to 1000"),
        ({"queries": ["x"], "topk": True}, "a number is required, not true or false"),
        (["x"], "should be an object"),
        (b"not json", "Invalid JSON"),
        (b"", "Invalid JSON"),
        (b'{"queries": ["\xff"]}', "Invalid JSON"),
    ],
)
def test_what_is_no_request_is_422_and_says_why(served: Any, index: Any, body: Any, problem: str) -> None:
    answer = post(served, index, "/retrieve", body)
    assert answer.status_code == 422
    assert problem in answer.text


LIMITS = Limits(body=1000, queries=3, characters=10, passages=8)


@pytest.mark.parametrize(
    ("path", "body", "limits", "status", "said"),
    [
        ("/retrieve", {"queries": ["x" * 2000]}, LIMITS, 413, "the body is longer than 1000 bytes"),
        ("/retrieve", {"queries": ["a", "b", "c", "d"]}, LIMITS, 413, "4 queries; a request may have 3"),
        ("/retrieve", {"query": "x" * 11}, LIMITS, 422, "the query has 11 characters; it may have 10"),
        ("/retrieve", {"queries": ["a", "b"], "topk": 4}, LIMITS, 200, "result"),
        ("/retrieve", {"queries": ["a", "b", "c"]}, LIMITS, 413, "3 queries of 3 passages each"),  # the server's topk
        ("/batch_search", {"query": ["a", "b"], "top_n": 5}, LIMITS, 413, "a request may ask for 8 passages"),
        ("/retrieve", {"queries": ["lake"] * 4096, "topk": 12}, Limits(), 200, "result"),
        ("/retrieve", {"queries": ["lake"] * 4096, "topk": 13}, Limits(), 413, "4096 queries of 13 passages each"),
    ],
)
def test_limits(served: Any, index: Any, path: str, body: Any, limits: Limits, status: int, said: str) -> None:
    answer = post(served, index, path, body, limits=limits)
    assert answer.status_code == status and said in answer.text


def test_an_answer_of_long_passages_is_limited(served: Any, index: Any) -> None:
    body = {"queries": ["lake"] * 100, "return_scores": True}
    length = len(post(served, index, "/retrieve", body).content)
    assert post(served, index, "/retrieve", body, limits=Limits(answer=length)).status_code == 200
    answer = post(served, index, "/retrieve", body, limits=Limits(answer=length - 1))
    assert answer.status_code == 413 and f"the answer is longer than {length - 1} bytes" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/retrieve", {"queries": ["lake"] * 1000}),
        ("/retrieve", {"queries": ["lake"] * 1000, "return_scores": True}),
        ("/batch_search", {"query": ["lake"] * 1000}),
    ],
)
def test_an_answer_is_measured_while_it_is_built(
    served: Any, index: Any, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    read: list[int] = []
    as_json = formats.as_json
    monkeypatch.setattr(formats, "as_json", lambda documents, row: (read.append(row), as_json(documents, row))[1])
    assert post(served, index, path, body, limits=Limits(answer=1000)).status_code == 413
    assert 10 < len(read) < 30  # of 3000 passages


@pytest.mark.parametrize("token", [None, "secret"])
def test_the_id_of_a_request_is_sent_back(served: Any, index: Any, token: str | None) -> None:
    async def talk(client: Any) -> list[str | None]:
        answers = [
            await client.post("/retrieve", json={"query": "lake"}, headers={"Holdfast-Request": "a"}),
            await client.post("/retrieve", content=b"garbage", headers={"Holdfast-Request": "b"}),
            await client.post("/nowhere", headers={"Holdfast-Request": "c"}),
            await client.post("/retrieve", json={"query": "lake"}),
        ]
        return [answer.headers.get("Holdfast-Request") for answer in answers]

    assert served(talk, index, token=token) == ["a", "b", "c", None]


def test_one_bad_query_fails_alone(served: Any, index: Any) -> None:
    body = {"queries": ["lake", "poison", "x" * 99], "return_scores": True, "topk": 1}
    answer = post(served, index, "/retrieve", body, limits=Limits(characters=50))
    assert answer.status_code == 200
    assert [len(hits) for hits in answer.json()["result"]] == [1, 0, 0]
    problems = [None, "the search failed: poisoned", "the query has 99 characters; it may have 50"]
    assert answer.json()["errors"] == problems
    alone = post(served, index, "/retrieve", {"query": "poison"})
    assert (alone.status_code, alone.json()["detail"]) == (500, "the search failed: poisoned")


@pytest.mark.parametrize("query", ["", "  ", "?!", "漢字", "\ud800", 'quote " and \\ and \x00'])
def test_any_text_is_a_query(served: Any, index: Any, query: str) -> None:
    answer = post(served, index, "/retrieve", {"queries": [query, "lake"]})
    assert [len(hits) for hits in answer.json()["result"]] == [0, 3]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (r"lake \ud800", True),
        (r"\uDC00lake\ud83d", True),
        (r"\ud83d\ude00 lake", True),
        (r"\\ud800lake", False),  # a backslash, and a word
        (r"\\\ud800lake", True),
        (r"l\u0061ke\ud800\n", True),
    ],
)
def test_half_a_character_costs_no_query(served: Any, index: Any, query: str, found: bool) -> None:
    answer = post(served, index, "/retrieve", f'{{"queries": ["{query}", "lake"]}}'.encode())
    assert [bool(hits) for hits in answer.json()["result"]] == [found, True]


@pytest.mark.parametrize("name", ["topk", "top_k", "k", "top_n"])
@pytest.mark.parametrize("path", ["/retrieve", "/search"])
def test_the_number_of_passages_by_any_of_its_names(served: Any, index: Any, path: str, name: str) -> None:
    answer = post(served, index, path, {"query": "lake", name: 1}).json()
    assert len(answer["result"][0] if path == "/retrieve" else answer) == 1
    refusal = post(served, index, path, {"query": "lake", name: -1})
    assert refusal.status_code == 422 and "greater than or equal to" in refusal.text


def test_an_unknown_path_names_the_paths(served: Any, index: Any) -> None:
    answer = post(served, index, "/retreive", {"query": "lake"})
    assert answer.status_code == 404
    assert answer.json()["detail"].startswith("there is no /retreive; the paths are POST /retrieve, ")


def test_the_token_is_asked_for_where_something_is_to_be_had(served: Any, index: Any) -> None:
    async def talk(client: Any) -> tuple[list[int], str]:
        paths = ["/health", "/ready", "/metrics", "/docs", "/retrieve"]
        without = [(await client.get(path)).status_code for path in paths]
        with_it = {"Authorization": "Bearer secret"}
        allowed = await client.post("/retrieve", json={"query": "lake"}, headers=with_it)
        wrong = await client.post("/retrieve", json={"query": "lake"}, headers={"Authorization": "Bearer secres"})
        scanned = await client.get("/wp-login.php")
        counts = (await client.get("/metrics", headers=with_it)).text
        return [*without, allowed.status_code, wrong.status_code, scanned.status_code], counts

    statuses, counts = served(talk, index, token="secret")
    assert statuses == [200, 200, 401, 401, 401, 200, 401, 401]
    assert 'path="other",status="401"' in counts and "wp-login" not in counts


def test_another_host_gets_nothing_of_a_server_for_its_own_machine(served: Any, index: Any) -> None:
    """A web page whose name leads to 127.0.0.1 has its own name in the header."""

    async def talk(client: Any) -> list[int]:
        hosts = [
            "127.0.0.1:8000",
            "[::1]:8000",
            "LOCALHOST",
            "mine:8000",
            "evil.example",
            "127.0.0.1.evil.example",
            "[:",
        ]
        return [(await client.get("/ready", headers={"Host": host})).status_code for host in hosts]

    assert served(talk, index, local="mine") == [200, 200, 200, 200, 421, 421, 421]
    assert served(talk, index) == [200] * 7


def test_a_body_that_breaks_off_is_no_failure_of_the_server(served: Any, index: Any) -> None:
    async def talk(client: Any) -> list[int]:
        parts = iter([{"type": "http.request", "body": b"[", "more_body": True}, {"type": "http.disconnect"}])
        sent: list[Any] = []

        async def receive() -> Any:
            return next(parts)

        async def send(message: Any) -> None:
            sent.append(message.get("status"))

        scope = {"type": "http", "method": "POST", "path": "/retrieve", "headers": [], "query_string": b""}
        await client._transport.app(scope, receive, send)
        return sent[:1]

    assert served(talk, index) == [400]


def test_openapi_names_what_is_sent(served: Any, index: Any) -> None:
    async def talk(client: Any) -> Any:
        return (await client.get("/openapi.json")).json()

    paths = served(talk, index)["paths"]
    schema = paths["/retrieve"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schema["properties"]) == {"queries", "topk", "return_scores"}
    assert {"/retrieve", "/search", "/batch_search", "/health", "/ready", "/metrics"} == set(paths)


def test_prometheus(served: Any, index: Any) -> None:
    async def talk(client: Any) -> str:
        await client.post("/retrieve", json={"queries": ["lake", "lake", "animal"]})
        await client.post("/retrieve", json={"queries": ["lake"]})
        await client.post("/nowhere/else", json={})
        return (await client.get("/metrics")).text

    lines = served(talk, index).splitlines()
    for expected in (
        'holdfast_requests_total{path="/retrieve",status="200"} 2.0',
        'holdfast_requests_total{path="other",status="404"} 1.0',
        'holdfast_queries_total{outcome="searched"} 2.0',
        'holdfast_queries_total{outcome="joined"} 1.0',
        'holdfast_queries_total{outcome="cached"} 1.0',
        "holdfast_batch_queries_sum 2.0",
        "holdfast_passages 4.0",
        "holdfast_cached_queries 2.0",
        "holdfast_waiting_queries 0.0",
    ):
        assert expected in lines


# ---- `holdfast serve` as a process


Start = Callable[..., Any]


def test_from_start_to_stop(index_folder: Path, serve_process: Start) -> None:
    process, address = serve_process(index_folder)
    assert address.startswith("http://127.0.0.1:")
    assert httpx.get(f"{address}/ready", headers={"Host": "evil.example"}, trust_env=False).status_code == 421
    client = HTTPRetriever(address)
    expected = BM25Retriever.load(index_folder).search(["lake", "zebra", "town"], 2)
    assert client.search(["lake", "zebra", "town"], 2) == expected
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda i: client.search([f"lake {i % 50}"], 3), range(200)))
    assert all(hits == found[0] for hits in found)
    client.close()
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=300)
    assert "Stopped, after answering every request" in rest
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_what_was_accepted_is_answered(index_folder: Path, serve_process: Start, number: signal.Signals) -> None:
    # Seconds in which the batch waits for others: all requests are inside when the signal comes.
    process, address = serve_process(index_folder, "--wait-ms", "4000", "--batch", "500")
    host, port = address.removeprefix("http://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
    for i, connection in enumerate(sockets):
        head, body = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\n", f'{{"query": "lake {i}"}}'
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    metrics = partial(httpx.get, f"{address}/metrics", trust_env=False)
    wait_for(lambda: "holdfast_waiting_queries 40.0" in metrics().text, minutes=1, process=process)
    process.send_signal(number)
    for connection in sockets:
        with connection:
            answer = b"".join(iter(lambda own=connection: own.recv(65536), b""))  # until the server closes
            assert answer.startswith(b"HTTP/1.1 200 OK") and b"Orsa" in answer
    process.communicate(timeout=300)
    assert process.returncode == 0


def test_a_token_from_the_environment(
    index_folder: Path, serve_process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = serve_process(index_folder, HOLDFAST_TOKEN="secret")
    assert httpx.post(f"{address}/retrieve", json={"query": "x"}, trust_env=False).status_code == 401
    monkeypatch.setenv("HOLDFAST_TOKEN", "secret")
    client = HTTPRetriever(address)
    assert client.search(["lake"], 1)
    client.close()


def test_without_the_extra_it_says_what_to_install(index_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "holdfast.retrieval.server.connections", raising=False)
    with pytest.raises(MissingExtra, match=r"uvicorn is not installed. Run: pip install 'holdfast-rl\[server\]'"):
        serve(index_folder, port=0)


def test_what_cannot_be_served_is_a_sentence(index_folder: Path, tmp_path: Path) -> None:
    def refusal(*arguments: object, **environment: str) -> str:
        command = [sys.executable, "-m", "holdfast", "serve", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)
        assert done.returncode == 2
        return done.stderr

    assert "is not an index" in refusal(tmp_path, "--port", 0)
    assert "HOLDFAST_TOKEN has" in refusal(index_folder, "--port", 0, HOLDFAST_TOKEN="tokén")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in refusal(index_folder, "--port", port)


# ---- two hundred callers at once against one batch


@pytest.mark.parametrize("kind", ["bm25", "dense", "sq8"])
def test_a_caller_among_many_gets_what_one_batch_gives(
    write_corpus: Any, encoder: Any, served: Any, tmp_path: Path, kind: str
) -> None:
    corpus = write_corpus(400)
    if kind == "bm25":
        build_bm25(corpus, tmp_path / "index")
    else:
        build_dense(corpus, tmp_path / "index", spec_of(str(encoder())), sq8=kind == "sq8", device="cpu")
    index = open_index(tmp_path / "index", device="cpu")
    queries = [f"w{i} w{3 * i % 71} w{i % 5}" for i in range(200)]

    async def talk(client: Any) -> list[Any]:
        bodies = ({"queries": [query], "topk": 3, "return_scores": True} for query in queries)
        answers = await asyncio.gather(*(client.post("/retrieve", json=body) for body in bodies))
        return [answer.json()["result"][0] for answer in answers]

    tolerance = 0.0 if kind == "bm25" else 1e-5
    for hits, expected in zip(served(talk, index), index.search(queries, 3), strict=True):
        assert [hit["document"]["id"] for hit in hits] == [hit.document.id for hit in expected]
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=tolerance, rel=0)
