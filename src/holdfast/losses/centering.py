"""Score centering: the part of the expected policy gradient that only moves probability towards what the sampler draws.

At a prefix, with a sampler q, advantage A and weight w of the policy loss,

    E_q[A·w·∇log p] = E_q[A]·E_q[w·∇log p] + Cov_q(A, w·∇log p)

The first term carries no information about which token was better. It is zero if q is the policy: then
E_q[∇log p] = 0. If the sampler is truncated to a set S, and w is the importance ratio p / p_old, it is
E_q[A]·∇P(S) / P_old(S): probability leaks out of S where the mean advantage is negative.
"""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.losses._tensors import check_logprobs, check_paired, check_per_row


def score_centering_loss(log_mass: Tensor, old_log_mass: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """Removes the expected score of a truncated sampler from a policy loss with importance ratios, exactly.

        loss_k = A·P(S_k) / P_old(S_k)          P(S_k): probability of what the sampler could draw at token k

    Its gradient is A·Σ_{v ∈ S} q(v)·r(v)·∇log p(v), the expectation of what −r·A·∇log p subtracts, where
    q = p_old / P_old(S) and r = p / p_old. At the first optimizer step that is A·∇log P(S): the sampling mask of
    DeepSeek-V3.2 subtracts the same from the gradient. PPO's clip is not in the expectation.

    Args:
        log_mass: float [..., T], log P(S_k) under the policy being updated, in nats.
        old_log_mass: float [..., T], the same under the policy that sampled. Detached.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T].

    Returns:
        float [..., T], unreduced, to be added to the policy loss; exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.

    Source: score centering (arXiv 2609.20807), for weights p / p_old and the support of the sampler. prime-rl's
    `score_centering` takes its own weights, and probabilities among the tokens of the mask.

    >>> mass, advantage = torch.tensor([[-0.1]], requires_grad=True), torch.tensor([[-2.0]])
    >>> score_centering_loss(mass, mass, advantage, torch.tensor([[True]])).sum().backward()
    >>> mass.grad.tolist()  # gradient descent raises P(S): it undoes what A < 0 took from it
    [[-2.0]]
    """
    log_mass = check_logprobs(log_mass, loss_mask, "log_mass")
    advantages = check_per_row("advantages", advantages, log_mass).to(log_mass.dtype)
    rise = torch.where(loss_mask, log_mass - check_paired("old_log_mass", old_log_mass, log_mass), 0.0)
    return torch.where(loss_mask, advantages * rise.exp(), 0.0)


@torch.no_grad()
def drift_and_covariance(
    logprobs: Tensor, log_mass: Tensor, advantages: Tensor, mean_advantages: Tensor, loss_mask: Tensor
) -> tuple[Tensor, Tensor]:
    """How large the two terms of the expected update are at each token that a truncated sampler drew: for the log.

    By the logits, at a prefix and for a loss over the whole vocabulary, E_q[A·∇log p] is the sum of

        drift        E_q[A]·(q − p)                 L1 norm: |E_q[A]|·2(1 − P(S))
        covariance   E_q[(A − E_q[A])·(e_y − q)]    L1 norm for one y: |A − E_q[A]|·2(1 − q(y))

    where q = p / P(S) on S and 0 elsewhere, so that |q − p| sums to 2(1 − P(S)), and e_y is 1 at y and 0 elsewhere. The
    L1 norm is twice the probability that a unit step moves.

    Args:
        logprobs: float [..., T], log p(y) of the drawn tokens over the whole vocabulary, in nats.
        log_mass: float [..., T], log P(S), in nats; 0 where the sampler is not truncated.
        advantages: float [..., 1] or [..., T], A.
        mean_advantages: float [..., 1] or [..., T], an estimate of E_q[A] at the prefix.
        loss_mask: bool [..., T].

    Returns:
        drift and covariance, float [..., T], at least 0, exactly 0 outside the mask. The drift's is exact for the given
        mean. The covariance's is that of one draw: its mean over draws is an upper bound of the term's norm.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.

    Source: the two terms of score centering (arXiv 2609.20807); the norm is ours.

    >>> p, mass, yes = torch.tensor([[0.4]]).log(), torch.tensor([[0.8]]).log(), torch.tensor([[True]])
    >>> [round(x.item(), 6) for x in drift_and_covariance(p, mass, torch.tensor([[1.0]]), torch.tensor([[-0.5]]), yes)]
    [0.2, 1.5]
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    advantages = check_per_row("advantages", advantages, logprobs).to(logprobs.dtype)
    mean = check_per_row("mean_advantages", mean_advantages, logprobs).to(logprobs.dtype)
    log_mass = check_paired("log_mass", log_mass, logprobs)
    outside = -log_mass.clamp(max=0).expm1()
    unlikely = -(logprobs - log_mass).clamp(max=0).expm1()
    drift, covariance = mean.abs() * 2 * outside, (advantages - mean).abs() * 2 * unlikely
    return torch.where(loss_mask, drift, 0.0), torch.where(loss_mask, covariance, 0.0)
