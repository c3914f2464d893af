"""Every shape that clients of Search-R1, verl, SkyRL and ReCall send, and what they must get."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
        ({"topk": 3}, "`queries` (a list of texts) or `query` (one text) is required"),
        ({"queries": [1]}, "queries.0"),
        ({"queries": None}, "queries"),
        ({"queries": ["x"], "topk": -1}, "topk"),
        ({"queries": ["x"], "topk": 1001}, "less than or equal to 1000"),
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


def test_limits(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

    limits = Limits(body=1000, queries=2, characters=10)
    answer = post(served, index, "/retrieve", {"queries": ["x" * 2000]}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (413, "the body is longer than 1000 bytes")
    answer = post(served, index, "/retrieve", {"queries": ["a", "b", "c"]}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (413, "3 queries; a request may hold 2")
    answer = post(served, index, "/retrieve", {"query": "x" * 11}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (422, "the query holds 11 characters; it may hold 10")


def test_one_bad_query_fails_alone(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

    body = {"queries": ["lake", "poison", "x" * 99], "return_scores": True, "topk": 1}
    answer = post(served, index, "/retrieve", body, limits=Limits(characters=50))
    assert answer.status_code == 200
    assert [len(hits) for hits in answer.json()["result"]] == [1, 0, 0]
    problems = [None, "the search failed: poisoned", "the query holds 99 characters; it may hold 50"]
    assert answer.json()["errors"] == problems
    alone = post(served, index, "/retrieve", {"query": "poison"})
    assert (alone.status_code, alone.json()["detail"]) == (500, "the search failed: poisoned")


@pytest.mark.parametrize("query", ["", "  ", "?!", "漢字", "\ud800", 'quote " and \\ and \x00'])
def test_any_text_is_a_query(served: Any, index: Any, query: str) -> None:
    answer = post(served, index, "/retrieve", {"queries": [query, "lake"]})
    if query == "\ud800":  # half a character, which no UTF-8 can hold
        assert answer.status_code == 422
    else:
        assert [len(hits) for hits in answer.json()["result"]] == [0, 3]


def test_the_token_is_asked_for_where_something_is_to_be_had(served: Any, index: Any) -> None:
    async def talk(client: Any) -> list[int]:
        paths = ["/health", "/ready", "/metrics", "/docs", "/retrieve"]
        without = [(await client.get(path)).status_code for path in paths]
        with_it = {"Authorization": "Bearer secret"}
        allowed = await client.post("/retrieve", json={"query": "lake"}, headers=with_it)
        wrong = await client.post("/retrieve", json={"query": "lake"}, headers={"Authorization": "Bearer secres"})
        return [*without, allowed.status_code, wrong.status_code]

    assert served(talk, index, token="secret") == [200, 200, 401, 401, 401, 200, 401]


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
