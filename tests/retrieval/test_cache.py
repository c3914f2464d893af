"""The cache of a run's queries."""

from __future__ import annotations

import threading

import pytest

from holdfast.base.errors import RetrievalError
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.types import Document, Hit


class Recording:
    """Answers every query with itself, k times, and remembers what it was asked."""

    in_process = False

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], int]] = []
        self.fail = False

    def search(self, queries, k):
        self.calls.append((tuple(queries), k))
        if self.fail:
            raise RetrievalError("down")
        return [[Hit(Document(f"{query}-{i}", query), 1.0) for i in range(k)] for query in queries]


def ids(results):
    return [[hit.document.id for hit in hits] for hits in results]


def test_each_query_is_asked_once_and_answered_in_order():
    inner = Recording()
    cached = CachedRetriever(inner)
    assert ids(cached.search(["b", "a", "b"], 1)) == [["b-0"], ["a-0"], ["b-0"]]
    assert ids(cached.search(["a", "c", "b"], 1)) == [["a-0"], ["c-0"], ["b-0"]]
    assert ids(cached.search(["a"], 2)) == [["a-0", "a-1"]], "another k is another search"
    assert inner.calls == [(("b", "a"), 1), (("c",), 1), (("a",), 2)]


def test_the_least_recently_used_is_forgotten():
    inner = Recording()
    cached = CachedRetriever(inner, size=2)
    for query in ["a", "b", "a", "c"]:  # using a again leaves b as the oldest
        cached.search([query], 1)
    inner.calls.clear()
    cached.search(["a"], 1)
    cached.search(["c"], 1)
    assert inner.calls == []
    cached.search(["b"], 1)
    assert inner.calls == [(("b",), 1)]


def test_empty_results_are_remembered_and_failures_are_not():
    inner = Recording()
    cached = CachedRetriever(inner)
    inner.fail = True
    with pytest.raises(RetrievalError, match="down"):
        cached.search(["a"], 1)
    inner.fail = False
    assert ids(cached.search(["a"], 1)) == [["a-0"]]
    inner.search = lambda queries, k: [[] for _ in queries]
    assert cached.search(["none"], 1) == [[]]
    inner.search = None
    assert cached.search(["none"], 1) == [[]]


def test_results_are_the_callers_own():
    cached = CachedRetriever(Recording())
    cached.search(["a"], 1)[0].clear()
    first, second = cached.search(["a", "a"], 1)
    first.clear()
    assert ids([second, *cached.search(["a"], 1)]) == [["a-0"], ["a-0"]]


def test_a_slow_search_does_not_hold_up_a_cached_one():
    inner = Recording()
    cached = CachedRetriever(inner)
    cached.search(["known"], 1)
    started, release = threading.Event(), threading.Event()
    answer = inner.search

    def slow(queries, k):
        started.set()
        assert release.wait(10)
        return answer(queries, k)

    inner.search = slow
    thread = threading.Thread(target=cached.search, args=(["new"], 1))
    thread.start()
    assert started.wait(10)
    assert ids(cached.search(["known"], 1)) == [["known-0"]]
    release.set()
    thread.join(10)
    assert not thread.is_alive()
