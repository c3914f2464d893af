"""A key/value cache whose rows advance at their own positions.

Every episode owns a *slot*. A slot's real positions 0..n-1 lie left-aligned at the start of its storage, so there are
no gaps, a row that got 80 tokens of feedback sits beside one that sampled a single token, and "what a query sees" is
simply "storage positions up to its own". New keys are scattered to their positions; whatever lies behind a row's last
position is rubbish that no query sees and the row's own next tokens overwrite.

Storage is `[slots, heads, capacity, dim]`: attention reads one head's keys at a time, and reads them in one piece. A
window over the first slots is a view.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(slots=True)
class _Plan:
    """Where the next forward pass writes and what it reads; shared by all layers."""

    slots: Tensor
    """int64 `[rows]`: where the rows of the pass live."""
    write: Tensor
    """int64 `[rows, new]`: the position in its slot of each new token."""
    length: int
    """Positions visible to anybody in this pass."""
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
        super().__init__()
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

    Capacity and slots grow by at least half whenever they are exceeded, so a long run copies its cache a handful of
    times.
    """

    plan: _Plan

    def __init__(
        self,
        layers: int,
        device: torch.device,
        *,
        slots: int = 8,
        capacity: int = 128,
        most: tuple[int, int] = UNBOUNDED,
    ) -> None:
        """`most`: slots and capacity that growing in advance does not go beyond."""
        super().__init__(layers=[_SlotLayer(self) for _ in range(layers)])
        self.device, self.slots, self.capacity, self.most = device, slots, capacity, most

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for `slots` rows of `capacity` positions; what is stored stays."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        most_slots, most_capacity = self.most
        if slots > self.slots:
            self.slots = max(slots, min(self.slots * 3 // 2, most_slots))
        if capacity > self.capacity:
            roomy = max(-(-capacity // 64) * 64, self.capacity * 3 // 2)
            self.capacity = max(capacity, min(roomy, most_capacity))
        for layer in self._stored():
            layer.grow(self.slots, self.capacity)

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
                row's end.
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
        """Copy the first `length` positions of slots, given as (source, target) pairs; reads come before writes."""
        if not moves:
            return
        source, target = torch.tensor(moves, device=self.device).T.contiguous()
        for layer in self._stored():
            layer.copy(source, target, length)

    def _stored(self) -> list[_SlotLayer]:
        # A layer that shares another's keys never stores any.
        return [layer for layer in self.layers if isinstance(layer, _SlotLayer) and layer.is_initialized]
