"""The last layer, computed only where its output is read.

Every layer but the last must see every token, because later tokens attend to it. The output of the last layer is only
needed for tokens from which another is predicted. A search agent samples a small part of its tokens, and a prefill
reads one, so in a model of three layers this is most of a third of the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from holdfast.model.support import CausalLM, OtherAttention, decoder_layers, text_config

_NAME = "holdfast_where_read"
_WORTH = 4  # queries picked out need an explicit mask, which costs more a query than causal attention over all of them


@contextmanager
def last_layer_where(model: CausalLM, read: Tensor) -> Iterator[None]:
    """Within this context the last layer is computed only at `read`, bool `[B, T]`. Elsewhere its output means nothing.

    What is read is the same up to rounding, and has the same gradient. On a GPU, with attention other than sdpa, or
    for a model built in another way, the whole layer is computed, as without this context.
    """
    attention, mlp = _parts(model) if read.device.type == "cpu" else (None, None)
    hooks = []
    if mlp is not None:
        hooks = [mlp.register_forward_pre_hook(_pick(read)), mlp.register_forward_hook(_put_back(read))]
    config = getattr(attention, "config", None)
    if attention is not None and 0 < int(read.sum(-1).max()) * _WORTH <= read.shape[1]:
        attention.config = OtherAttention(config, _NAME, read)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        if attention is not None:
            attention.config = config


def _parts(model: Any) -> tuple[Any, Any]:
    """Attention and MLP of the last layer; None for what is not there, or is computed again in the backward pass."""
    layers = decoder_layers(model)
    if not layers or getattr(layers[-1], "gradient_checkpointing", False):
        return None, None
    if text_config(model)._attn_implementation != "sdpa":
        return None, None
    attention, mlp = (getattr(layers[-1], name, None) for name in ("self_attn", "mlp"))
    dense = hasattr(mlp, "down_proj")  # a mixture of experts returns more than a tensor
    return (attention if hasattr(attention, "config") else None), (mlp if dense else None)


def _pick(read: Tensor) -> Any:
    return lambda _, args: (args[0][read].unsqueeze(0), *args[1:])


def _put_back(read: Tensor) -> Any:
    def put_back(_: Any, __: Any, output: Tensor) -> Tensor:
        whole = output.new_zeros((*read.shape, output.shape[-1]))
        return whole.masked_scatter(read.unsqueeze(-1), output)

    return put_back


def _attention_where_read(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention of transformers, of the queries that are read. `[B, H, T, D]` → `[B, T, H, D]`, 0 elsewhere."""
    read: Tensor = module.config.reads
    count = read.sum(-1)
    # Rows read different numbers of tokens: those with fewer compute some more, which are left out again.
    order = torch.sort(~read, dim=-1, stable=True).indices[:, : int(count.max())]
    real = torch.arange(order.shape[1]) < count.unsqueeze(-1)
    if attention_mask is None:
        mask = torch.arange(key.shape[2]) <= order.unsqueeze(-1)
    else:
        mask = attention_mask[:, 0].expand(len(order), -1, -1)
        mask = mask.gather(1, order.unsqueeze(-1).expand(-1, -1, mask.shape[-1]))
    chosen = query.gather(2, order[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3]))
    options["is_causal"] = False
    result, _ = sdpa_attention_forward(module, chosen, key, value, mask.unsqueeze(1), **options)
    whole = result.new_zeros((*read.shape, *result.shape[2:]))
    return whole.masked_scatter(read[:, :, None, None], result[real]), None


AttentionInterface.register(_NAME, _attention_where_read)
