"""Remember what queries returned: rollouts of one question ask the same thing many times."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError, RetrievalError
from holdfast.retrieval.types import Hit, Retriever


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counts since the cache was made. A query repeated within one call is a hit."""

    hits: int
    misses: int


class CachedRetriever:
    """A retriever that asks another one each (query, k) once, and forgets what was used longest ago.

    Only successful searches are kept. `size` 0 keeps nothing between calls, but still asks once for queries that
    repeat within a call. Safe to share between threads.
    """

    def __init__(self, retriever: Retriever, size: int = 100_000) -> None:
        if size < 0:
            raise ConfigError(f"the cache size is {size}; give 0 (keep nothing) or more")
        self._retriever = retriever
        self._size = size
        self._kept: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    @property
    def in_process(self) -> bool:
        return self._retriever.in_process

    @property
    def corpus_hash(self) -> str | None:
        """Of the passages, where the retriever knows them; None for a server's."""
        return getattr(self._retriever, "corpus_hash", None)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`. Raises `RetrievalError` when the retriever does, or when it loses a query."""
        with self._lock:
            found = {query: self._kept[query, k] for query in queries if (query, k) in self._kept}
            for query in found:
                self._kept.move_to_end((query, k))
            missing = list(dict.fromkeys(query for query in queries if query not in found))
        # The retriever runs outside the lock: a slow search must not stop another thread's cached one.
        fresh = self._retriever.search(missing, k) if missing else []
        if len(fresh) != len(missing):
            raise RetrievalError(f"the retriever answered {len(fresh)} of {len(missing)} queries")
        found.update((query, tuple(hits)) for query, hits in zip(missing, fresh, strict=True))
        with self._lock:
            self._hits += len(queries) - len(missing)
            self._misses += len(missing)
            for query in missing:
                self._kept[query, k] = found[query]
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return [list(found[query]) for query in queries]

    def stats(self) -> CacheStats:
        with self._lock:
            return CacheStats(self._hits, self._misses)
