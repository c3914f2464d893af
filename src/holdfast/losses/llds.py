"""LLDS: a penalty on tokens of good rollouts that became less likely (arXiv 2512.04220)."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    check_choice,
    check_flags,
    check_ids,
    check_layout,
    check_logprobs,
    check_paired,
    check_per_row,
    run_index,
    run_sums,
    sequence_sums,
)
from holdfast.losses.actions import action_ids_from_mask


def llds_penalty(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    gate: Literal["action", "response", "token"] = "action",
    action_ids: Tensor | None = None,
    answer_mask: Tensor | None = None,
    answer_weight: float | Tensor = 1.0,
    threshold: float = 0.0,
    preserve: Tensor | None = None,
    sequence_ids: Tensor | None = None,
) -> Tensor:
    """The drop in likelihood of preserved tokens, per token, behind a gate. Not multiplied by the coefficient.

        Δ_k = l_old,k − l_k                                   positive: the token became less likely
        penalty_k = w_k · max(0, Δ_k)   if the token is preserved and its gate is open,  else 0

        gate="action"     open if the preserved tokens of the token's action dropped on average     LLDS, v2 (default)
        gate="response"   open if those of its whole response did                                   LLDS-R, v1
        gate="token"      always open                                                               LLD
        w_k = answer_weight on the final answer, 1 elsewhere. Answer tokens vote in the gate all the same.

    The gradient of a token that counts is −w_k·∇l_k, of constant size however small the drop is. Hence `threshold`, in
    nats per token: a gate opens when its mean drop exceeds it, and a token counts when its own drop does (its penalty
    is still the full Δ_k). All comparisons are strict: Δ = 0 gives exactly 0 and zero gradient.

    Args:
        logprobs: float [..., T], log-probs of the sampled tokens under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch, or under an older anchor.
            Detached. Equal to `logprobs` until the second optimizer step after a rollout, so with one step per rollout
            the penalty is always 0.
        advantages: float [..., 1] or [..., T], unweighted. Read only when `preserve` is None.
        loss_mask: bool [..., T], True on tokens the model sampled.
        gate: see above.
        action_ids: int [..., T], 0 outside actions, k on the k-th. None: runs of `loss_mask`, which merge actions that
            have no observation between them. Read by gate="action".
        answer_mask: bool [..., T], True on the final answer, tags included.
        answer_weight: in [0, 1]; a 0-d tensor is accepted. Any value but 1 needs `answer_mask`.
        threshold: nats per token, not negative.
        preserve: bool [..., 1] or [..., T]. None: the paper's rule, A ≥ 0. See `preserving_mask`.
        sequence_ids: int [..., T], which sequence of a packed row a token is in. Needed for 1-D tokens by the gates
            "action" and "response".

    Returns:
        float [..., T] in nats, unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: arXiv 2512.04220 v2, eq. 4 (action), eq. 5 (answer weight), eqs. 9 and 10 (token, response); v1 eqs. 4 to 7.
    Paper and code: the paper divides by the preserved tokens, the code by all action tokens of the micro-batch (here
    the caller reduces: `reduce_loss`). v1 removes answer tokens, v2 and the code weigh them; the code adds
    min(weight, λ) for them, here the weight is relative to λ. The code has a `reduce_threshold` that nothing reads.
    Until February 2026 its response gate summed max(0, Δ), which never closes.

    The action [−0.1, +0.3] dropped by 0.2 in all, so its gate opens and the token that fell counts; the action
    [−0.4, +0.3] rose by 0.1, so it is left alone.

    >>> old, lp = torch.zeros(1, 5), torch.tensor([[0.1, -0.3, 0.0, 0.4, -0.3]])
    >>> mask = torch.tensor([[True, True, False, True, True]])
    >>> [round(x, 4) for x in llds_penalty(lp, old, torch.tensor([[1.0]]), mask)[0].tolist()]
    [0.0, 0.3, 0.0, 0.0, 0.0]
    """
    check_choice("gate", gate, ("action", "response", "token"))
    if not threshold >= 0:
        raise ValueError(
            f"threshold={threshold} must not be negative: it would count tokens that became more likely; use 0 or the "
            "size of the numerical noise in nats per token"
        )
    lp = check_logprobs(logprobs, loss_mask)
    check_ids("action_ids", action_ids, lp)
    check_ids("sequence_ids", sequence_ids, lp)
    kept = loss_mask & _preserved(advantages, preserve, lp, sequence_ids)
    drop = check_paired("old_logprobs", old_logprobs, lp) - lp
    with torch.no_grad():
        own = torch.where(kept, drop, 0.0)
        counts = own > threshold
        if gate == "action":
            check_layout(lp, sequence_ids, "gate='action'")
            if action_ids is None:
                action_ids = action_ids_from_mask(loss_mask, sequence_ids=sequence_ids)
            index = run_index(action_ids) if sequence_ids is None else run_index(action_ids, sequence_ids)
            opened = run_sums(own, index)
            if threshold:
                opened = opened - threshold * run_sums(kept.to(own.dtype), index)
            counts &= (opened > 0)[index].view(lp.shape)
        elif gate == "response":
            check_layout(lp, sequence_ids, "gate='response'")
            opened = sequence_sums(own, sequence_ids)
            if threshold:
                opened = opened - threshold * sequence_sums(kept.to(own.dtype), sequence_ids)
            counts &= opened > 0
    penalty = torch.where(counts, drop, 0.0)
    weights = _answer_weights(answer_mask, answer_weight, lp)
    return penalty if weights is None else penalty * weights


@overload
def adaptive_answer_weight(
    mean_valid_searches: float, *, schedule: Literal["paper", "code"] = ..., target: float = ..., base: float = ...
) -> float: ...
@overload
def adaptive_answer_weight(
    mean_valid_searches: Tensor, *, schedule: Literal["paper", "code"] = ..., target: float = ..., base: float = ...
) -> Tensor: ...
def adaptive_answer_weight(
    mean_valid_searches: float | Tensor,
    *,
    schedule: Literal["paper", "code"] = "paper",
    target: float = 2.0,
    base: float = 1.0,
) -> float | Tensor:
    """`answer_weight` of this step from how much the policy searches: little search, little anchoring of the answer.

        schedule="paper":  min(1, base · V / target)                      0.5 at one search, 1 at two
        schedule="code":   min(1, base · max(V − 1, 0) / (target − 1))    0 at one search, 1 at two

    Args:
        mean_valid_searches: V, valid searches per rollout, mean over the whole rollout batch.
        schedule: the paper's or the released code's.
        target: searches per rollout at which the weight is `base`.
        base: the weight at the target. The code states its weight in absolute terms and cuts it at λ, so its
            `MASK_WEIGHT` is base · λ; its script's 0.2 beside λ = 0.2 is the default 1.

    Returns:
        In [0, 1]; a tensor for a tensor.

    Raises:
        ValueError: a setting that cannot work.

    Source: arXiv 2512.04220 v2, section on answer masking (V_B = 2); released code, `mask_adaptive`.

    >>> adaptive_answer_weight(1.0), adaptive_answer_weight(1.0, schedule="code")
    (0.5, 0.0)
    """
    check_choice("schedule", schedule, ("paper", "code"))
    lowest = 0.0 if schedule == "paper" else 1.0
    if not target > lowest:
        raise ValueError(f"target={target} must be above {lowest:g} searches for schedule={schedule!r}")
    if not 0 <= base <= 1:
        raise ValueError(f"base={base} must be between 0 and 1; it is the weight of answer tokens at the target")
    weight = base * (mean_valid_searches - lowest) / (target - lowest)
    if isinstance(weight, Tensor):
        return weight.clamp(0.0, 1.0)
    return min(max(weight, 0.0), 1.0)


def _preserved(advantages: Tensor, preserve: Tensor | None, lp: Tensor, sequence_ids: Tensor | None) -> Tensor:
    a = check_per_row("advantages", advantages, lp, sequence_ids)
    return a >= 0 if preserve is None else check_flags("preserve", preserve, lp, sequence_ids)


def _answer_weights(answer_mask: Tensor | None, answer_weight: float | Tensor, lp: Tensor) -> Tensor | None:
    """Token weights [..., T], or None when every token weighs 1."""
    if answer_mask is not None and (answer_mask.dtype != torch.bool or answer_mask.shape != lp.shape):
        raise ValueError(
            f"answer_mask must be bool of shape {list(lp.shape)}, not {answer_mask.dtype} of shape "
            f"{list(answer_mask.shape)}"
        )
    if isinstance(answer_weight, Tensor):
        if answer_weight.dim() != 0:
            raise ValueError(f"answer_weight must be a number or a 0-d tensor, not shape {list(answer_weight.shape)}")
    elif not 0 <= answer_weight <= 1:
        raise ValueError(f"answer_weight={answer_weight} must be between 0 (answers left free) and 1 (as other tokens)")
    elif answer_weight == 1:
        return None
    if answer_mask is None:
        raise ValueError(
            "answer_weight is set, but without answer_mask it would change nothing; pass the mask of the final answer "
            "(TokenBatch.answer_mask), or leave answer_weight at 1"
        )
    weight = answer_weight.detach().to(lp.dtype) if isinstance(answer_weight, Tensor) else answer_weight
    return torch.where(answer_mask, weight, lp.new_ones(()))
