"""Retries and de-duplication of searches, apart from the scheduler."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, wait

import pytest

from holdfast.agent import searching
from holdfast.agent.searching import RolloutStats, SearchQueue, search_with_retries
from holdfast.base import retries
from holdfast.base.errors import RetrievalError, RetrieverTimeout, RetrieverUnreachable
from holdfast.base.retries import Retries
from holdfast.retrieval.types import Document, Hit


def hits(query: str) -> list[Hit]:
    return [Hit(Document(query, query), 1.0)]


class Picky:
    in_process = False

    def __init__(self, fails: dict[str, int]) -> None:
        self.fails, self.calls = fails, []

    def search(self, queries, k):
        self.calls.append(list(queries))
        for query in queries:
            self.fails[query] = self.fails.get(query, 0) - 1
            if self.fails[query] >= 0:
                raise RetrievalError(f"cannot {query}")
        return [hits(query) for query in queries]


def test_after_a_failure_queries_are_tried_one_by_one(monkeypatch):
    pauses = []
    monkeypatch.setattr(searching.time, "sleep", pauses.append)
    retriever = Picky({"bad": 99, "flaky": 1})
    results, stats = search_with_retries(retriever, ["good", "flaky", "bad"], 1, Retries(3, backoff=0.5))
    assert results[0] == hits("good") and results[1] == hits("flaky")
    assert isinstance(results[2], RetrievalError) and "cannot bad" in str(results[2])
    assert retriever.calls == [["good", "flaky", "bad"], ["good"], ["flaky"], ["bad"], ["bad"], ["bad"]]
    assert len(pauses) == 3, "one pause a round whatever the number of queries"
    assert (stats.calls, stats.retries) == (6, 3 + 1 + 1)


def test_searches_wait_together_for_a_server_that_is_away(monkeypatch):
    pauses = []
    monkeypatch.setattr(searching.time, "sleep", pauses.append)
    monkeypatch.setattr(retries, "monotonic", lambda: sum(pauses))

    class Away(Picky):
        in_process = True

        def search(self, queries, k):
            try:
                return super().search(queries, k)
            except RetrievalError as error:
                raise RetrieverUnreachable(str(error)) from None

    queue = SearchQueue(Away({"a": 5, "b": 99, "c": 99}), 1, retries=1, backoff_seconds=0.5, patience=60)
    queue.submit(["a"])
    assert queue.poll() == [("a", hits("a"))] and len(pauses) == 5
    pauses.clear()
    queue.submit(["b"])
    assert sum(pauses[1:]) == pytest.approx(60), "after the retry, and anew after an answer"
    before = len(pauses)
    queue.submit(["c"])
    assert len(pauses) == before + 1, "the retry alone"
    assert [type(result) for _, result in queue.poll()] == [RetrieverUnreachable] * 2


def test_no_retries(monkeypatch):
    monkeypatch.setattr(searching.time, "sleep", lambda seconds: 1 / 0)
    results, stats = search_with_retries(Picky({"a": 1}), ["a"], 1, Retries(0, backoff=9.0))
    assert isinstance(results[0], RetrievalError) and stats.calls == 1


def test_a_query_under_way_is_not_sent_again():
    gate = threading.Event()

    class Gated(Picky):
        def search(self, queries, k):
            assert gate.wait(5)
            return super().search(queries, k)

    retriever, stats = Gated({}), RolloutStats()
    queue = SearchQueue(retriever, 1, retries=0, backoff_seconds=0, stats=stats)
    queue.submit(["a", "b", "a"])
    queue.submit(["b", "c"])
    assert queue.pending and queue.poll() == []
    gate.set()
    found = []
    while queue.pending:
        wait(queue.pending, return_when=FIRST_COMPLETED)
        found += queue.poll()
    assert sorted(query for query, _ in found) == ["a", "b", "c"]
    assert sorted(retriever.calls) == [["a", "b"], ["c"]] and stats.unique_queries == 3
    queue.submit(["a"])
    wait(queue.pending)
    assert [query for query, _ in queue.poll()] == ["a"], "asked anew, searched anew"
    queue.close()


def test_in_process_searches_run_at_once_and_in_order():
    class Here(Picky):
        in_process = True

        def search(self, queries, k):
            assert threading.current_thread() is threading.main_thread()
            return super().search(queries, k)

    queue = SearchQueue(Here({}), 1, retries=0, backoff_seconds=0, stats=RolloutStats())
    queue.submit(["b", "a", "b"])
    assert queue.poll() == [("b", hits("b")), ("a", hits("a"))]
    assert not queue.pending


def test_where_nobody_answers_not_every_query_waits_for_its_own_timeout():
    class Silent(Picky):
        def search(self, queries, k):
            self.calls.append(list(queries))
            raise RetrieverTimeout("no answer in 30 s")

    retriever = Silent({})
    results, _ = search_with_retries(retriever, [f"q{i}" for i in range(100)], 1, Retries(2, backoff=0.0))
    assert len(results) == 100 and all(isinstance(result, RetrieverTimeout) for result in results)
    assert len(retriever.calls) == 1 + 2 * 8
