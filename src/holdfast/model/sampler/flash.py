"""Rollouts on a GPU: keys and values in slots that FlashAttention reads where they are, and no padding.

All new tokens of all rows are one sequence, in a prefill as in a step. Attention is told for each row where its keys
begin, how many it sees, and which tokens are its queries: no mask, no repeated heads, and lengths do not matter. So a
step has one size for each number of rows, and its CUDA graph is captured once for a run. Storage, casts of the weights
and graphs stay between batches of rollouts, where they are a small part of the card.

PyTorch's own FlashAttention takes half precision alone. Other models have the cache of `holdfast.model.sampler.cache`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from holdfast.model.passes.logprobs import project_only
from holdfast.model.sampler.cache import UNBOUNDED
from holdfast.model.support import CausalLM, attention_by, decoder_layers, key_sizes, partial_attention, text_config

_NAME = "holdfast_slots"


@dataclass(frozen=True, slots=True)
class _Pass:
    """What attention reads in one pass over N new tokens of R rows."""

    keys: Tensor
    """[layers, slots · capacity, heads, dim]; `values` likewise."""
    values: Tensor
    place: Tensor
    """int64 [N]: where each new key goes."""
    starts: Tensor
    """int32 [R + 1]: where each row's slot begins; the last entry is not read."""
    used: Tensor
    """int32 [R]: keys that each row sees, the new ones included."""
    ends: Tensor
    """int32 [R + 1]: the first new token of each row, and N."""
    longest: int
    """New tokens of the row that has most."""
    capacity: int


def serves(model: CausalLM, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether keys of this dtype on this device can be read in place: half precision, full attention by sdpa in every
    layer, heads that FlashAttention knows."""
    config, layers, (_, dim) = text_config(model), decoder_layers(model), key_sizes(model)
    return (
        device.type == "cuda"
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and config._attn_implementation == "sdpa"
        and not partial_attention(config)
        and getattr(config, "attn_logit_softcapping", None) is None
        and bool(layers)
        and all(hasattr(getattr(layer, "self_attn", None), "layer_idx") for layer in layers)
        and dim % 8 == 0
        and dim <= 256
    )


class FlashSlots:
    """Keys and values of all rollouts, and passes over new tokens of any of them.

    One slot more than was asked for is nobody's: what fills a step up to its size is stored there.
    """

    def __init__(self, model: CausalLM, device: torch.device, dtype: torch.dtype) -> None:
        self._model, self._device, self._dtype = model, device, dtype
        self._heads, self._dim = key_sizes(model)
        self._layers = text_config(model).num_hidden_layers
        self._no_mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device)  # four dimensions: passed on as it is
        self.limits = UNBOUNDED
        """Limits of slots and capacity when growing in advance."""
        self.slots = self.capacity = 0
        self.keys = self.values = torch.empty(0, device=device)

    @property
    def bytes(self) -> int:
        """What is stored takes so many."""
        return self.keys.nbytes + self.values.nbytes

    def reserve(self, slots: int, capacity: int) -> None:
        """Make room for `slots` rows of `capacity` positions; what is stored stays."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        max_slots, max_capacity = self.limits
        old = (self.slots, self.capacity)
        if slots > self.slots:
            self.slots = max(slots, min(max(8, self.slots * 3 // 2), max_slots))
        if capacity > self.capacity:  # a known limit is reserved at once: other sizes have other graphs
            roomy = max(128, self.capacity * 3 // 2) if max_capacity == UNBOUNDED[1] else max_capacity
            self.capacity = max(capacity, -(-roomy // 64) * 64)
        self.keys, self.values = self._grown(self.keys, old), self._grown(self.values, old)

    def _grown(self, store: Tensor, old: tuple[int, int]) -> Tensor:
        shape = (self._layers, self.slots + 1, self.capacity, self._heads, self._dim)
        new = torch.zeros(shape, dtype=self._dtype, device=self._device)
        if store.numel():
            slots, capacity = old
            new[:, :slots, :capacity] = store.view(self._layers, slots + 1, capacity, self._heads, self._dim)[:, :slots]
        return new.view(self._layers, -1, self._heads, self._dim)

    def copy(self, moves: Sequence[tuple[int, int]], length: int) -> None:
        """Copy the first `length` positions of slots, given as (source, target) pairs."""
        if not moves:
            return
        source, target = torch.tensor(moves, device=self._device).T.contiguous()
        for store in (self.keys, self.values):
            window = store.view(self._layers, self.slots + 1, self.capacity, self._heads, self._dim)[:, :, :length]
            window.index_copy_(1, target, window.index_select(1, source))

    def append(self, rows: Sequence[tuple[int, int, Sequence[int]]]) -> Tensor:
        """Pass over new tokens of rows, given as (slot, tokens stored before, new ids); all must have room.

        Returns the logits `[R, V]` behind the last new token of each row.
        """
        counts = [len(new) for _, _, new in rows]
        ends = [0, *accumulate(counts)]
        ids = [token for _, _, new in rows for token in new]
        positions = [stored + i for _, stored, new in rows for i in range(len(new))]
        first = [slot * self.capacity for slot, _, new in rows for _ in new]
        tokens, where, base = torch.tensor([ids, positions, first], device=self._device).unbind()
        starts = [slot * self.capacity for slot, _, _ in rows]
        used = [stored + len(new) for _, stored, new in rows]
        table = torch.tensor([[*starts, 0], [*used, 0], ends], dtype=torch.int32, device=self._device)
        seen = _Pass(
            keys=self.keys,
            values=self.values,
            place=base + where,
            starts=table[0],
            used=table[1, : len(rows)].contiguous(),
            ends=table[2],
            longest=max(counts),
            capacity=self.capacity,
        )
        last = torch.tensor([end - 1 for end in ends[1:]], device=self._device)
        return self._forward(tokens, where, seen, last)

    def next(self, tokens: Tensor, positions: Tensor, slots: Tensor) -> Tensor:
        """Pass over one new token of each row, `[R]`, at its position in its slot; logits `[R, V]`. Does not wait for
        the device."""
        ends = torch.arange(len(tokens) + 1, dtype=torch.int32, device=self._device)
        starts = slots * self.capacity
        seen = _Pass(
            keys=self.keys,
            values=self.values,
            place=starts + positions,
            starts=torch.nn.functional.pad(starts, (0, 1)).int(),
            used=(positions + 1).int(),
            ends=ends,
            longest=1,
            capacity=self.capacity,
        )
        return self._forward(tokens, positions, seen, None)

    def _forward(self, tokens: Tensor, positions: Tensor, seen: _Pass, last: Tensor | None) -> Tensor:
        projecting = nullcontext() if last is None else project_only(self._model, last)
        with attention_by(self._model, _NAME, seen), projecting:
            logits: Tensor = self._model(
                input_ids=tokens[None], position_ids=positions[None], attention_mask=self._no_mask, use_cache=False
            ).logits
        return logits[0]


def attend(query: Tensor, keys: Tensor, values: Tensor, seen: _Pass, scale: float) -> Tensor:
    """Causal attention of new tokens `[N, heads, dim]` over what their rows see, aligned at the end of each."""
    out: Tensor = torch.ops.aten._flash_attention_forward(
        query, keys, values, seen.ends, seen.starts, seen.longest, seen.capacity, 0.0, True, False, scale=scale,
        seqused_k=seen.used,
    )[0]  # fmt: skip
    return out


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Store the new keys, then read the slots: `[1, heads, N, dim]` → `[1, N, heads, dim]`."""
    seen: _Pass = module.config.reads
    keys, values = seen.keys[module.layer_idx], seen.values[module.layer_idx]
    keys.index_copy_(0, seen.place, key[0].transpose(0, 1).to(keys.dtype))
    values.index_copy_(0, seen.place, value[0].transpose(0, 1).to(values.dtype))
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    return attend(query[0].transpose(0, 1).to(keys.dtype).contiguous(), keys, values, seen, scale)[None], None


AttentionInterface.register(_NAME, _attention)
