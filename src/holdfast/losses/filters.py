"""Masks of the tokens that stay in the policy loss, with methods that drop some: DPPO, IPO, M2PO, Clip-Cov, OPSM."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.losses._tensors import check_logprobs, check_paired, check_per_row, check_rows


@torch.no_grad()
def dppo_mask(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
) -> Tensor:
    """The tokens that DPPO trains on: a trust region on probabilities, in place of PPO's clip on ratios.

        A > 0:  keep unless π_k − μ_k > high            π_k = exp(l_k),  μ_k = exp(l_old,k)
        A < 0:  keep unless μ_k − π_k > low
        A = 0:  keep

    |π_k − μ_k| is the total variation between the two policies when they choose between this token and any other. A
    ratio overstates changes of rare tokens, whose probability hardly changes when it doubles, and understates those of
    likely tokens. Apart from the mask, DPPO does not clip: the loss is −r·A, that of `clipped_policy_loss` with
    clip_low = 1 and an infinite clip_high.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats. Detached.
        old_logprobs: float [..., T]: the paper takes those of the sampler, verl those of the old policy.
        advantages: float [..., 1] or [..., T].
        loss_mask: bool [..., T].
        low, high: how far a probability may fall, or rise, in 0 to 1.

    Returns:
        bool [..., T], False outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or bounds that cannot work.

    Source: DPPO, binary total variation (arXiv 2602.04879); bounds of 0.2 are prime-rl's.

    A token that rose from 0.2 to 0.5 is left out for A > 0, though not one that rose from 0.001 to 0.003.

    >>> old, new = torch.tensor([[0.2, 0.001]]).log(), torch.tensor([[0.5, 0.003]]).log()
    >>> dppo_mask(new, old, torch.tensor([[1.0]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [[False, True]]
    """
    for name, bound in (("low", low), ("high", high)):
        if not 0 <= bound < 1:
            raise ValueError(f"{name}={bound} must be in 0 to 1: it bounds the change of a probability")
    logprobs = check_logprobs(logprobs, loss_mask)
    advantages = check_per_row("advantages", advantages, logprobs)
    rise = logprobs.exp() - check_paired("old_logprobs", old_logprobs, logprobs).exp()
    outside = ((advantages > 0) & (rise > high)) | ((advantages < 0) & (-rise > low))
    return loss_mask & ~outside


@torch.no_grad()
def ipo_mask(logprobs: Tensor, sampler_logprobs: Tensor, loss_mask: Tensor, *, eps: float = 0.3) -> Tensor:
    """The tokens that IPO trains on: those whose probability has not moved far from the sampler's, up or down.

        keep unless |π_k − μ_k| > eps           π_k = exp(l_k),  μ_k = exp(l_sampler,k)

    DPPO bounds only the direction in which the advantage pushes. This bounds both, so a token that a neighbour pushed
    away is left out too, whatever its advantage.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats. Detached.
        sampler_logprobs: float [..., T], of the distribution that the tokens were drawn from.
        loss_mask: bool [..., T].
        eps: how far a probability may move, in 0 to 1.

    Returns:
        bool [..., T], False outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or a bound that cannot work.

    Source: prime-rl's default loss, INTELLECT Policy Optimization, with eps = 0.3.

    >>> sampler, now = torch.tensor([[0.2, 0.2]]).log(), torch.tensor([[0.6, 0.4]]).log()
    >>> ipo_mask(now, sampler, torch.ones(1, 2, dtype=torch.bool)).tolist()
    [[False, True]]
    """
    if not 0 < eps < 1:
        raise ValueError(f"eps={eps} must be between 0 and 1: it bounds the change of a probability")
    logprobs = check_logprobs(logprobs, loss_mask)
    moved = logprobs.exp() - check_paired("sampler_logprobs", sampler_logprobs, logprobs).exp()
    return loss_mask & ~(moved.abs() > eps)


@torch.no_grad()
def second_moments(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """(log r)² of the tokens that M2PO may drop: those whose ratio moved in the direction of their advantage.

        (l_k − l_old,k)²    where A > 0 and r > 1, or A < 0 and r < 1;  NaN elsewhere

    Args:
        logprobs: float [..., T], under the policy being updated, in nats. Detached.
        old_logprobs: float [..., T]: the paper takes those of the sampler.
        advantages: float [..., 1] or [..., T].
        loss_mask: bool [..., T].

    Returns:
        float [..., T], in nats².

    Raises:
        TypeError, ValueError: dtypes or shapes that cannot work.

    Source: M2PO (arXiv 2510.01161, algorithm 1).
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    advantages = check_per_row("advantages", advantages, logprobs)
    change = logprobs - check_paired("old_logprobs", old_logprobs, logprobs)
    return torch.where(loss_mask & (advantages.sign() * change.sign() > 0), change.square(), torch.nan)


def second_moment_cut(moments: Tensor, bound: float) -> float:
    """The least (log r)² that M2PO drops: without the tokens that have it or more, their mean is at most `bound`.

    Args:
        moments: float, any shape, of all tokens of an optimizer step, from `second_moments`. NaN does not count.
        bound: τ, in nats².

    Returns:
        Infinity if nothing is dropped. Equal values are dropped together.

    Raises:
        ValueError: the bound is not above 0.

    Source: M2PO (arXiv 2510.01161, algorithm 1), with τ = 0.04 for all models. The paper drops the largest value until
    the mean is at most τ. The released code keeps the tokens and clips their ratios instead: at a value found from the
    same sum, and never within 0.3 below or 0.5 above 1. AReaL drops tokens whatever the sign of their advantage, by the
    ratio of the recomputed policy to the sampler.

    The mean of 0.01, 0.02, 0.09 and 1 is 0.28, without the last it is 0.04:

    >>> moments = torch.tensor([0.02, 1.0, torch.nan, 0.09, 0.01], dtype=torch.float64)
    >>> second_moment_cut(moments, bound=0.041), second_moment_cut(moments, bound=0.3)
    (1.0, inf)
    """
    if not bound > 0:
        raise ValueError(f"bound={bound} must be above 0: it bounds the mean of squares; the paper uses 0.04")
    ordered = moments[~moments.isnan()].double().sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    kept = int((means <= bound).sum())
    return math.inf if kept == len(ordered) else float(ordered[kept])


@torch.no_grad()
def clip_cov_mask(
    logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    draws: Tensor,
    *,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> Tensor:
    """The tokens that are left when some of those that lower the entropy most are dropped, drawn at random.

        cov_k = (A_k − mean A)·(l_k − mean l)           means over the mask
        dropped: max(1, share × tokens) of those with low < cov_k < high

    A likely token with A > 0 and an unlikely one with A < 0 have a large covariance: learning from them lowers the
    entropy.

    Args:
        logprobs: float [..., T], in nats. Detached.
        advantages: float [..., 1] or [..., T].
        loss_mask: bool [..., T].
        draws: float [..., T], random numbers. The tokens with the smallest ones are dropped.
        share: of the tokens of the mask, at most this much is dropped.
        low, high: bounds of the covariance, in nats times advantage.

    Returns:
        bool [..., T], False outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: Clip-Cov (arXiv 2505.22617), defaults of verl's `clip_cov`, which takes the means over a micro-batch. It
    also spares tokens that PPO's clip has stopped, whose gradient is 0.

    >>> logprobs, advantages = torch.tensor([[0.0, -4.0, -8.0]]), torch.tensor([[1.0, 0.0, -1.0]])
    >>> mask, draws = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[0.5, 0.1, 0.4]])
    >>> clip_cov_mask(logprobs, advantages, mask, draws).tolist()
    [[True, True, False]]
    """
    if not 0 < share < 1:
        raise ValueError(f"share={share} must be between 0 and 1: it is the share of the tokens that are dropped")
    if not low < high:
        raise ValueError(f"low={low} must be below high={high}: they bound the covariance of dropped tokens")
    logprobs = check_logprobs(logprobs, loss_mask)
    advantages = check_per_row("advantages", advantages, logprobs).to(logprobs.dtype).expand_as(logprobs)
    draws = check_paired("draws", draws, logprobs)
    tokens = loss_mask.sum().clamp(min=1)

    def centred(values: Tensor) -> Tensor:
        inside = torch.where(loss_mask, values, 0.0)
        return inside - inside.sum() / tokens

    cov = centred(advantages) * centred(logprobs)
    candidates = loss_mask & (cov > low) & (cov < high)
    order = torch.where(candidates, draws, torch.inf).flatten().argsort().argsort().reshape(draws.shape)
    return loss_mask & ~(candidates & (order < (share * tokens).floor().clamp(min=1)))


@torch.no_grad()
def off_policy_sequence_mask(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    threshold: float,
) -> Tensor:
    """The tokens that are left when negative sequences which the policy has moved away from are dropped.

        keep where A ≥ 0, or mean_k(l_old,k − l_k) ≤ threshold          the mean over the sequence

    Args:
        logprobs: float [..., T], under the policy being updated, in nats. Detached.
        old_logprobs: float [..., T], of the policy that sampled.
        advantages: float [..., 1] or [..., T].
        loss_mask: bool [..., T].
        threshold: δ, above 0, in nats per token.

    Returns:
        bool [..., T], False outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or a threshold that cannot work.

    Source: DeepSeek-V3.2 (arXiv 2512.02556, eq. 9, section 3.1), which gives no number; TRL's example is 0.5. The
    mirror image of LLDS: that holds positive rollouts, this lets go of negative ones.

    >>> old, new = torch.full((2, 2), -1.0), torch.full((2, 2), -2.0)
    >>> mask = torch.ones(2, 2, dtype=torch.bool)
    >>> off_policy_sequence_mask(new, old, torch.tensor([[1.0], [-1.0]]), mask, threshold=0.5).tolist()
    [[True, True], [False, False]]
    """
    if not threshold > 0:
        raise ValueError(f"threshold={threshold} must be above 0, or noise would drop sequences; try 0.5")
    logprobs = check_logprobs(logprobs, loss_mask)
    check_rows(logprobs, "off_policy_sequence_mask")
    advantages = check_per_row("advantages", advantages, logprobs)
    decrease = torch.where(loss_mask, check_paired("old_logprobs", old_logprobs, logprobs) - logprobs, 0.0)
    lengths = loss_mask.sum(-1, keepdim=True).clamp(min=1)
    moved = decrease.sum(-1, keepdim=True) / lengths > threshold
    return loss_mask & ~((advantages < 0) & moved)
