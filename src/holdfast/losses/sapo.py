"""SAPO, Search Agent Policy Optimization: a one-sided KL on tokens that became less likely (arXiv 2603.10069).

Not Soft Adaptive Policy Optimization (2511.20347), which is what `sapo` means in TRL, verl and SkyRL.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holdfast.losses._tensors import check_flags, check_ids, check_logprobs, check_paired, check_per_row


def sapo_penalty(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    tau: float = 1.0,
    preserve: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """The conditional KL of SAPO, per token, to be minimised. Not multiplied by its coefficient γ (0.1 in the paper).

        penalty_k = −log r_k   if the token is preserved and r_k < τ,  else 0         r_k = exp(l_k − l_old,k)

    The condition is taken in log space, strictly: log r < log τ, so for τ ≤ 1 an unmoved token gives exactly 0 and zero
    gradient. With τ < 1 a token counts once its drop exceeds −log τ, and then in full: a jump, not a hinge. With τ > 1
    tokens that became slightly more likely count too, with a negative penalty, and are still pushed up.

    With τ = 1 and A ≥ 0 this is `llds_penalty(gate="token")`; with τ < 1, that one with threshold = −log τ.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch. Detached.
        advantages: float [..., 1] or [..., T], unweighted. Read only when `preserve` is None.
        loss_mask: bool [..., T], True on tokens the model sampled.
        tau: ratio below which a token counts, above 0.
        preserve: bool [..., 1] or [..., T]. None: the paper's rule, A > 0.
        sequence_ids: int [..., T] for packed rows. Nothing is summed over a sequence here; given, it makes sure that
            advantages and `preserve` are per token.

    Returns:
        float [..., T] in nats, unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or τ do not fit.

    Source: arXiv 2603.10069, eqs. 9 to 11. Paper and code: the code takes A ≥ 0 and r ≤ 1. The second makes every
    unmoved token pay a plain NLL gradient on the first optimizer step after a rollout. The code divides by the
    preserved tokens of the micro-batch, the objective by tokens of each response; here the caller reduces.

    >>> lp, old = torch.tensor([[-1.5, -1.0, -0.5]]), torch.full((1, 3), -1.0)
    >>> sapo_penalty(lp, old, torch.tensor([[1.0]]), torch.ones(1, 3, dtype=torch.bool)).tolist()
    [[0.5, 0.0, 0.0]]
    """
    if not 0 < tau < math.inf:
        raise ValueError(
            f"tau={tau} must be above 0 and finite; it is the ratio below which a token counts (paper: 1.0)"
        )
    lp = check_logprobs(logprobs, loss_mask)
    check_ids("sequence_ids", sequence_ids, lp)
    a = check_per_row("advantages", advantages, lp, sequence_ids)
    kept = a > 0 if preserve is None else check_flags("preserve", preserve, lp, sequence_ids)
    drop = check_paired("old_logprobs", old_logprobs, lp) - lp
    counts = loss_mask & kept & (drop.detach() > -math.log(tau))
    return torch.where(counts, drop, 0.0)
