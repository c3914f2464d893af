"""Per-token estimates of KL(policy ‖ reference) that work as a loss."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import MAX_LOG_RATIO, check_choice, check_logprobs, check_paired


def kl_loss(
    logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor, *, estimator: Literal["k3", "k2"] = "k3"
) -> Tensor:
    """KL to a frozen reference, per token, to be added with a small coefficient (0.001 in Search-R1, LLDS and SAPO).

        x = l_ref − l
        k3 = exp(x) − x − 1        never negative, unbiased value; gradient −(exp(x) − 1)·∇l
        k2 = x² / 2                never negative; gradient −x·∇l, the unbiased gradient of KL(policy ‖ reference)

    `k1` (l − l_ref) is refused: on tokens drawn from the policy its gradient is ∇l, whose expectation is zero, so as a
    loss it does nothing but add noise. It belongs in the reward.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats.
        ref_logprobs: float [..., T], under the reference. Detached.
        loss_mask: bool [..., T].
        estimator: "k3" or "k2".

    Returns:
        float [..., T] in nats, unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or the estimator do not fit.

    Source: Schulman, "Approximating KL divergence" (2020); GRPO (arXiv 2402.03300, eq. 4) uses k3. In k3, x is clamped
    to at most 20 and has no gradient beyond, where the policy has all but lost a token the reference likes. verl,
    Search-R1 and LLDS also cut the estimate itself at 10, so there a token stops being pulled back at x ≈ 2.6.

    >>> x = kl_loss(torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), torch.tensor([[True]]))
    >>> round(x.item(), 4)  # exp(0.5) − 0.5 − 1
    0.1487
    """
    if estimator == "k1":
        raise ValueError(
            "estimator='k1' as a loss has zero expected gradient, so it would only add noise; use 'k3' or 'k2' here, "
            "or subtract k1 from the reward"
        )
    check_choice("estimator", estimator, ("k3", "k2"))
    lp = check_logprobs(logprobs, loss_mask)
    ref = check_paired("ref_logprobs", ref_logprobs, lp)
    x = torch.where(loss_mask, ref - lp, 0.0)
    if estimator == "k2":
        return x.square() / 2
    # The clamp covers both terms: clamping only the exponential would turn the gradient round beyond it.
    # expm1 keeps the small values that exp(x) − 1 rounds away.
    x = x.clamp(max=MAX_LOG_RATIO)
    return x.expm1() - x
