"""Every shape that clients of Search-R1, verl, SkyRL and ReCall send, and what they must get."""

from __future__ import annotations

import asyncio
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


def test_limits(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

    limits = Limits(body=1000, queries=2, characters=10)
    answer = post(served, index, "/retrieve", {"queries": ["x" * 2000]}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (413, "the body is longer than 1000 bytes")
    answer = post(served, index, "/retrieve", {"queries": ["a", "b", "c"]}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (413, "3 queries; a request may have 2")
    answer = post(served, index, "/retrieve", {"query": "x" * 11}, limits=limits)
    assert (answer.status_code, answer.json()["detail"]) == (422, "the query has 11 characters; it may have 10")


def test_queries_times_passages_are_limited(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

    for queries, topk, status in ((50, 1000, 200), (51, 1000, 413), (4096, 12, 200), (4096, 13, 413)):
        answer = post(served, index, "/retrieve", {"queries": ["lake"] * queries, "topk": topk})
        assert answer.status_code == status
    assert answer.json()["detail"].startswith("4096 queries of 13 passages each; a request may ask for 50000 passages")
    answer = post(served, index, "/retrieve", {"queries": ["lake"] * 4}, topk=3, limits=Limits(passages=11))
    assert answer.status_code == 413  # the server's own topk counts as well
    answer = post(served, index, "/batch_search", {"query": ["lake"] * 4, "top_n": 3}, limits=Limits(passages=11))
    assert answer.status_code == 413


def test_an_answer_of_long_passages_is_limited(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

    body = {"queries": ["lake"] * 100, "return_scores": True}
    length = len(post(served, index, "/retrieve", body).content)
    assert post(served, index, "/retrieve", body, limits=Limits(answer=length)).status_code == 200
    answer = post(served, index, "/retrieve", body, limits=Limits(answer=length - 1))
    assert (answer.status_code, answer.json()["detail"]) == (
        413,
        f"the answer is longer than {length - 1} bytes; ask for fewer passages at once",
    )


def test_a_long_answer_is_put_together_in_turns_with_other_work(
    served: Any, index: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.retrieval.server import app

    monkeypatch.setattr(app, "_TURN", 1000)

    async def talk(client: Any) -> tuple[int, int]:
        await client.post("/retrieve", json={"queries": ["lake"]})  # cached
        long = asyncio.create_task(client.post("/retrieve", json={"queries": ["lake"] * 4000}))
        turns = 0
        while not long.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, len((await long).content)

    turns, length = served(talk, index)
    assert turns > length // 1100 > 100


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


def test_a_caller_that_goes_away_is_one_line_in_the_log(index: Any, caplog: pytest.LogCaptureFixture) -> None:
    from holdfast.retrieval.server.app import make_app

    sent: list[Any] = []
    parts = iter([{"type": "http.request", "body": b'{"que', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/retrieve", "raw_path": b"/retrieve", "query_string": b""}
    scope |= {"headers": [], "http_version": "1.1", "scheme": "http", "server": ("test", 80), "root_path": ""}
    asyncio.run(make_app(index)(scope, receive, send))
    assert [record.getMessage() for record in caplog.records] == [
        "a client of /retrieve disconnected after 5 bytes of its request"
    ]
    assert caplog.records[0].exc_info is None
    assert sent[0]["status"] == 400


def test_one_bad_query_fails_alone(served: Any, index: Any) -> None:
    from holdfast.retrieval.server.app import Limits

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
