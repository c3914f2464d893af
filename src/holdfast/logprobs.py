"""Log-probs of sampled tokens, for every pass that needs them: old, current, reference, after the update.

Two savings, both exact. Rows are padded on the right only and the model is causal, so no real token sees a padding
token and no attention mask is needed. And the vocabulary is projected only where a sampled token is predicted: prompts
and observations, most of a search agent's tokens, never reach the output layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from holdfast.rollout.sampling import kept_tokens


@contextmanager
def project_only(model: Any, positions: Tensor) -> Iterator[None]:
    """Within this context the output layer sees the hidden states at `positions` (bool `[B, T]`) alone.

    The model's own forward runs unchanged around it, so whatever it does to logits (soft caps, scales) still happens;
    they come out as `[1, N, V]`.
    """
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, args: (args[0][positions].unsqueeze(0), *args[1:]))
    try:
        yield
    finally:
        hook.remove()


def token_logprobs(
    model: Any,
    token_ids: Tensor,
    loss_mask: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    kept: Tensor | None = None,
    autocast_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log p(token | everything before it) under logits / temperature, in float32.

    Args:
        token_ids: `[B, T]`, padded on the right.
        loss_mask: `[B, T]` bool, the sampled tokens.
        entropy: also return the entropy (nats) of the whole distribution at each sampled token.
        kept: int32 `[N, n]` from `kept_logprobs`: normalise over these tokens alone. None: over the vocabulary.

    Returns:
        log-probs `[B, T]`, 0 where the mask is False; entropies `[B, T]` likewise, or None.
    """
    scaled = _scaled_logits(model, token_ids, loss_mask, temperature, autocast_dtype)
    targets = token_ids[:, 1:][loss_mask[:, 1:]]
    # Not log_softmax: that would hold a second [N, V] tensor for the backward pass.
    normaliser = scaled.logsumexp(-1) if kept is None else _kept_logsumexp(scaled, kept)
    picked = scaled.gather(-1, targets[:, None])[:, 0] - normaliser
    logprobs = _scatter(picked, loss_mask)
    if not entropy:
        return logprobs, None
    whole = normaliser if kept is None else scaled.logsumexp(-1)
    probabilities = (scaled - whole[:, None]).exp()
    return logprobs, _scatter(whole - (probabilities * scaled).sum(-1), loss_mask)


@torch.no_grad()
def kept_logprobs(
    model: Any,
    token_ids: Tensor,
    loss_mask: Tensor,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    autocast_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """log p of each sampled token among those that a truncated sampler with this model kept there, and which they are.

    With the model that made the rollouts this is the distribution they were drawn from. Keeping those tokens for every
    later log-prob is the Keep Sampling Mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1); there the sampler hands
    its mask over, here it is found again from the same logits.

    Returns:
        log-probs `[B, T]`, bit for bit those of `token_logprobs` with these ids; the ids, int32 `[N, n]`: one row for
        each sampled token, row by row of the batch, -1 where it keeps fewer than n.
    """
    scaled = _scaled_logits(model, token_ids, loss_mask, temperature, autocast_dtype)
    targets = token_ids[:, 1:][loss_mask[:, 1:]]
    ids = kept_tokens(scaled, targets, top_p=top_p, top_k=top_k)
    picked = scaled.gather(-1, targets[:, None])[:, 0] - _kept_logsumexp(scaled, ids)
    return _scatter(picked, loss_mask), ids


def _scaled_logits(
    model: Any, token_ids: Tensor, loss_mask: Tensor, temperature: float, autocast_dtype: torch.dtype | None
) -> Tensor:
    """Where each sampled token is predicted, row by row: float32 `[N, V]`, divided by the temperature."""
    predicts = torch.zeros_like(loss_mask)
    predicts[:, :-1] = loss_mask[:, 1:]
    context = torch.autocast(token_ids.device.type, autocast_dtype) if autocast_dtype else nullcontext()
    with context, project_only(model, predicts):
        logits = model(input_ids=token_ids, use_cache=False).logits[0]
    return logits.float() / temperature if temperature != 1.0 else logits.float()


def _kept_logsumexp(scaled: Tensor, ids: Tensor) -> Tensor:
    """`[N, V]`, `[N, n]` -> `[N]`, over the ids that are not -1."""
    return scaled.gather(-1, ids.clamp(min=0).long()).masked_fill(ids < 0, -torch.inf).logsumexp(-1)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Put `values` (one per True of `mask[:, 1:]`) into a zero tensor of the mask's shape; differentiable."""
    mask = mask.clone()
    mask[:, 0] = False
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
