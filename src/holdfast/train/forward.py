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
    autocast_dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor | None]:
    """log p(token | everything before it) under logits / temperature, in float32.

    Args:
        token_ids: `[B, T]`, padded on the right.
        loss_mask: `[B, T]` bool, the sampled tokens.
        entropy: also return the entropy (nats) of the distribution each sampled token was drawn from.

    Returns:
        log-probs `[B, T]`, 0 where the mask is False; entropies `[B, T]` likewise, or None.
    """
    predicts = torch.zeros_like(loss_mask)
    predicts[:, :-1] = loss_mask[:, 1:]
    context = torch.autocast(token_ids.device.type, autocast_dtype) if autocast_dtype else nullcontext()
    with context, project_only(model, predicts):
        logits = model(input_ids=token_ids, use_cache=False).logits[0]
    scaled = logits.float() / temperature if temperature != 1.0 else logits.float()
    targets = token_ids[:, 1:][loss_mask[:, 1:]]
    # Not log_softmax: that would hold a second [N, V] tensor for the backward pass.
    normaliser = scaled.logsumexp(-1)
    picked = scaled.gather(-1, targets[:, None])[:, 0] - normaliser
    logprobs = _scatter(picked, loss_mask)
    if not entropy:
        return logprobs, None
    probabilities = (scaled - normaliser[:, None]).exp()
    return logprobs, _scatter(normaliser - (probabilities * scaled).sum(-1), loss_mask)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Put `values` (one per True of `mask[:, 1:]`) into a zero tensor of the mask's shape; differentiable."""
    mask = mask.clone()
    mask[:, 0] = False
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(mask, values)
