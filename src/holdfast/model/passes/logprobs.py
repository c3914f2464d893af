"""Log-probs of sampled tokens, for every pass that needs them: old, current, reference, after the update.

Four savings, none of them an approximation. Rows are padded on the right only and the model is causal, so no real token
sees a padding token and no attention mask is needed. The vocabulary is projected only where a sampled token is
predicted: prompts and observations, most of a search agent's tokens, never reach the output layer. What rows share is
computed once (`holdfast.model.passes.packed`); of rows that are not packed, the last layer computes only what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding

from holdfast.model.passes.last_layer import last_layer_where
from holdfast.model.passes.packed import ATTENTION, pack_where_worth
from holdfast.model.sampler.sampling import SamplingMask, sampling_mask_ids
from holdfast.model.support import CausalLM, attention_by


@contextmanager
def project_only(model: CausalLM, positions: Tensor) -> Iterator[None]:
    """Within this context the output layer sees the hidden states at `positions` alone: bool `[B, T]`, or, of a single
    sequence, the places `[N]`, which may repeat.

    The model's own forward runs unchanged around it, so whatever it does to logits (soft caps, scales) still happens;
    they come out as `[1, N, V]`.
    """

    def pick(states: Tensor) -> Tensor:
        # The gradient of an index that repeats adds up in any order of threads; that of an embedding does not.
        return states[positions] if positions.dtype == torch.bool else embedding(positions, states[0])

    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, args: (pick(args[0]).unsqueeze(0), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def hidden_states(model: CausalLM) -> Iterator[list[Tensor]]:
    """Collects the inputs of the output layer, one for each pass within this context: float `[N, d]`, detached.

    Around `token_logprobs`, N are the sampled tokens, row by row: the state that predicts each.
    """
    states: list[Tensor] = []
    head = model.get_output_embeddings()
    hook = head.register_forward_hook(lambda _, args, __: states.append(args[0].detach().flatten(0, -2)))
    try:
        yield states
    finally:
        hook.remove()


class TokenLogprobs(NamedTuple):
    """`[B, T]` each, in float32 and nats, 0 where the loss mask is False."""

    logprobs: Tensor
    """log p(token | everything before it) under logits / temperature."""
    entropy: Tensor | None
    """Of the whole distribution; None unless asked for."""
    log_mass: Tensor | None
    """How likely the tokens of a mask are together; None unless asked for."""


def token_logprobs(
    model: CausalLM,
    token_ids: Tensor,
    loss_mask: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    sampling_mask: SamplingMask | None = None,
    mass_of: SamplingMask | None = None,
    autocast_dtype: torch.dtype | None = None,
) -> TokenLogprobs:
    """Log-probs of sampled tokens, and what else is asked for.

    Args:
        token_ids: `[B, T]`, padded on the right.
        loss_mask: `[B, T]` bool, the sampled tokens.
        entropy: also of each sampled token the entropy.
        sampling_mask: normalise over these tokens alone. None: over the vocabulary.
        mass_of: also the log-probability of all these tokens together.
    """
    scaled = _scaled_logits(model, token_ids, loss_mask, temperature, autocast_dtype)
    targets = token_ids[:, 1:][loss_mask[:, 1:]]
    # Not log_softmax: that would hold a second [N, V] tensor for the backward pass.
    normaliser = scaled.logsumexp(-1) if sampling_mask is None else sampling_mask.logsumexp(scaled)
    logprobs = _scatter(scaled.gather(-1, targets[:, None])[:, 0] - normaliser, loss_mask)
    if not entropy and mass_of is None:
        return TokenLogprobs(logprobs, None, None)
    whole = normaliser if sampling_mask is None else scaled.logsumexp(-1)
    mass = None if mass_of is None else _scatter(mass_of.logsumexp(scaled) - whole, loss_mask)
    if not entropy:
        return TokenLogprobs(logprobs, None, mass)
    each = whole - ((scaled - whole[:, None]).exp() * scaled).sum(-1)
    return TokenLogprobs(logprobs, _scatter(each, loss_mask), mass)


@torch.no_grad()
def log_distributions(
    model: CausalLM,
    token_ids: Tensor,
    loss_mask: Tensor,
    *,
    temperature: float = 1.0,
    autocast_dtype: torch.dtype | None = None,
) -> Tensor:
    """float32 [N, V]: log-probs of the whole vocabulary where each of the N sampled tokens is predicted, row by row."""
    return _scaled_logits(model, token_ids, loss_mask, temperature, autocast_dtype).log_softmax(-1)


@torch.no_grad()
def masked_logprobs(
    model: CausalLM,
    token_ids: Tensor,
    loss_mask: Tensor,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    autocast_dtype: torch.dtype | None = None,
) -> tuple[Tensor, SamplingMask]:
    """log p of each sampled token among those that a truncated sampler could draw there, and which they are.

    With the model that made the rollouts, this is the distribution they were drawn from. Normalising every later
    log-prob over the same tokens is the Keep Sampling Mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1). There the
    sampler passes its mask on; here it is recomputed from the same logits.

    Returns:
        log-probs `[B, T]`, equal to `token_logprobs` with this mask bit for bit; the mask.
    """
    scaled = _scaled_logits(model, token_ids, loss_mask, temperature, autocast_dtype)
    targets = token_ids[:, 1:][loss_mask[:, 1:]]
    ids = sampling_mask_ids(scaled, targets, top_p=top_p, top_k=top_k)
    mask = SamplingMask(ids.split(loss_mask[:, 1:].sum(-1).tolist()))
    picked = scaled.gather(-1, targets[:, None])[:, 0] - mask.logsumexp(scaled)
    return _scatter(picked, loss_mask), mask


def token_values(
    model: CausalLM, token_ids: Tensor, loss_mask: Tensor, *, autocast_dtype: torch.dtype | None = None
) -> Tensor:
    """What a model whose output layer is one number wide says where each sampled token is predicted, in float32.

    Args:
        token_ids: `[B, T]`, padded on the right.
        loss_mask: `[B, T]` bool, the sampled tokens.

    Returns:
        values `[B, T]`, 0 where the mask is False.
    """
    return _scatter(_scaled_logits(model, token_ids, loss_mask, 1.0, autocast_dtype)[:, 0], loss_mask)


def _scaled_logits(
    model: CausalLM, token_ids: Tensor, loss_mask: Tensor, temperature: float, autocast_dtype: torch.dtype | None
) -> Tensor:
    """Where each sampled token is predicted, row by row: float32 `[N, V]`, divided by the temperature."""
    predicts = torch.zeros_like(loss_mask)
    predicts[:, :-1] = loss_mask[:, 1:]
    context = torch.autocast(token_ids.device.type, autocast_dtype) if autocast_dtype else nullcontext()
    packed = pack_where_worth(model, token_ids, predicts)
    logits: Tensor
    if packed is None:
        with context, last_layer_where(model, predicts), project_only(model, predicts):
            logits = model(input_ids=token_ids, use_cache=False).logits[0]
    else:
        at = packed.places[predicts[:, : packed.places.shape[1]]]
        with context, attention_by(model, ATTENTION, packed), project_only(model, at):
            # A mask of four dimensions is passed on as it is: transformers would make one out of the positions.
            logits = model(
                input_ids=packed.token_ids,
                position_ids=packed.positions,
                attention_mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=at.device),
                use_cache=False,
            ).logits[0]
    return logits.float() / temperature if temperature != 1.0 else logits.float()


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Put `values` (one per True of `mask[:, 1:]`) into a zero tensor of the mask's shape; differentiable."""
    mask = mask.clone()
    mask[:, 0] = False
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
