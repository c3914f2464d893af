"""Advantages from rewards: relative to a group (GRPO, Dr.GRPO) or not (REINFORCE). One value per row, shape [B, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.losses._tensors import check_tensor, upcast

MAX_REWARD = 1e15
"""Squares of a larger reward, added up over a group, would overflow float32."""


def group_advantages(
    rewards: Tensor,
    group_ids: Tensor,
    *,
    scale: bool = True,
    eps: float = 1e-6,
    lengths: Tensor | None = None,
    valid: Tensor | None = None,
) -> Tensor:
    """GRPO advantages: how much better a rollout is than the others of its question.

        A_i = (r_i − mean_group) / (std_group + eps)      scale=True  (GRPO), std with n − 1
        A_i =  r_i − mean_group                           scale=False (Dr.GRPO)
        A_i =  r_i − Σ l r / Σ l                          scale=False, with lengths l (OPO)

    With `lengths`, the subtracted mean weights each rollout by its length, so that the advantages of a group sum to 0
    over its tokens instead of its rollouts. The standard deviation stays unweighted.

    * A group whose rewards are all equal gets exactly 0. (In float32 the mean of 0.1, 0.1, 0.1 is not 0.1, and the
      rounding error divided by eps would become an advantage.)
    * A group of one has no others: A = r, which is REINFORCE without a baseline.
    * A group in which only one rollout is valid has nothing to compare with: A = 0, not A = r.
    * Rows that are not `valid` get 0 and stay out of mean and std; their rewards may be NaN.

    Args:
        rewards: float [B].
        group_ids: int [B], equal for rollouts of one question.
        scale: divide by the group's standard deviation.
        eps: added to the standard deviation, in reward units.
        lengths: int or float [B], tokens of each rollout that are learned from. None: equal weights.
            A group without a token uses the unweighted mean.
        valid: bool [B], False for rollouts that failed for reasons other than the policy. None: all are valid.

    Returns:
        float [B, 1], ready for the losses; detached; float32, or float64 for float64 rewards.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit, or the reward of a valid row is NaN, infinite or beyond
            ±1e15, which would void its whole group.

    Source: GRPO (arXiv 2402.03300); Dr.GRPO (2503.20783); OPO (2505.23585). The unbiased standard deviation and A = r
    for a group of one follow the code of Search-R1 and LLDS.

    Five rollouts, one correct: mean 0.2, std sqrt(0.8 / 4) = 0.447, so 0.8 / 0.447 and −0.2 / 0.447.

    >>> advantages = group_advantages(torch.tensor([1.0, 0, 0, 0, 0]), torch.zeros(5, dtype=torch.long))
    >>> [round(x, 3) for x in advantages[:, 0].tolist()]
    [1.789, -0.447, -0.447, -0.447, -0.447]
    """
    rewards, valid = _check(rewards, valid)
    check_tensor("group_ids", group_ids)
    if group_ids.shape != rewards.shape or group_ids.is_floating_point() or group_ids.dtype == torch.bool:
        raise ValueError(
            f"group_ids must be integers of shape {list(rewards.shape)}, one per rollout, not {group_ids.dtype} of "
            f"shape {list(group_ids.shape)}"
        )
    if lengths is not None:
        check_tensor("lengths", lengths)
    if lengths is not None and lengths.shape != rewards.shape:
        raise ValueError(
            f"lengths must be of shape {list(rewards.shape)}, one number of tokens per rollout, not "
            f"{list(lengths.shape)}"
        )
    if not 0 <= eps < math.inf:
        raise ValueError(
            f"eps={eps} must be a number from 0 on; it keeps the division by the standard deviation finite"
        )
    _, group = torch.unique(group_ids, return_inverse=True)  # B slots suffice for any number of groups
    reward = torch.where(valid, rewards, 0.0)

    def group_sum(x: Tensor) -> Tensor:
        """[B]: for each rollout the sum over its group."""
        return torch.zeros_like(x).index_add_(0, group, x)[group]

    size = group_sum(torch.ones_like(reward))
    valid_count = group_sum(valid.to(reward.dtype))
    mean = group_sum(reward) / valid_count.clamp(min=1)
    advantages = reward - mean
    if lengths is not None:
        weight = torch.where(valid, lengths.to(reward.dtype), 0.0)
        tokens = group_sum(weight)
        advantages = reward - torch.where(tokens > 0, group_sum(weight * reward) / tokens.clamp(min=1), mean)
    if scale:
        deviation = torch.where(valid, reward - mean, 0.0)
        std = (group_sum(deviation.square()) / (valid_count - 1).clamp(min=1)).sqrt()
        advantages = advantages / (std + eps)
    high = torch.full_like(reward, -torch.inf)
    high.scatter_reduce_(0, group, torch.where(valid, rewards, -torch.inf), "amax")
    low = torch.full_like(reward, torch.inf)
    low.scatter_reduce_(0, group, torch.where(valid, rewards, torch.inf), "amin")
    advantages = torch.where((high > low)[group], advantages, 0.0)
    advantages = torch.where(size == 1, reward, advantages)
    return torch.where(valid, advantages, 0.0)[:, None]


def reinforce_advantages(rewards: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """REINFORCE advantages without a baseline: the reward itself. Groups play no part.

    Args:
        rewards: float [B].
        valid: bool [B]; rows that are not valid get 0.

    Returns:
        float [B, 1], detached.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit, or the reward of a valid row is NaN, infinite or beyond
            ±1e15.

    Source: Williams (1992). With rewards of 0 and 1 there is no negative gradient at all, which is why
    Search-R1's first release (every rollout its own group) did not collapse.

    >>> reinforce_advantages(torch.tensor([1.0, 0.0])).tolist()
    [[1.0], [0.0]]
    """
    rewards, valid = _check(rewards, valid)
    return torch.where(valid, rewards, 0.0)[:, None]


def _check(rewards: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    check_tensor("rewards", rewards)
    if rewards.dim() != 1 or not rewards.is_floating_point():
        raise ValueError(
            f"rewards must be floating point of shape [B], one per rollout, not {rewards.dtype} of shape "
            f"{list(rewards.shape)}"
        )
    if valid is None:
        valid = torch.ones_like(rewards, dtype=torch.bool)
    check_tensor("valid", valid)
    if valid.dtype != torch.bool or valid.shape != rewards.shape:
        raise ValueError(
            f"valid must be bool of shape {list(rewards.shape)}, not {valid.dtype} of shape {list(valid.shape)}"
        )
    bad = (valid & ~(upcast(rewards).abs() <= MAX_REWARD)).nonzero()
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"rewards[{row}] = {float(rewards[row])}, which gives no advantage: it must be between "
            f"-{MAX_REWARD:g} and {MAX_REWARD:g}. Rollouts whose reward is not known must not be `valid`"
        )
    return upcast(rewards.detach()), valid
