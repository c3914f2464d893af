"""Searches of many clients in batches on one thread: equal queries are searched once, and too many are refused."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.base.errors import HoldfastError
from holdfast.retrieval.types import Ranked

if TYPE_CHECKING:
    from holdfast.retrieval.server.app import Metrics  # prometheus_client, of the [server] extra

Rank = Callable[[Sequence[str], int], list[Ranked]]
Outcome = Ranked | Exception
Key = tuple[str, int]
MAX_BYTES = 256 * 2**20
"""The most bytes of all entries: clients choose how long a query and a result are."""
_OVERHEAD = 500  # bytes that an entry takes besides its text and its numbers


class Overloaded(HoldfastError):
    """Too many queries are waiting; the client should try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How queries are gathered into batches."""

    most: int = 64
    """Queries in a batch."""
    wait: float = 0.002
    """Most seconds that the first query of a batch waits for others."""
    waiting: int = 20_000
    """Most queries that may wait for a search. A request that would exceed it is refused."""


class QueryCache:
    """An LRU cache (query, k) → rows and scores, of at most `size` entries and `MAX_BYTES` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: OrderedDict[Key, Ranked] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Ranked | None:
        """The cached result, which becomes the last one used; None when there is none."""
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Key, result: Ranked) -> None:
        """Cache the result of a query that is not cached."""
        self._entries[key] = result
        self._bytes += _bytes_of(key, result)
        while len(self._entries) > self._size or self._bytes > MAX_BYTES:
            self._bytes -= _bytes_of(*self._entries.popitem(last=False))


def _bytes_of(key: Key, result: Ranked) -> int:
    return sys.getsizeof(key[0]) + result.rows.nbytes + result.scores.nbytes + _OVERHEAD


class Batcher:
    """Searches on one thread, for any number of coroutines of one event loop.

    One thread, because searches are fastest in batches, and because a retriever then needs no support for threads.
    """

    def __init__(self, rank: Rank, batching: Batching, cache: QueryCache, metrics: Metrics) -> None:
        self._rank, self._batching, self._cache, self._metrics = rank, batching, cache, metrics
        outcomes = ("searched", "cached", "joined", "refused", "failed")
        self._counts = {outcome: metrics.queries.labels(outcome) for outcome in outcomes}
        self._queue: deque[Key] = deque()
        self._flights: dict[Key, asyncio.Future[Outcome]] = {}
        self._arrived = asyncio.Event()
        self._oldest = 0.0  # when the first of the queue arrived
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._loop: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """True between `start` and `stop`, unless the work failed."""
        return self._loop is not None and not self._loop.done()

    @property
    def waiting(self) -> int:
        """Number of queries waiting for a search."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """True when no more queries are accepted."""
        return len(self._queue) >= self._batching.waiting

    def start(self) -> None:
        """Start searching. Needs a running event loop."""
        self._loop = asyncio.get_running_loop().create_task(self._work())
        self._loop.add_done_callback(self._fail_waiting)

    async def stop(self) -> None:
        """Answer the waiting queries, then stop."""
        while self._flights and self.running:
            await asyncio.wait(self._flights.values())
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        self._thread.shutdown()

    async def ask(self, queries: Sequence[str], k: int) -> list[Outcome]:
        """For each query its passages, or the exception of its search. Raises `Overloaded`."""
        outcomes: dict[str, Outcome] = {}
        flights: dict[str, asyncio.Future[Outcome]] = {}
        new: list[Key] = []
        joined = 0
        for query in dict.fromkeys(queries):
            if (cached := self._cache.get((query, k))) is not None:
                outcomes[query] = cached
            elif (flight := self._flights.get((query, k))) is not None:
                flights[query] = flight
                joined += 1
            else:
                new.append((query, k))
        if new and len(self._queue) + len(new) > self._batching.waiting:
            self._counts["refused"].inc(len(queries))
            raise Overloaded(f"{len(self._queue)} queries are waiting already")
        joined += len(queries) - len(outcomes) - len(flights) - len(new)
        for outcome, count in (("cached", len(outcomes)), ("joined", joined), ("searched", len(new))):
            self._counts[outcome].inc(count)
        if not self._queue:
            self._oldest = asyncio.get_running_loop().time()
        for key in new:
            flights[key[0]] = self._flights[key] = asyncio.get_running_loop().create_future()
        self._queue.extend(new)
        if new:
            self._arrived.set()
        for query, flight in flights.items():
            # Shielded: a client that disconnects must not cancel a search that others wait for.
            outcomes[query] = await asyncio.shield(flight)
        return [outcomes[query] for query in queries]

    async def _work(self) -> None:
        while True:
            await self._arrived.wait()
            left = self._oldest + self._batching.wait - asyncio.get_running_loop().time()
            if left > 0 and len(self._queue) < self._batching.most:
                await asyncio.sleep(left)
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batching.most))]
            if not self._queue:
                self._arrived.clear()
            for k in dict.fromkeys(k for _, k in batch):
                queries = [query for query, query_k in batch if query_k == k]
                outcomes = await asyncio.get_running_loop().run_in_executor(self._thread, self._search, queries, k)
                self._metrics.batch_size.observe(len(queries))
                self._complete(zip(queries, outcomes, strict=True), k)

    def _fail_waiting(self, loop: asyncio.Task[None]) -> None:
        """Fail the waiting queries when the work has ended for any reason."""
        error = None if loop.cancelled() else loop.exception()
        self._queue.clear()
        while self._flights:
            _, flight = self._flights.popitem()
            if not flight.done():
                flight.set_result(RuntimeError(f"the server stopped searching ({error or 'it is shutting down'})"))

    def _complete(self, outcomes: Iterable[tuple[str, Outcome]], k: int) -> None:
        for query, outcome in outcomes:
            if isinstance(outcome, Exception):
                self._counts["failed"].inc()
            else:
                self._cache.put((query, k), outcome)
            self._flights.pop((query, k)).set_result(outcome)

    def _search(self, queries: list[str], k: int) -> list[Outcome]:
        """Search one batch. When it fails, search each query alone, so that only bad queries fail."""
        try:
            return list(self._rank(queries, k))
        except Exception as error:
            if len(queries) == 1:
                return [error]
        return [outcome for query in queries for outcome in self._search([query], k)]
