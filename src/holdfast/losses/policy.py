"""Policy losses: the clipped surrogate, CISPO, the likelihood of positive rollouts, and the KL to a reference."""

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
    check_per_row,
    check_rows,
    run_index,
    run_sums,
)
from holdfast.losses.masks import action_ids_from_mask


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio: Literal["token", "action", "sequence"] = "token",
    action_ids: Tensor | None = None,
) -> Tensor:
    """The clipped surrogate of PPO and GRPO, per token, to be minimised.

        loss_k = max(−A·r_k, −A·clip(r_k, 1 − clip_low, 1 + clip_high))
        A < 0 and dual_clip = c:  loss_k = min(loss_k, c·|A|)

        ratio="token":     r_k = exp(l_k − l_old,k)                                     PPO, GRPO, DAPO
        ratio="sequence":  r_k = s·exp(l_k − sg[l_k]),  s = exp(mean_j(l_j − l_old,j))   GSPO
        ratio="action":    the same with the mean over the tokens of the action            ours

    With `ratio="sequence"` every token of a sequence has the value s and the gradient of its own log-prob (the form
    called GSPO-token). Under `seq-mean-token-mean` this is GSPO's gradient; per-token advantages work too. GSPO's paper
    clips at 3e-4 below and 4e-4 above; LLDS's authors use it with the default 0.2. An action is between a token and a
    sequence: one model turn, to which the environment responds. So a search whose probability changed is clipped as a
    whole, but the answer after it is not.

    Args:
        logprobs: float [..., T], log-probs of the sampled tokens under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch. Detached.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T], True on tokens the model sampled.
        clip_low, clip_high: how far the ratio may move before the gradient stops. DAPO's clip-higher: 0.2 and 0.28.
        dual_clip: bound on ratio · |A| for A < 0, above 1 (often 3). None: unbounded, as in Search-R1, LLDS and SAPO.
        ratio: one importance ratio per token, per action or per sequence.
        action_ids: int [..., T], 0 outside actions, k on the k-th. None: runs of `loss_mask`, which merge actions that
            have no observation between them. Read by ratio="action".

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: PPO (arXiv 1707.06347, eq. 7); dual clip (1912.09729); DAPO (2503.14476); GSPO (2507.18071).
    The log-ratio is clamped to ±20 before exp(), and has no gradient beyond.

    A token that became twice as likely, A = 1: the ratio is clipped to 1.2.

    >>> logprobs, old = torch.tensor([[-1.0, -1.0]]), torch.tensor([[-1.0, -1.6931472]])
    >>> loss = clipped_policy_loss(logprobs, old, torch.tensor([[1.0]]), torch.tensor([[True, True]]))
    >>> [round(x, 4) for x in loss[0].tolist()]
    [-1.0, -1.2]
    """
    _check_clip(clip_low, clip_high)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1, or it would cut tokens that have not moved")
    logprobs = check_logprobs(logprobs, loss_mask)
    advantage = check_per_row("advantages", advantages, logprobs).to(logprobs.dtype)
    advantage = torch.where(loss_mask, advantage, 0.0)
    log_ratio = importance_log_ratio(logprobs, old_logprobs, loss_mask, ratio, action_ids)
    importance_ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_ratio = importance_ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(-advantage * importance_ratio, -advantage * clipped_ratio)
    if dual_clip is not None:
        loss = torch.where(advantage < 0, torch.minimum(loss, -advantage * dual_clip), loss)
    return loss


def importance_log_ratio(
    logprobs: Tensor,
    old_logprobs: Tensor,
    loss_mask: Tensor,
    ratio: str,
    action_ids: Tensor | None = None,
) -> Tensor:
    """Log of the importance ratio, [..., T], unclamped, 0 outside the mask. Private to the package."""
    check_choice("ratio", ratio, ("token", "action", "sequence"))
    check_ids("action_ids", action_ids, logprobs)
    old_logprobs = check_paired("old_logprobs", old_logprobs, logprobs)
    log_ratio = torch.where(loss_mask, logprobs - old_logprobs, 0.0)
    if ratio == "token":
        return log_ratio
    value = log_ratio.detach()
    mean = unit_means(value, loss_mask, ratio, action_ids)
    return torch.where(loss_mask, mean, 0.0) + (log_ratio - value)


def unit_means(values: Tensor, loss_mask: Tensor, level: str, action_ids: Tensor | None) -> Tensor:
    """Mean of `values` (0 outside the mask) over the masked tokens of each action or sequence: [..., T] or [..., 1].

    Private to the package.
    """
    lengths = unit_sums(loss_mask.to(values.dtype), loss_mask, level, action_ids).clamp(min=1)
    return unit_sums(values, loss_mask, level, action_ids) / lengths


def unit_sums(values: Tensor, loss_mask: Tensor, level: str, action_ids: Tensor | None) -> Tensor:
    """The sum of each unit; see `unit_means`."""
    check_rows(values, f"an importance ratio of each {level}")
    if level == "sequence":
        return values.sum(-1, keepdim=True)
    index = run_index(action_ids_from_mask(loss_mask) if action_ids is None else action_ids)
    return run_sums(values, index)[index].view(values.shape)


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> Tensor:
    """CISPO's loss, per token, to be minimised: the ratio is clipped as a weight, so that no token loses its gradient.

        loss_k = −sg[clip(r_k, 1 − clip_low, 1 + clip_high)]·A·l_k        r_k = exp(l_k − l_old,k)

    Its value is a weighted log-likelihood, so only its gradient can be compared with `clipped_policy_loss`. With bounds
    that are never reached the two gradients are equal: −r_k·A·∇l_k.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch. Detached.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T].
        clip_low, clip_high: bounds of the weight, 1 − clip_low and 1 + clip_high. clip_low = 1 removes the lower one.

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: MiniMax-M1 (arXiv 2506.13585), which sets no lower bound and gives no upper bound. TRL's `epsilon_high` is
    the largest weight itself, 1 + clip_high here; it recommends 5, after ScaleRL (2510.13786). verl bounds the weight
    on both sides, by default with PPO's 0.2.

    >>> logprobs, old = torch.tensor([[-1.0]], requires_grad=True), torch.tensor([[-1.6931472]])
    >>> cispo_loss(logprobs, old, torch.tensor([[1.0]]), torch.tensor([[True]]), clip_high=0.5).sum().backward()
    >>> logprobs.grad.tolist()  # the ratio 2 has weight 1.5
    [[-1.5]]
    """
    _check_clip(clip_low, clip_high)
    logprobs = check_logprobs(logprobs, loss_mask)
    advantage = check_per_row("advantages", advantages, logprobs).to(logprobs.dtype)
    log_ratio = importance_log_ratio(logprobs.detach(), old_logprobs, loss_mask, "token")
    weight = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(1 - clip_low, 1 + clip_high)
    return torch.where(loss_mask, -weight * advantage, 0.0) * torch.where(loss_mask, logprobs, 0.0)


def _check_clip(clip_low: float, clip_high: float) -> None:
    if not 0 <= clip_low <= 1:
        raise ValueError(f"clip_low={clip_low} must be between 0 and 1: the ratio is kept above 1 - clip_low")
    if not clip_high >= 0:
        raise ValueError(f"clip_high={clip_high} must not be negative: the ratio is kept below 1 + clip_high")


def nll_loss(logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """Negative log-likelihood of the tokens of positive rollouts (A > 0), to be added with a small coefficient.

        loss_k = −l_k   where A > 0,  else 0

    Args:
        logprobs: float [..., T], in nats.
        advantages: float [..., 1] or [..., T]. Detached.
        loss_mask: bool [..., T].

    Returns:
        float [..., T], unreduced, exactly 0 with zero gradient outside the mask and where A ≤ 0.

    Raises:
        TypeError, ValueError: dtypes or shapes do not fit.

    Source: VAPO (arXiv 2504.05118), coefficient 0.1. Unlike `sapo_penalty`, it pulls on every token of a positive
    rollout, also on those that did not become less likely.

    >>> nll_loss(torch.tensor([[-1.0, -2.0]]), torch.tensor([[0.5]]), torch.tensor([[True, False]])).tolist()
    [[1.0, 0.0]]
    """
    logprobs = check_logprobs(logprobs, loss_mask)
    positive = check_per_row("advantages", advantages, logprobs) > 0
    return torch.where(loss_mask & positive, -logprobs, 0.0)


def kl_loss(
    logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor, *, estimator: Literal["k3", "k2"] = "k3"
) -> Tensor:
    """KL to a frozen reference, per token, to be added with a small coefficient (0.001 in Search-R1, LLDS and SAPO).

        x = l_ref − l
        k3 = exp(x) − x − 1        never negative, unbiased value; gradient −(exp(x) − 1)·∇l
        k2 = x² / 2                never negative; gradient −x·∇l, the unbiased gradient of KL(policy ‖ reference)

    `k1` (l − l_ref) is refused: on tokens drawn from the policy its gradient is ∇l, whose expectation is zero, so as a
    loss it only adds noise. It belongs in the reward.

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
    to at most 20 and has no gradient beyond, where the policy gives almost no probability to a
    token the reference favours.

    >>> x = kl_loss(torch.tensor([[-1.0]]), torch.tensor([[-0.5]]), torch.tensor([[True]]))
    >>> round(x.item(), 4)  # exp(0.5) − 0.5 − 1
    0.1487
    """
    if str(estimator) == "k1":
        raise ValueError(
            "estimator='k1' as a loss has zero expected gradient, so it would only add noise; use 'k3' or 'k2' here, "
            "or subtract k1 from the reward"
        )
    check_choice("estimator", estimator, ("k3", "k2"))
    logprobs = check_logprobs(logprobs, loss_mask)
    ref_logprobs = check_paired("ref_logprobs", ref_logprobs, logprobs)
    log_ratio = torch.where(loss_mask, ref_logprobs - logprobs, 0.0)
    if estimator == "k2":
        return log_ratio.square() / 2
    # The clamp covers both terms: clamping only the exponential would reverse the gradient beyond it.
    # expm1 keeps the small values that exp(x) − 1 rounds away.
    log_ratio = log_ratio.clamp(max=MAX_LOG_RATIO)
    return log_ratio.expm1() - log_ratio
