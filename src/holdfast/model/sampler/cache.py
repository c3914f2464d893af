"""A key/value cache whose rows advance at their own positions, and the table of which rollout has which slot.

Every rollout has a *slot*. A slot's positions 0..n-1 are left-aligned at the start of its storage, without gaps: a row
that got 80 tokens of feedback decodes together with one that sampled a single token, and a query sees the storage
positions up to its own. New keys are scattered to their positions. What is stored after a row's last position is never
seen by a query, and the row's next tokens overwrite it.

Storage is `[slots, heads, capacity, dim]`: attention reads one head's keys at a time, in one contiguous piece. A window
over the first slots is a view.
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from holdfast.model.sampler.policy import Request
from holdfast.model.text.tokens import common_prefix

if TYPE_CHECKING:
    from holdfast.model.sampler.flash import FlashSlots

_TOLERATED = 8  # idle slots among the decoding ones: up to 1/8 of these, before rows are moved


@dataclass(slots=True)
class _Plan:
    """Where the next forward pass writes and what it reads; shared by all layers."""

    slots: Tensor
    """int64 `[rows]`: the slots of the rows in the pass."""
    write: Tensor
    """int64 `[rows, new]`: the position in its slot of each new token."""
    length: int
    """Positions visible to any row in this pass."""
    leading: bool
    """Whether `slots` are 0..rows-1, which are read without copying."""
    places: dict[int, Tensor] = field(default_factory=dict)

    def place(self, heads: int, capacity: int) -> Tensor:
        """int64 `[rows * heads * new]`: index of each new vector when slots, heads and positions are one dimension."""
        if heads not in self.places:
            head = self.slots.unsqueeze(1) * heads + torch.arange(heads, device=self.slots.device)
            self.places[heads] = (head.unsqueeze(2) * capacity + self.write.unsqueeze(1)).flatten()
        return self.places[heads]


class _SlotLayer(CacheLayerMixin):
    """Storage of one layer. Allocated at the first write, when heads, dims and dtype are known."""

    is_sliding = False

    def __init__(self, owner: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # Weak: in a cycle a dead cache would wait for the garbage collector, with all its memory.
        self.owner: SlotCache = weakref.proxy(owner)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = self._allocate(key_states), self._allocate(value_states)
        self.is_initialized = True

    def _allocate(self, states: Tensor) -> Tensor:
        dtype = states.dtype
        # Rotary embeddings leave float32 keys under autocast, and attention would cast the whole cache at every step.
        if dtype == torch.float32 and torch.is_autocast_enabled(states.device.type):
            dtype = torch.get_autocast_dtype(states.device.type)
        shape = (self.owner.slots, states.shape[1], self.owner.capacity, states.shape[3])
        # Zeros, not empty: masked positions have weight 0, and 0 × NaN is NaN.
        return torch.zeros(shape, dtype=dtype, device=states.device)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write `[rows, heads, new, dim]` as planned; return what the rows see, `[rows, heads, length, dim]`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        return self._put_and_read(self.keys, key_states), self._put_and_read(self.values, value_states)

    def _put_and_read(self, store: Tensor, states: Tensor) -> Tensor:
        plan = self.owner.plan
        rows, heads, _, dim = states.shape
        place = plan.place(heads, store.shape[2])
        store.view(-1, dim).index_copy_(0, place, states.reshape(-1, dim).to(store.dtype))
        window = store[:, :, : plan.length]
        return window[:rows] if plan.leading else window.index_select(0, plan.slots)

    def grow(self, slots: int, capacity: int) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros((slots, old.shape[1], capacity, old.shape[3]))
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def shrink(self, slots: int) -> None:
        self.keys, self.values = (store[:slots].clone() for store in (self.keys, self.values) if store is not None)

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        for store in (self.keys, self.values):
            assert store is not None
            window = store[:, :, :length]
            window.index_copy_(0, target, window.index_select(0, source))

    def get_seq_length(self) -> int:
        return 0  # rows differ in length, so positions and masks are always given explicitly

    def get_max_length(self) -> int:
        return -1  # grows on demand

    def get_max_cache_shape(self) -> int:
        return -1  # the name of get_max_length in older releases of transformers

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return self.owner.plan.length, 0


UNBOUNDED = (sys.maxsize, sys.maxsize)


class SlotCache(Cache):
    """All layers' storage, and the plan of the next forward pass.

    Capacity and slots grow by at least half whenever they are exceeded, so a long run copies its cache rarely.
    """

    plan: _Plan

    def __init__(
        self,
        layers: int,
        device: torch.device,
        *,
        slots: int = 8,
        capacity: int = 128,
        limits: tuple[int, int] = UNBOUNDED,
    ) -> None:
        """`limits`: of slots and capacity when growing in advance."""
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])
        self.device, self.slots, self.capacity, self.limits = device, slots, capacity, limits

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for `slots` rows of `capacity` positions; what is stored stays."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        max_slots, max_capacity = self.limits
        if slots > self.slots:
            self.slots = max(slots, min(self.slots * 3 // 2, max_slots))
        if capacity > self.capacity:
            roomy = max(-(-capacity // 64) * 64, self.capacity * 3 // 2)
            self.capacity = max(capacity, min(roomy, max_capacity))
        for layer in self._stored():
            layer.grow(self.slots, self.capacity)

    def shrink(self, slots: int) -> None:
        """Give back the memory of all slots but the first `slots`."""
        self.slots = slots
        for layer in self._stored():
            layer.shrink(slots)

    def plan_step(self, positions: Tensor, *, length: int) -> Tensor:
        """Plan one new token for each of slots 0..n-1; returns the mask (see `visible`).

        Args:
            positions: int64 `[n]`, where each slot's token goes. Must be < capacity.
            length: 1 + the largest position that matters.
        """
        slots = torch.arange(positions.shape[0], device=positions.device)
        self.plan = _Plan(slots, positions.unsqueeze(1), length, leading=True)
        return self.visible(positions.unsqueeze(1), length)

    def plan_rows(self, slots: Tensor, write: Tensor, positions: Tensor, *, length: int) -> Tensor:
        """Plan several new tokens for each of `slots`; returns the mask (see `visible`).

        Args:
            slots: int64 `[rows]`, distinct.
            write: int64 `[rows, new]`, storage position of each token, distinct within a row. Padding goes behind the
                row's end, where all of it may share a position.
            positions: int64 `[rows, new]`, the largest storage position each token sees.
            length: 1 + the largest position that matters.
        """
        self.plan = _Plan(slots, write, length, leading=False)
        return self.visible(positions, length)

    @staticmethod
    def visible(positions: Tensor, length: int) -> Tensor:
        """bool `[rows, 1, new, length]`: True where a query at `positions` sees a storage position."""
        return (torch.arange(length, device=positions.device) <= positions.unsqueeze(-1)).unsqueeze(1)

    def copy(self, moves: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` positions of slots, given as (source, target) pairs; all reads precede the writes."""
        if not moves:
            return
        source, target = torch.tensor(moves, device=self.device).T.contiguous()
        for layer in self._stored():
            layer.copy(source, target, length)

    def _stored(self) -> list[_SlotLayer]:
        # A layer that shares another's keys never stores any.
        return [layer for layer in self.layers if isinstance(layer, _SlotLayer) and layer.is_initialized]


@dataclass(slots=True, eq=False)
class Row:
    """One rollout's cached context, and its request while one is pending."""

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
    """Key of the request's seed, for `counter_uniform`."""
    flags: bytes = b""
    """Flags of the request's stop strings, from `StopTable`."""
    logprobs: list[float] = field(default_factory=list)
    masses: list[float] = field(default_factory=list)

    @property
    def unseen(self) -> int:
        """Number of tokens that the model has not processed."""
        return len(self.context) - self.cached

    def begin(self, request: Request, key: int, flags: bytes) -> None:
        """Start a request, reusing the keys of the tokens that its context shares with the cached ones."""
        context = list(request.token_ids)
        # At least the last token is always fed: its logits start the turn.
        self.cached = min(common_prefix(self.context, context), self.cached, len(context) - 1)
        self.context, self.request, self.key, self.flags = context, request, key, flags
        self.logprobs, self.masses = [], []


@dataclass(slots=True)
class Batch:
    """Rows of a step, valid until one enters or leaves."""

    state: Tensor
    """int64 [5, R] on the device: each row's token, position, key, 1 if it decodes, slot. What the others compute is
    thrown away."""
    rows: list[tuple[int, Row]]
    """Decoding rows and their columns."""
    length: int
    """Positions the longest decoding row sees."""


class SlotTable:
    """Slots of a cache and their rows. Slots are handed out lowest first, to keep decoding rows close together."""

    def __init__(self, cache: SlotCache | FlashSlots) -> None:
        self.cache = cache
        self.rows: list[Row | None] = []
        self._free: list[int] = []

    @property
    def taken(self) -> int:
        """Number of slots with a row."""
        return len(self.rows) - len(self._free)

    def take(self, row: Row) -> None:
        """Give the row the lowest free slot, or a new one."""
        if self._free:
            row.slot = heapq.heappop(self._free)
            self.rows[row.slot] = row
        else:
            row.slot = len(self.rows)
            self.rows.append(row)

    def drop(self, row: Row) -> None:
        """Free the row's slot."""
        self.rows[row.slot] = None
        heapq.heappush(self._free, row.slot)
        row.slot = -1

    def trim(self, slots: int) -> bool:
        """Leave the first `slots` slots, to rows that decode and as many others as have room; the others lose what they
        stored. False, and nothing moves, if there are no more slots or more rows decode."""
        rows = [row for row in self.rows if row is not None]
        decoding = sum(row.decoding for row in rows)
        if self.cache.slots <= slots or decoding > slots:
            return False
        for row in [row for row in rows if not row.decoding][slots - decoding :]:
            self.drop(row)
            row.cached = 0
        movers = [row for row in self.rows[slots:] if row is not None]
        moves = list(zip(movers, (slot for slot in self._free if slot < slots), strict=False))
        self.cache.copy([(row.slot, hole) for row, hole in moves], self.cache.capacity)
        for row, hole in moves:
            self.rows[hole], row.slot = row, hole
        del self.rows[slots:]
        self._free = [slot for slot, row in enumerate(self.rows) if row is None]
        return True

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` tokens in every slot."""
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
