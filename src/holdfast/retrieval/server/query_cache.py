"""The server's cache of query results."""

from __future__ import annotations

import sys
from collections import OrderedDict

from holdfast.retrieval.types import Ranked

MOST_BYTES = 256 * 2**20
"""The most bytes of all entries: clients choose how long a query and a result are."""
_OVERHEAD = 500  # bytes that an entry takes besides its text and its numbers

Key = tuple[str, int]


class QueryCache:
    """An LRU cache (query, k) → rows and scores, of at most `size` entries and `MOST_BYTES` bytes."""

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
        while len(self._entries) > self._size or self._bytes > MOST_BYTES:
            self._bytes -= _bytes_of(*self._entries.popitem(last=False))


def _bytes_of(key: Key, result: Ranked) -> int:
    return sys.getsizeof(key[0]) + result.rows.nbytes + result.scores.nbytes + _OVERHEAD
