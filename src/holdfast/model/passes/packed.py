"""Rollouts that begin alike, passed through a model as one sequence that has every shared token once.

The rollouts of a group share their prompt, and often their first search and its observation. Attention sees the rows as
they are; everything else, most of the work of a model that is not tiny, sees each shared token once, and no padding.
Log-probs and gradients are the same up to rounding.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from holdfast.model.support import (
    CausalLM,
    decoder_layers,
    partial_attention,
    positions_of,
    text_config,
    without_adapters,
    worth_sharing,
)

ATTENTION = "holdfast_packed"
"""The attention that sees the rows of a packed sequence, which `attention_by` must be given."""
_SHARED = 0.9  # pack where fewer tokens than this share of the padded rows are left


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows `[B, T]` as one sequence of their N different prefixes."""

    token_ids: Tensor
    """int64 [1, N]."""
    positions: Tensor
    """int64 [1, N]: where each token is in its rows."""
    places: Tensor
    """int64 [B, T]: the place in the sequence of each token of each row; 0 behind a row's end."""
    first: Tensor
    """int64 [N]: the first token of the rows, counted through, that has each place."""


def pack(token_ids: Tensor, lengths: Sequence[int]) -> Packed:
    """The first `lengths` tokens of each row of `[B, T]`; at least one token in all.

    >>> packed = pack(torch.tensor([[5, 6, 7], [5, 6, 8], [5, 9, 0]]), [3, 3, 2])
    >>> packed.token_ids.tolist(), packed.positions.tolist()
    ([[5, 6, 7, 8, 9]], [[0, 1, 2, 2, 1]])
    >>> packed.places.tolist(), packed.first.tolist()
    ([[0, 1, 2], [0, 1, 3], [0, 4, 0]], [0, 1, 2, 5, 7])
    """
    rows, width = token_ids.shape[0], max(lengths)
    ids = token_ids[:, :width].cpu().numpy()
    places, first, count = np.zeros((rows, width), dtype=np.int64), [], 0
    for row, length in enumerate(lengths):
        shared = 0
        if row:
            equal = np.cumprod(ids[:row, :length] == ids[row, :length], axis=1).sum(1)
            equal = np.minimum(equal, lengths[:row])
            nearest = int(equal.argmax())
            shared = int(equal[nearest])
            places[row, :shared] = places[nearest, :shared]
        places[row, shared:length] = np.arange(count, count + length - shared)
        first.append(np.arange(row * width + shared, row * width + length))
        count += length - shared
    at = torch.from_numpy(np.concatenate(first)).to(token_ids.device)
    return Packed(
        token_ids=token_ids[:, :width].reshape(-1)[at][None],
        positions=(at % width)[None],
        places=torch.from_numpy(places).to(token_ids.device),
        first=at,
    )


def pack_where_worth(model: CausalLM, token_ids: Tensor, predicts: Tensor) -> Packed | None:
    """The rows up to the last position of each that `predicts` (bool `[B, T]`) a sampled token; None where the model
    cannot take them so, or where little is shared."""
    if not packable(model):
        return None
    columns = torch.arange(1, predicts.shape[1] + 1, device=predicts.device)
    lengths = (predicts * columns).amax(-1).tolist()
    if not 0 < max(lengths) <= positions_of(model):  # longer rows would outgrow a window of attention
        return None
    packed = pack(token_ids, lengths)
    return packed if len(packed.first) <= _SHARED * token_ids.numel() else None


def packable(model: Any) -> bool:
    """Whether packing pays for this model and is possible: full attention by sdpa in every layer, positions given from
    outside, and no layer computed again in the backward pass.

    Not on a GPU: there the gradient of an embedding adds up in any order, and a resumed run would differ.
    """
    layers = decoder_layers(model)
    if not layers or not worth_sharing(model):
        return False
    config = text_config(model)
    base = without_adapters(model)
    return (
        next(base.parameters()).device.type == "cpu"
        and config._attn_implementation == "sdpa"
        and not partial_attention(config)
        and not getattr(config, "output_router_logits", False)  # their mask would have to be of the packed tokens
        and all(hasattr(getattr(layer, "self_attn", None), "config") for layer in layers)
        and not any(getattr(layer, "gradient_checkpointing", False) for layer in layers)
        and "position_ids" in inspect.signature(base.forward).parameters
    )


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention over the rows of a packed sequence, `[1, H, N, D]` → `[1, N, H, D]`."""
    packed: Packed = module.config.reads

    def rows(states: Tensor) -> Tensor:
        heads, count, size = states.shape[1:]
        # An embedding: its backward pass adds rows up faster than that of an index.
        unpacked: Tensor = embedding(packed.places, states.transpose(1, 2).reshape(count, heads * size))
        return unpacked.view(*unpacked.shape[:-1], heads, size).transpose(1, 2)

    options["is_causal"] = True
    result, _ = sdpa_attention_forward(module, rows(query), rows(key), rows(value), None, **options)
    chosen: Tensor = embedding(packed.first, result.flatten(0, 1).flatten(1))
    return chosen.view(1, -1, *result.shape[2:]), None


AttentionInterface.register(ATTENTION, _attention)
