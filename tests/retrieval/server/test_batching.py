"""Batches, equal queries, refusals, and ends."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from holdfast.retrieval.server import batching as module
from holdfast.retrieval.server.app import Metrics
from holdfast.retrieval.server.batching import Batcher, Batching, Overloaded, QueryCache
from holdfast.retrieval.types import Ranked


def batcher(index: Any, kept: int = 0, **settings: Any) -> Batcher:
    return Batcher(index.rank, Batching(**settings), QueryCache(kept), Metrics())


def rows(outcomes: Any) -> list[list[int]]:
    return [outcome.rows.tolist() for outcome in outcomes]


def test_callers_share_batches_and_get_their_own_answers(index: Any) -> None:
    queries = [f"lake {i}" for i in range(40)] + [f"animal {i}" for i in range(60)]

    async def main() -> Any:
        own = batcher(index, most=32, wait=0.05)
        own.start()
        found = await asyncio.gather(*(own.ask([query], 2) for query in queries))
        await own.stop()
        return found

    found = asyncio.run(main())
    expected = index._bm25.rank(queries, 2)
    for (one,), other in zip(found, expected, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert one.scores.tobytes() == other.scores.tobytes()  # bit for bit those of one batch
    assert [len(batch) for batch in index.batches] == [32, 32, 32, 4]


def test_equal_queries_under_way_are_searched_once(index: Any) -> None:
    release = threading.Event()
    index.before = lambda: release.wait(10)

    async def main() -> Any:
        own = batcher(index, wait=0.0)
        own.start()
        first = asyncio.create_task(own.ask(["lake", "animal", "lake"], 2))
        while not index.batches:
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(own.ask(["lake"], k)) for k in (2, 2, 1)]  # another k is another search
        await asyncio.sleep(0.01)
        release.set()
        found = rows(await first), [rows(await other) for other in others]
        await own.stop()
        return found

    own, others = asyncio.run(main())
    assert own[0] == own[2] and others == [[own[0]], [own[0]], [own[0][:1]]]
    assert index.batches == [("lake", "animal"), ("lake",)]


def test_more_than_may_wait_is_refused_whole_and_nothing_else_is_harmed(index: Any) -> None:
    release = threading.Event()
    index.before = lambda: release.wait(10)

    async def main() -> Any:
        own = batcher(index, waiting=3, wait=0.0)
        own.start()
        first = asyncio.create_task(own.ask(["lake"], 1))
        while not index.batches:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(own.ask(["a", "b"], 1))
        await asyncio.sleep(0.01)
        with pytest.raises(Overloaded, match="2 queries are waiting already"):
            await own.ask(["c", "d"], 1)
        joined = asyncio.create_task(own.ask(["a", "lake"], 1))  # costs no search, so it is not refused
        third = asyncio.create_task(own.ask(["c"], 1))
        await asyncio.sleep(0.01)
        assert own.full
        release.set()
        await asyncio.gather(first, waiting, joined, third)
        await own.stop()

    asyncio.run(main())
    assert index.batches == [("lake",), ("a", "b", "c")]


def test_a_caller_that_goes_away_takes_nobody_with_it(index: Any) -> None:
    release = threading.Event()
    index.before = lambda: release.wait(10)

    async def main() -> Any:
        own = batcher(index, wait=0.0)
        own.start()
        leaving, staying = (asyncio.create_task(own.ask(["lake"], 1)) for _ in range(2))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.sleep(0)
        release.set()
        found = rows(await staying)
        await own.stop()
        return found

    assert len(asyncio.run(main())[0]) == 1
    assert index.batches == [("lake",)]


def test_nobody_waits_for_a_search_that_died(index: Any) -> None:
    """A bug in the loop itself ends in an exception for every caller, not in a silence."""

    async def main() -> Any:
        own = batcher(index, wait=0.0)
        own._complete = None  # type: ignore[assignment, method-assign]
        own.start()
        (outcome,) = await own.ask(["lake"], 1)
        assert not own.running
        await own.stop()
        return outcome

    assert "the server stopped searching" in str(asyncio.run(main()))


# ---- the cache


def found(*rows: int) -> Ranked:
    return Ranked(np.array(rows, np.int64), np.array(rows, np.float32))


@pytest.mark.parametrize(("size", "most_bytes"), [(3, 2**20), (100, 3000)])
def test_entries_and_bytes_are_limited(monkeypatch: pytest.MonkeyPatch, size: int, most_bytes: int) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", most_bytes)
    cache = QueryCache(size)
    for i in range(50):
        cache.put((f"{i}" + 300 * "x", 1), found(i))
        cache.get(("0" + 300 * "x", 1))
    assert len(cache) == 3 and cache._bytes <= most_bytes
    first = cache.get(("0" + 300 * "x", 1))  # it was used all the time
    assert first is not None and first.rows.tolist() == [0]
    assert cache.get(("0" + 300 * "x", 2)) is None and cache.get(("40" + 300 * "x", 1)) is None


def test_a_result_larger_than_the_cache_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 2000)
    cache = QueryCache(10)
    cache.put(("long", 1000), found(*range(1000)))
    assert len(cache) == cache._bytes == 0
