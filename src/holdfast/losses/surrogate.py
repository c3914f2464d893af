"""Policy losses: the clipped surrogate (per-token or per-sequence ratio) and the likelihood of positive rollouts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    MAX_LOG_RATIO,
    check_choice,
    check_ids,
    check_layout,
    check_logprobs,
    check_paired,
    check_per_row,
    sequence_sums,
)


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Literal["token", "sequence"] = "token",
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """The clipped surrogate of PPO and GRPO, per token, to be minimised.

        loss_k = max(−A·r_k, −A·clip(r_k, 1 − clip_low, 1 + clip_high))
        A < 0 and dual_clip = c:  loss_k = min(loss_k, c·|A|)

        ratio="token":     r_k = exp(l_k − l_old,k)                                     PPO, GRPO, DAPO
        ratio="sequence":  r_k = s·exp(l_k − sg[l_k]),  s = exp(mean_j(l_j − l_old,j))   GSPO

    With `ratio="sequence"` every token of a sequence has the value s, and the gradient of its own log-prob (the form
    called GSPO-token); under `seq-mean-token-mean` it is GSPO's gradient, and per-token advantages work too. GSPO's
    own clip is 3e-4 below and 4e-4 above; the default 0.2 is what LLDS's authors use beside it.

    Args:
        logprobs: float [..., T], log-probs of the sampled tokens under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch. Detached.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T], True on tokens the model sampled.
        clip_low, clip_high: how far the ratio may move before the gradient stops. DAPO's clip-higher: 0.2 and 0.28.
        dual_clip: bound on ratio · |A| for A < 0, above 1 (often 3). None: unbounded, as in Search-R1, LLDS and SAPO.
        ratio: one importance ratio per token, or one per sequence.
        sequence_ids: int [..., T], which sequence of a packed row a token is in. Needed for 1-D tokens when
            `ratio="sequence"`.

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: PPO (arXiv 1707.06347, eq. 7); dual clip (1912.09729); DAPO (2503.14476); GSPO (2507.18071).
    The log-ratio is clamped to ±20 before exp(), and has no gradient beyond; Search-R1's and SAPO's code do not clamp,
    LLDS's clamps the ratio to 100.

    A token that became twice as likely, A = 1: the clip holds it at 1.2.

    >>> lp, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.6931472]])
    >>> loss = clipped_policy_loss(lp, old, torch.tensor([[1.0]]), torch.tensor([[True, True]]))
    >>> [round(x, 4) for x in loss[0].tolist()]
    [-1.0, -1.2]
    """
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low={clip_low} must be between 0 and 1: the ratio is kept above 1 - clip_low")
    if not clip_high >= 0:
        raise ValueError(f"clip_high={clip_high} must not be negative: the ratio is kept below 1 + clip_high")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1, or it would cut tokens that have not moved")
    lp = check_logprobs(logprobs, loss_mask)
    a = check_per_row("advantages", advantages, lp, sequence_ids).to(lp.dtype)
    a = torch.where(loss_mask, a, 0.0)
    r = (
        importance_log_ratio(lp, old_logprobs, loss_mask, ratio, sequence_ids)
        .clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        .exp()
    )
    loss = torch.maximum(-a * r, -a * r.clamp(1 - clip_low, 1 + clip_high))
    if dual_clip is not None:
        loss = torch.where(a < 0, torch.minimum(loss, -a * dual_clip), loss)
    return loss


def importance_log_ratio(
    lp: Tensor, old_logprobs: Tensor, loss_mask: Tensor, ratio: str, sequence_ids: Tensor | None
) -> Tensor:
    """Log of the importance ratio, [..., T], unclamped, 0 outside the mask. Private to the package."""
    check_choice("ratio", ratio, ("token", "sequence"))
    check_ids("sequence_ids", sequence_ids, lp)
    old = check_paired("old_logprobs", old_logprobs, lp)
    log_ratio = torch.where(loss_mask, lp - old, 0.0)
    if ratio == "token":
        return log_ratio
    check_layout(lp, sequence_ids, "ratio='sequence'")
    own = log_ratio.detach()
    mean = sequence_sums(own, sequence_ids) / sequence_sums(loss_mask.to(lp.dtype), sequence_ids).clamp(min=1)
    return torch.where(loss_mask, mean, 0.0) + (log_ratio - own)


def nll_loss(logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """Negative log-likelihood of the tokens of positive rollouts, to be added with a small coefficient.

        loss_k = −l_k   where A > 0,  else 0

    Args:
        logprobs: float [..., T], in nats.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T].

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask and where A ≤ 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.

    Source: VAPO (arXiv 2504.05118), coefficient 0.1. It pulls on every token of a positive rollout, drifted or not:
    the unconditional cousin of `sapo_penalty`. LLDS's released config has an `nll_loss_coef` that its code never reads.

    >>> nll_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.5]]), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    lp = check_logprobs(logprobs, loss_mask)
    positive = check_per_row("advantages", advantages, lp) > 0
    return torch.where(loss_mask & positive, -lp, 0.0)
