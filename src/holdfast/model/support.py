"""Which models the slot cache can serve. Anything else is refused before the first token, with a sentence."""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from holdfast.base.errors import ModelError
from holdfast.model.sampler.cache import SlotCache

if TYPE_CHECKING:
    from holdfast.model.sampler.flash import FlashSlots

SHARING_FROM = 256
"""Size of the hidden states from which a model is not tiny; see `worth_sharing`."""
CACHE_CPU = 2**31
"""Bytes of keys and values on a CPU: more rows than these hold are hardly decoded faster."""


class CausalLM(Protocol):
    """What passes over a causal language model of transformers need of it."""

    config: Any

    @property
    def dtype(self) -> torch.dtype:
        """The weights' dtype."""
        ...

    def __call__(self, **inputs: Any) -> Any:
        """An output with `logits` [B, T, V]."""
        ...

    def get_output_embeddings(self) -> Any:
        """The layer that projects hidden states onto the vocabulary."""
        ...


def text_config(model: CausalLM) -> Any:
    """The configuration of the language model, which a multimodal model nests."""
    return model.config.get_text_config(decoder=True)


def without_adapters(model: Any) -> Any:
    """The model below LoRA adapters; a model without adapters as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def dropouts(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Where dropout can happen: the name of a module, the module, and its attribute with the probability, if above 0.
    Models that call the function keep a number, such as `attention_dropout`."""
    for name, module in model.named_modules():
        held = ["p"] if isinstance(module, _DropoutNd) else [key for key in vars(module) if "drop" in key]
        for key in held:
            if isinstance(value := getattr(module, key), float) and value > 0:
                yield name, module, key


def decoder_layers(model: Any) -> Any:
    """The layers of the decoder, below adapters; empty for a model built in another way."""
    base = without_adapters(model)
    return getattr(base.get_decoder() if hasattr(base, "get_decoder") else None, "layers", None) or []


def worth_sharing(model: CausalLM) -> bool:
    """In a tiny model, finding and gathering what rows share costs as much as it saves, and recorded runs could not be
    replayed. So it is computed once only in larger models."""
    return bool(text_config(model).hidden_size >= SHARING_FROM)


def avoid_cudnn_attention() -> None:
    """Keep sdpa attention in this process from cuDNN, which PyTorch 2.11 and newer prefer on an H100 and its like.

    cuDNN plans for every new length of rows, which takes longer than the pass, and rollouts have all lengths. With a
    mask its gradients can be NaN (github.com/pytorch/pytorch/issues/196678).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


class OtherAttention:
    """The configuration of an attention layer, with another implementation of attention and what that one reads."""

    def __init__(self, config: Any, implementation: str, reads: Any) -> None:
        self.config, self.reads = config, reads
        self._attn_implementation = implementation

    def __getattr__(self, name: str) -> Any:
        return getattr(self.config, name)


@contextmanager
def attention_by(model: Any, implementation: str, reads: Any) -> Iterator[None]:
    """Within this context the model's attention is another implementation, and reads this."""
    attentions = [layer.self_attn for layer in decoder_layers(model)]
    configs = [attention.config for attention in attentions]
    try:
        for attention in attentions:
            attention.config = OtherAttention(attention.config, implementation, reads)
        yield
    finally:
        for attention, config in zip(attentions, configs, strict=True):
            attention.config = config


def end_ids(model: CausalLM, tokenizer: Any) -> set[int]:
    """Ids that end a sequence: the tokenizer's, and those of the model's generation config (chat models have
    several)."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list | tuple) else [configured]
    return {token for token in (tokenizer.eos_token_id, *several) if token is not None}


@functools.cache
def _arguments(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def accepts_logits_to_keep(model: Any) -> bool:
    """Whether `forward` can skip the vocabulary projection of all positions but the last."""
    return "logits_to_keep" in _arguments(type(without_adapters(model)).forward)


def _cache_argument(forward: Callable[..., Any]) -> str:
    """The name of a model's cache in its forward pass: `cache` since transformers 5.24."""
    return "cache" if "cache" in _arguments(forward) else "past_key_values"


def partial_attention(config: Any) -> str:
    """How some layers attend to a part of what is before them; empty if none does."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    chunk = getattr(config, "attention_chunk_size", None)
    return ", ".join(sorted(kinds)) or (f"chunks of {chunk} tokens" if chunk else "")


def refuse_unsupported(model: CausalLM) -> None:
    """Raise `ModelError` for a model whose state the slot cache cannot hold, judging by its config."""
    config, name = text_config(model), type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise ModelError(f"{name} is an encoder-decoder model; rollouts need a decoder-only causal model")
    attention = getattr(config, "_attn_implementation", None) or "eager"
    if attention not in ("sdpa", "eager"):
        raise ModelError(
            f"{name} was loaded with attn_implementation={attention!r}, which ignores the mask that lets rollouts "
            "of different lengths decode together; load it with attn_implementation='sdpa'"
        )
    remedy = "choose a model with full attention in all layers (Llama, Qwen2, Qwen3 …)"
    if getattr(model, "_is_stateful", False):
        raise ModelError(f"{name} keeps a recurrent state, which the cache of the rollout cannot rewind; {remedy}")
    if what := partial_attention(config):
        raise ModelError(
            f"{name} has layers without full attention ({what}), which the rollout cache cannot serve; {remedy}"
        )


def positions_of(model: CausalLM) -> float:
    """How many tokens the model attends to as a plain causal model: its positions, or the window of its attention if
    that is smaller."""
    config = text_config(model)
    window = getattr(config, "sliding_window", None) if getattr(config, "layer_types", None) is None else None
    return min(getattr(config, "max_position_embeddings", None) or math.inf, window or math.inf)


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that are free, or reserved by PyTorch and unused."""
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + idle


def whole_memory(device: torch.device) -> int:
    """Bytes of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def give_back_memory() -> None:
    """Return freed memory to the system. glibc keeps most of it: after two updates of SmolLM2-135M it held 3.4 GiB, and
    0.9 after this call."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def rows_that_fit(model: CausalLM, tokens: int, autocast_dtype: torch.dtype | None, free: int) -> int:
    """How many rollouts of `tokens` tokens fit: their keys and values fill half of `free` bytes; at least one.

    Half: passes over the rows and the projection to the vocabulary need the rest.
    """
    size = (autocast_dtype or model.dtype).itemsize
    return int(max(1, free // 2 // (keys_of(model) * size * tokens)))


def key_sizes(model: CausalLM) -> tuple[int, int]:
    """Heads of the keys, and their dimension."""
    config = text_config(model)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return heads, getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def keys_of(model: CausalLM) -> int:
    """How many numbers the cache stores for a token: keys and values of all layers."""
    heads, dim = key_sizes(model)
    return int(2 * text_config(model).num_hidden_layers * heads * dim)


@torch.inference_mode()
def check_exact(model: CausalLM, device: torch.device, slots: FlashSlots | None = None) -> None:
    """Compare cached decoding of two ragged rows with plain forward passes of the same tokens.

    Catches what no config field shows: positions taken from the mask (ALiBi), state kept outside the cache, token
    shifts. Costs three forward passes of a few tokens. `slots`: the cache to try instead of `SlotCache`.
    """
    dtypes = [model.dtype]  # and of the logits as computed: a trainer's autocast inside `forward` shows nowhere else
    watched = model.get_output_embeddings().register_forward_hook(lambda _, __, logits: dtypes.append(logits.dtype))
    vocabulary = text_config(model).vocab_size
    rows = [[1, 2, 3, 4, 5, 6], [3, 5, 7]]
    ids = [[token % vocabulary for token in row] for row in rows]
    last = _last_by_slots(slots, ids) if slots is not None else _last_by_cache(model, ids, device)
    cached = last.float().log_softmax(-1)
    plain = [model(input_ids=torch.tensor([row], device=device), use_cache=False).logits[0, -1] for row in ids]
    watched.remove()
    whole = torch.stack(plain).float().log_softmax(-1)
    if whole.isnan().any():
        raise diverged(model)
    gap = (cached - whole).abs().max().item()
    allowed = 0.5 if dtypes[-1] in (torch.float16, torch.bfloat16) else 0.05
    if not gap <= allowed:
        raise ModelError(
            f"{type(model).__name__} gives different log-probs with the rollout cache than without (by {gap:.2g} "
            "nats): it keeps state or positions that the cache does not handle. Choose one with rotary positions and "
            "full attention"
        )


def _last_by_slots(slots: FlashSlots, ids: list[list[int]]) -> Tensor:
    """Logits `[2, V]` behind rows of 6 and 3 tokens, the last of which is decoded."""
    slots.reserve(2, 6)
    slots.append([(1, 0, ids[0][:5]), (0, 0, ids[1][:2])])
    return slots.append([(1, 5, ids[0][5:]), (0, 2, ids[1][2:])])


def _last_by_cache(model: CausalLM, ids: list[list[int]], device: torch.device) -> Tensor:
    """Likewise."""
    cache = SlotCache(text_config(model).num_hidden_layers, device)
    # Row 0 is prefilled with 5 tokens, row 1 with 2 behind three of padding; then both decode one token.
    prompt = torch.tensor([ids[0][:5], [0, 0, 0, *ids[1][:2]]], device=device)
    write = torch.tensor([[0, 1, 2, 3, 4], [2, 3, 4, 0, 1]], device=device)
    sees = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 0, 1]], device=device)
    cache.reserve(2, 6)
    mask = cache.plan_rows(torch.arange(2, device=device), write, sees, length=5)
    planned_forward(model, cache, prompt, sees, mask)
    positions = torch.tensor([5, 2], device=device)
    mask = cache.plan_step(positions, length=6)
    last = torch.tensor([[ids[0][5]], [ids[1][2]]], device=device)
    return planned_forward(model, cache, last, positions.unsqueeze(1), mask)


def diverged(model: CausalLM) -> ModelError:
    """The error for a model whose log-probs are not finite. Any step can raise it: a policy outlives many updates."""
    return ModelError(
        f"{type(model).__name__} gives log-probs that are not finite: its weights have overflowed or hold NaN. Go back "
        "to a checkpoint from before that, and lower the learning rate"
    )


def planned_forward(model: CausalLM, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Logits `[rows, V]` behind `ids` `[rows, new]` under the plan `cache` was given last; `mask` as returned by it."""
    if text_config(model)._attn_implementation == "eager" or not torch.is_autocast_enabled(ids.device.type):
        # Eager attention adds its mask, and sdpa would turn a bool one into this once a layer. Under autocast sdpa's
        # scores have another dtype than the model, and bool fits any.
        mask = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill_(
            ~mask, torch.finfo(model.dtype).min
        )
    options: dict[str, Any] = {_cache_argument(type(without_adapters(model)).forward): cache}
    if accepts_logits_to_keep(model):
        options["logits_to_keep"] = 1
    output = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=True, **options)
    last: Tensor = output.logits[:, -1]
    return last
