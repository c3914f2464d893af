"""Searches for many rollouts: de-duplicated, retried, and in threads where they wait for a network."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Self

from holdfast.base.errors import RetrievalError, RetrieverTimeout, RetrieverUnreachable
from holdfast.base.retries import PATIENCE, Retries
from holdfast.base.workers import Workers
from holdfast.retrieval.types import Hit, Retriever

SEARCH = "search"
"""The name by which agents call a `SearchQueue`."""
_THREADS = 16
_MAX_SILENT = 8
"""Queries in a row without any answer, after which the others of a round are not sent."""

SearchResult = list[Hit] | RetrievalError


@dataclass(slots=True)
class RolloutStats:
    """Counts and seconds of the searches of the rollouts it was passed to; adds up over calls."""

    searches: int = 0
    """Searches that rollouts requested."""
    failed_searches: int = 0
    """Searches that failed in every attempt."""
    calls: int = 0
    """Calls of `retriever.search`."""
    retrieval_seconds: float = 0.0
    """Summed over calls, which may overlap when they run in threads."""

    def add(self, other: Self) -> None:
        """Add the counts and seconds of `other` to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def search_with_retries(
    retriever: Retriever,
    queries: Sequence[str],
    k: int,
    retries: Retries,
    wait: Callable[[float], object] = time.sleep,
) -> tuple[list[SearchResult], RolloutStats]:
    """Search a batch; after a failure each query is tried alone, so that one bad query cannot fail the others.

    The pauses between attempts are shared by all queries of the batch. `wait` makes them, and returns something true to
    end the attempts.

    Returns:
        Per query its hits or the last error; and `calls` and `retrieval_seconds`.
    """
    stats = RolloutStats()
    results: dict[int, SearchResult] = {}

    def attempt(indices: list[int]) -> None:
        started = time.perf_counter()
        stats.calls += 1
        try:
            hits = retriever.search([queries[i] for i in indices], k)
            results.update(zip(indices, hits, strict=True))
            retries.answered()
        except RetrievalError as error:
            results.update((i, error) for i in indices)
        stats.retrieval_seconds += time.perf_counter() - started

    attempt(list(range(len(queries))))
    for failures in itertools.count(1):
        failed = [i for i, result in results.items() if isinstance(result, RetrievalError)]
        if not failed:
            break
        away = next((str(error) for i in failed if isinstance(error := results[i], RetrieverUnreachable)), None)
        pause = retries.pause(failures, away=away)
        if pause is None or wait(pause):
            break
        silent = 0
        for i in failed:
            attempt([i])
            silent = silent + 1 if isinstance(results[i], RetrieverTimeout | RetrieverUnreachable) else 0
            if silent == _MAX_SILENT:  # the server is down: each of the others would only wait for its own timeout
                break
    return [results[i] for i in range(len(queries))], stats


def search_patiently(retriever: Retriever, query: str, k: int) -> list[Hit]:
    """The hits of one query, tried again as a rollout would. Raises `RetrievalError`."""
    (result,), _ = search_with_retries(retriever, [query], k, Retries(patience=PATIENCE))
    if isinstance(result, RetrievalError):
        raise result
    return result


class SearchQueue:
    """The `ToolQueue` that searches: takes queries and returns their hits, or the error with which one failed.

    A retriever in this process is called at once and in order, which keeps runs reproducible; any other is called from
    threads, while the caller continues to decode. A query equal to one that is pending is not sent again.
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int,
        *,
        retries: Retries | None = None,
        stats: RolloutStats | None = None,
    ) -> None:
        self._retriever, self._k, self._retries = retriever, k, retries or Retries()
        self._stats = stats or RolloutStats()
        self._threads = None if retriever.in_process else Workers(_THREADS, "search")
        self._done: list[tuple[str, SearchResult]] = []
        self._calls: dict[Future[tuple[list[SearchResult], RolloutStats]], list[str]] = {}
        self._queries: set[str] = set()
        """Submitted and not yet polled."""

    @property
    def pending(self) -> Collection[Future[tuple[list[SearchResult], RolloutStats]]]:
        """Calls in threads that are not polled yet."""
        return self._calls

    def submit(self, queries: Iterable[str]) -> None:
        """Search for those queries that are not pending, in one call."""
        new = [query for query in dict.fromkeys(queries) if query not in self._queries]
        if not new:
            return
        self._queries.update(new)
        if self._threads is None:
            self._complete(new, *self._search(new))
        else:
            self._calls[self._threads.submit(self._search, new)] = new

    def poll(self) -> list[tuple[str, SearchResult]]:
        """Results that arrived since the last poll. Raises any error of a retriever other than `RetrievalError`."""
        for call in [call for call in self._calls if call.done()]:
            self._complete(self._calls.pop(call), *call.result())
        done, self._done = self._done, []
        self._queries.difference_update(query for query, _ in done)
        return done

    def close(self) -> None:
        """Abandon what is still queued. Calls that are running cannot be stopped; their results are dropped."""
        if self._threads is not None:
            self._threads.close()

    def _search(self, queries: list[str]) -> tuple[list[SearchResult], RolloutStats]:
        wait = time.sleep if self._threads is None else self._threads.closed.wait
        return search_with_retries(self._retriever, queries, self._k, self._retries, wait)

    def _complete(self, queries: list[str], results: list[SearchResult], stats: RolloutStats) -> None:
        self._stats.add(stats)
        self._done += zip(queries, results, strict=True)
