"""Weights for rollouts that another distribution than the old policy drew: TIS, IcePop, rejection; and their worth."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    MAX_LOG_RATIO,
    check_choice,
    check_ids,
    check_logprobs,
    check_paired,
    check_rows,
)
from holdfast.losses.policy import unit_means, unit_sums


@torch.no_grad()
def sampler_weights(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    loss_mask: Tensor,
    *,
    level: Literal["token", "action", "sequence"] = "token",
    aggregate: Literal["product", "mean"] = "product",
    keep: Literal["truncate", "mask", "reject"] = "truncate",
    low: float = 0.0,
    high: float = 2.0,
    action_ids: Tensor | None = None,
) -> Tensor:
    """Weights that correct the policy loss for a sampler that is not the old policy: a factor for each token.

        w = exp(Σ_k (l_old,k − l_rollout,k))     aggregate="product", over the token, action or sequence
        w = exp(mean_k (…))                      aggregate="mean": the geometric mean of the tokens' ratios

        keep="truncate"   min(max(w, low), high)
        keep="mask"       w   where low ≤ w ≤ high,  else 0
        keep="reject"     1   where low ≤ w ≤ high,  else 0

        TIS          truncate, level="token" or "sequence"                                       high 2 to 3
        IcePop       mask, level="token"                                                         0.5 to 5
        Seq-MIS      mask or reject, level="sequence"                                            0.5 to 2
        Geo-RS       reject, level="sequence", aggregate="mean"                                  0.99 to 1.01

    Multiply the policy loss by it before reducing. For keep="reject" the hosts also leave the rejected tokens out of
    the mean: reduce over `loss_mask & (weights > 0)` for that.

    Args:
        old_logprobs: float [..., T], under the policy frozen for this rollout batch, as the trainer computes it.
        rollout_logprobs: float [..., T], of the distribution that the tokens were drawn from. For a truncated sampler
            that is the one after truncation.
        loss_mask: bool [..., T], True on tokens the model sampled.
        level: whose ratio it is: the token's, its action's or its sequence's.
        aggregate: the product of a unit's ratios, or their geometric mean, which does not grow with its length.
        keep: see above.
        low, high: bounds of w, 0 ≤ low < high; both inside.
        action_ids: int [..., T], k on the k-th action. None: runs of `loss_mask`. Read by level="action".

    Returns:
        float [..., T], not negative, detached, exactly 0 outside the mask; float32, or float64 for float64 log-probs.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: TIS: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025); IcePop:
    Ring-1T (arXiv 2510.18855); sequences and Geo-RS: Liu et al., "When Speed Kills Stability" (2025). The log-ratio is
    clamped to ±20, after summing, as in verl. verl's `k1` bounds are on 1 / w.

    Two tokens that the trainer finds 4 and 1.5 times as likely as the sampler did:

    >>> old, rollout = torch.tensor([[1.3862944, 0.4054651]]) - 3.0, torch.full((1, 2), -3.0)
    >>> mask = torch.ones(1, 2, dtype=torch.bool)
    >>> [round(w, 4) for w in sampler_weights(old, rollout, mask)[0].tolist()]
    [2.0, 1.5]
    >>> [round(w, 4) for w in sampler_weights(old, rollout, mask, keep="mask")[0].tolist()]
    [0.0, 1.5]
    """
    check_choice("level", level, ("token", "action", "sequence"))
    check_choice("aggregate", aggregate, ("product", "mean"))
    check_choice("keep", keep, ("truncate", "mask", "reject"))
    if not 0 <= low < high:
        raise ValueError(f"low={low} and high={high} must be 0 ≤ low < high: they bound the sampler's weights")
    if level == "token" and aggregate == "mean":
        raise ValueError("aggregate='mean' changes nothing for level='token'; choose 'action' or 'sequence'")
    old_logprobs = check_logprobs(old_logprobs, loss_mask, "old_logprobs")
    check_ids("action_ids", action_ids, old_logprobs)
    log_ratio = old_logprobs - check_paired("rollout_logprobs", rollout_logprobs, old_logprobs)
    log_ratio = torch.where(loss_mask, log_ratio, 0.0)
    if level != "token":
        check_rows(old_logprobs, f"level={level!r}")
        over_unit = unit_sums if aggregate == "product" else unit_means
        log_ratio = over_unit(log_ratio, loss_mask, level, action_ids)
    weights = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    inside = (weights >= low) & (weights <= high)
    if keep == "truncate":
        weights = weights.clamp(low, high)
    elif keep == "mask":
        weights = torch.where(inside, weights, 0.0)
    else:
        weights = inside.to(weights.dtype)
    return torch.where(loss_mask, weights, 0.0)


@torch.no_grad()
def effective_sample_size(old_logprobs: Tensor, rollout_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """How many tokens of the old policy those of the sampler are worth, as a share of their number: Kish's effective
    sample size of the importance weights of single tokens.

        (Σ w)² / (n Σ w²)           w_k = exp(l_old,k − l_rollout,k)

    1 where sampler and old policy agree. It falls with the age of rollouts, and does not see on which side they differ.

    Args:
        old_logprobs: float [..., T], under the policy frozen for this rollout batch.
        rollout_logprobs: float [..., T], under the sampler.
        loss_mask: bool [..., T], True on tokens the model sampled.

    Returns:
        A float scalar in 0 to 1; NaN without sampled tokens.

    Raises:
        TypeError, ValueError: dtypes or shapes that cannot work.

    Source: Kish (1965); verl's `rollout_is_eff_sample_size`. VCPO (arXiv 2602.17616) says that it falls before runs
    with stale rollouts collapse.

    Weights of 1 and 3 are worth 16/20 of two tokens:

    >>> old, mask = torch.tensor([[0.0, 1.0986123]]) - 3.0, torch.ones(1, 2, dtype=torch.bool)
    >>> round(float(effective_sample_size(old, torch.full((1, 2), -3.0), mask)), 4)
    0.8
    """
    old_logprobs = check_logprobs(old_logprobs, loss_mask, "old_logprobs")
    log_weights = old_logprobs - check_paired("rollout_logprobs", rollout_logprobs, old_logprobs)
    weights = log_weights[loss_mask].clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return weights.mean() ** 2 / (weights**2).mean()
