"""Cache the results of queries: rollouts of one question search for the same things many times."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from holdfast.retrieval.types import Document, Hit, Retriever


class CachedRetriever:
    """A retriever that sends each (query, k) to another one once, and forgets the least recently used.

    Only successful searches are cached. With `size` 0 nothing is cached between calls, but queries that repeat within a
    call are still sent once. Threads may share it.
    """

    def __init__(self, retriever: Retriever, size: int = 100_000) -> None:
        self._retriever = retriever
        self._size = size
        self._cache: OrderedDict[tuple[str, int], tuple[Hit, ...]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def in_process(self) -> bool:
        """See `Retriever.in_process`."""
        return self._retriever.in_process

    @property
    def documents(self) -> Sequence[Document]:
        """The passages; none where the retriever does not know them, such as a server's."""
        return getattr(self._retriever, "documents", ())

    @property
    def corpus_hash(self) -> str | None:
        """Fingerprint of the passages; None where the retriever does not know them, such as a server's."""
        return getattr(self._retriever, "corpus_hash", None)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`. Raises `RetrievalError` when the retriever does."""
        with self._lock:
            results = {query: self._cache[query, k] for query in queries if (query, k) in self._cache}
            for query in results:
                self._cache.move_to_end((query, k))
            missing = list(dict.fromkeys(query for query in queries if query not in results))
        # The retriever runs outside the lock: a slow search must not delay another thread's cached one.
        fresh = self._retriever.search(missing, k) if missing else []
        results.update((query, tuple(hits)) for query, hits in zip(missing, fresh, strict=True))
        with self._lock:
            for query in missing:
                self._cache[query, k] = results[query]
            while len(self._cache) > self._size:
                self._cache.popitem(last=False)
        return [list(results[query]) for query in queries]
