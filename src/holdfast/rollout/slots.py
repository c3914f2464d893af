"""Which episode lives in which slot of the cache."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from holdfast.rollout.cache import SlotCache
from holdfast.rollout.policy import Request

_TOLERATED = 8  # idle slots among the decoding ones: up to 1/8 of these, before rows are moved


@dataclass(slots=True, eq=False)
class Row:
    """One episode's cached context, and its request while one is under way."""

    id: str
    context: list[int]
    """Everything fed or sampled so far."""
    cached: int = 0
    """Leading tokens of `context` whose keys are stored. The newest sampled token never is."""
    slot: int = -1
    """-1 until its first prefill."""
    request: Request | None = None
    decoding: bool = False
    """True between the prefill and the end of the turn."""
    key: int = 0
    """Of the request's seed, for `counter_uniform`."""
    flags: bytes = b""
    """Of the request's stop strings, from `StopTable`."""
    logprobs: list[float] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)

    @property
    def unseen(self) -> int:
        return len(self.context) - self.cached

    def begin(self, request: Request, key: int, flags: bytes) -> None:
        """Take up a request, keeping the keys of the tokens its context shares with what is cached."""
        context = list(request.token_ids)
        # At least the last token is always fed: its logits start the turn.
        self.cached = min(common_prefix(self.context, context), self.cached, len(context) - 1)
        self.context, self.request, self.key, self.flags = context, request, key, flags
        self.logprobs, self.masses = [], []


class SlotTable:
    """Slots of a cache and their rows. Slots are handed out lowest first, to keep decoding rows close together."""

    def __init__(self, cache: SlotCache) -> None:
        self.cache = cache
        self.rows: list[Row | None] = []
        self._free: list[int] = []

    @property
    def taken(self) -> int:
        return len(self.rows) - len(self._free)

    def take(self, row: Row) -> None:
        if self._free:
            row.slot = heapq.heappop(self._free)
            self.rows[row.slot] = row
        else:
            row.slot = len(self.rows)
            self.rows.append(row)

    def drop(self, row: Row) -> None:
        self.rows[row.slot] = None
        heapq.heappush(self._free, row.slot)
        row.slot = -1

    def reserve(self, capacity: int) -> None:
        self.cache.reserve(len(self.rows), capacity)

    def gather(self) -> int:
        """How many leading slots hold all decoding rows. Swaps rows when too many idle slots lie among these.

        An idle slot costs its share of every decoding step, a swap costs reading and writing two rows.
        """
        decoding = [row for row in self.rows if row is not None and row.decoding]
        count, reach = len(decoding), 1 + decoding[-1].slot
        if (reach - count) * _TOLERATED <= count:
            return reach
        holes = [slot for slot in range(count) if (row := self.rows[slot]) is None or not row.decoding]
        movers = [row for row in decoding if row.slot >= count]
        moves, length = [], 0
        for hole, mover in zip(holes, movers, strict=True):
            resident, origin = self.rows[hole], mover.slot
            moves.append((origin, hole))
            length = max(length, mover.cached)
            if resident is not None:
                moves.append((hole, origin))
                length = max(length, resident.cached)
                resident.slot = origin
            self.rows[hole], self.rows[origin], mover.slot = mover, resident, hole
        self.cache.copy(moves, length)
        self._free = [slot for slot, row in enumerate(self.rows) if row is None]  # ascending, hence a heap
        return count


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading elements in which two lists agree.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
