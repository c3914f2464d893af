"""PPO with a critic: rewards of tokens, advantages from values, and the loss of the values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.losses._tensors import check_logprobs, check_paired, check_per_row, check_rows


@torch.no_grad()
def token_rewards(
    rewards: Tensor,
    old_logprobs: Tensor,
    loss_mask: Tensor,
    *,
    ref_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """The reward of each token: that of its rollout on the last sampled one, minus the KL to a reference on all.

        r_k = [k is the last in the mask]·r − kl_coef·(l_old,k − l_ref,k)

    Args:
        rewards: float [..., 1], one per rollout. Not read in rows without a sampled token.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch.
        loss_mask: bool [..., T], True on tokens the model sampled.
        ref_logprobs: float [..., T], under the reference. Required with a coefficient.
        kl_coef: β, in reward per nat; 0: no KL.

    Returns:
        float [..., T], for `gae_advantages`, exactly 0 outside the mask.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit; a coefficient that is not a number from 0 on, or one without
            `ref_logprobs`.

    Source: KL in the reward of RLHF (arXiv 1909.08593, eq. 2); per token, with the estimate k1, in Search-R1 and verl.

    >>> old, ref, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-2.0, -1.0]]), torch.tensor([[True, True]])
    >>> token_rewards(torch.tensor([[1.0]]), old, mask, ref_logprobs=ref, kl_coef=0.5).tolist()
    [[-0.5, 1.0]]
    """
    if not 0 <= kl_coef < math.inf:
        raise ValueError(
            f"kl_coef={kl_coef} must be a number from 0 on; below 0 the policy would be paid to leave the reference"
        )
    if kl_coef and ref_logprobs is None:
        raise ValueError(f"kl_coef={kl_coef} needs ref_logprobs, the log-probs under the reference; pass them, or 0")
    old_logprobs = check_logprobs(old_logprobs, loss_mask, "old_logprobs").detach()
    later = loss_mask.flip(-1).cumsum(-1).flip(-1)  # sampled tokens from here on
    last = loss_mask & (later == 1)
    result = torch.where(last, check_per_row("rewards", rewards, old_logprobs).to(old_logprobs.dtype), 0.0)
    if ref_logprobs is not None and kl_coef:
        kl = old_logprobs - check_paired("ref_logprobs", ref_logprobs, old_logprobs)
        result = result - kl_coef * torch.where(loss_mask, kl, 0.0)
    return result


@torch.no_grad()
def gae_advantages(
    rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, from action token to action token: observations are stepped over.

        δ_k = r_k + γ·V_{k+1} − V_k           k + 1: the next token in the mask, V = 0 and A = 0 after the last
        A_k = δ_k + γλ·A_{k+1}
        R_k = A_k + V_k

    A token that the model did not sample is not a step in time, so neither γ nor λ discounts over an observation. With
    γ = λ = 1, A_k is the rewards still to come minus V_k.

    Args:
        rewards: float [..., T], of each token; that of a rollout belongs on its last sampled token. Read in the mask.
        values: float [..., T], V_k: the critic's estimate where token k is about to be sampled. Detached.
        loss_mask: bool [..., T], True on tokens the model sampled.
        gamma, lam: γ and λ, each in 0 to 1.

    Returns:
        Advantages and returns, each float [..., T], detached, exactly 0 outside the mask; float32, or float64 for
        float64 values. Not whitened.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: GAE (arXiv 1506.02438, eqs. 11 and 16); γ = λ = 1 in Search-R1 (2503.09516). verl, which
    also steps over observations, whitens the advantages over the batch's mask: `whiten`.

    An observation between two sampled tokens, and a reward at the end:

    >>> rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.25, 9.0, 0.5]])
    >>> advantages, returns = gae_advantages(rewards, values, torch.tensor([[True, False, True]]))
    >>> advantages.tolist(), returns.tolist()
    ([[0.75, 0.0, 0.5]], [[1.0, 0.0, 1.0]])
    """
    for name, value in (("gamma", gamma), ("lam", lam)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} must be between 0 and 1")
    values = _check_values(values, loss_mask).detach()
    rewards = check_paired("rewards", rewards, values)
    check_rows(values, "gae_advantages")
    rewards, values = torch.where(loss_mask, rewards, 0.0), torch.where(loss_mask, values, 0.0)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = values.new_zeros(values.shape[:-1])
    for k in range(values.shape[-1] - 1, -1, -1):
        inside = loss_mask[..., k]
        advantage = rewards[..., k] + gamma * next_value - values[..., k] + gamma * lam * next_advantage
        next_value = torch.where(inside, values[..., k], next_value)
        next_advantage = torch.where(inside, advantage, next_advantage)
        advantages[..., k] = torch.where(inside, advantage, 0.0)
    return advantages, advantages + values


@torch.no_grad()
def whiten(advantages: Tensor, loss_mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Advantages with mean 0 and variance 1 over all tokens in the mask of the batch.

        A'_k = (A_k − mean) / sqrt(var + eps)        var with n − 1

    Args:
        advantages: float [..., T], of the whole rollout batch, or its micro-batches would differ.
        loss_mask: bool [..., T].
        eps: added to the variance. Equal advantages, or a single one, become 0.

    Returns:
        float [..., T], exactly 0 outside the mask; detached.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit, or eps is not above 0.

    Source: verl, after `gae_advantages`; with the unbiased variance.

    >>> whiten(torch.tensor([[3.0, 7.0, 1.0]]), torch.tensor([[True, False, True]])).tolist()
    [[0.7071067690849304, 0.0, -0.7071067690849304]]
    """
    if not eps > 0:
        raise ValueError(f"eps={eps} must be above 0; it keeps the division by the deviation finite")
    advantages = check_logprobs(advantages, loss_mask, "advantages").detach()
    count = loss_mask.sum()
    mean = torch.where(loss_mask, advantages, 0.0).sum() / count.clamp(min=1)
    deviation = torch.where(loss_mask, advantages - mean, 0.0)
    variance = deviation.square().sum() / (count - 1).clamp(min=1)
    return deviation / (variance + eps).sqrt()


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, loss_mask: Tensor, *, clip: float | None = 0.5
) -> Tensor:
    """The critic's clipped squared error, per token.

        loss_k = max((V_k − R_k)², (V'_k − R_k)²) / 2          V'_k = V_old,k + clip(V_k − V_old,k, −clip, clip)

    Args:
        values: float [..., T], of the critic being updated.
        old_values: float [..., T], of the critic frozen for this rollout batch. Detached.
        returns: float [..., T], from `gae_advantages`. Detached.
        loss_mask: bool [..., T].
        clip: how far a value may move before the gradient stops, above 0, in units of the reward; None: unbounded.

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or a clip that cannot work.

    Source: PPO's reference code (arXiv 1707.06347 has no clip of values); clip 0.5 and the half in Search-R1 and verl.

    >>> mask = torch.tensor([[True]])
    >>> value_loss(torch.tensor([[1.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]), mask).tolist()
    [[0.125]]
    """
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} must be above 0, or no value could move; None switches the clip off")
    values = _check_values(values, loss_mask)
    old_values = torch.where(loss_mask, check_paired("old_values", old_values, values), 0.0)
    returns = torch.where(loss_mask, check_paired("returns", returns, values), 0.0)
    values = torch.where(loss_mask, values, 0.0)
    loss = (values - returns).square()
    if clip is not None:
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.maximum(loss, (clipped - returns).square())
    return loss / 2


def _check_values(values: Tensor, loss_mask: Tensor) -> Tensor:
    return check_logprobs(values, loss_mask, "values")
