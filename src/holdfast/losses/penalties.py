"""The likelihood-preserving penalties on tokens that became less likely: LLDS and SAPO.

SAPO is Search Agent Policy Optimization (arXiv 2603.10069), not Soft Adaptive Policy Optimization (2511.20347), which
is what `sapo` means in TRL, verl and SkyRL. docs/reference/papers.md lists where the papers and their code differ.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    check_choice,
    check_flags,
    check_ids,
    check_logprobs,
    check_paired,
    check_per_row,
    check_rows,
    check_tensor,
    run_index,
    run_sums,
)
from holdfast.losses.masks import action_ids_from_mask


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
    preserved: Tensor | None = None,
) -> Tensor:
    """How much less likely preserved tokens became, per token, behind a gate. Not multiplied by the coefficient.

        Δ_k = l_old,k − l_k                                   positive: the token became less likely
        penalty_k = w_k · max(0, Δ_k)   if the token is preserved and its gate is open,  else 0

        gate="action"     open if the mean Δ of the action's preserved tokens is positive     LLDS, v2 (default)
        gate="response"   open if that of the response's preserved tokens is                  LLDS-R, v1
        gate="token"      always open                                                         LLD, v1
        w_k = answer_weight on the final answer, 1 elsewhere

    Preserved tokens: those that the penalty protects, by default in rollouts with A ≥ 0; see `preserved_mask`. Answer
    tokens still count in the mean that opens the gate. v1 and v2 are versions of the arXiv paper.

    An active token has the gradient −w_k·∇l_k, whatever the size of its decrease. `threshold`, in nats per token,
    keeps numerical noise out: a gate opens when its mean Δ exceeds it, and a token is active when its own Δ does (its
    penalty is still the full Δ_k). All comparisons are strict: Δ = 0 gives exactly 0 and zero gradient.

    Args:
        logprobs: float [..., T], log-probs of the sampled tokens under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch, or under an older anchor.
            Detached. Equal to `logprobs` until the second optimizer step after a rollout, so with one step per rollout
            the penalty is always 0.
        advantages: float [..., 1] or [..., T], unweighted. Read only when `preserved` is None.
        loss_mask: bool [..., T], True on tokens the model sampled.
        gate: see above.
        action_ids: int [..., T], 0 outside actions, k on the k-th. None: runs of `loss_mask`, which merge actions that
            have no observation between them. Read by gate="action".
        answer_mask: bool [..., T], True on the final answer, tags included.
        answer_weight: in [0, 1]; a 0-d tensor is accepted. Any value but 1 needs `answer_mask`.
        threshold: nats per token, not negative.
        preserved: bool [..., 1] or [..., T]. None: the paper's rule, A ≥ 0. See `preserved_mask`.

    Returns:
        float [..., T] in nats, unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: arXiv 2512.04220 v2, eq. 4 (action), eq. 5 (answer weight), eqs. 9 and 10 (token, response); v1 eqs. 4 to 7.

    The action [−0.1, +0.3] decreased by 0.2 in all, so its gate opens and the token that decreased is active. The
    action [−0.4, +0.3] increased by 0.1, so its gate stays closed.

    >>> old, logprobs = torch.zeros(1, 5), torch.tensor([[0.1, -0.3, 0.0, 0.4, -0.3]])
    >>> mask = torch.tensor([[True, True, False, True, True]])
    >>> [round(x, 4) for x in llds_penalty(logprobs, old, torch.tensor([[1.0]]), mask)[0].tolist()]
    [0.0, 0.3, 0.0, 0.0, 0.0]
    """
    check_choice("gate", gate, ("action", "response", "token"))
    if not threshold >= 0:
        raise ValueError(
            f"threshold={threshold} must not be negative: it would count tokens that became more likely; use 0 or the "
            "size of the numerical noise in nats per token"
        )
    logprobs = check_logprobs(logprobs, loss_mask)
    check_ids("action_ids", action_ids, logprobs)
    advantages = check_per_row("advantages", advantages, logprobs)
    selected = advantages >= 0 if preserved is None else check_flags("preserved", preserved, logprobs)
    decrease = check_paired("old_logprobs", old_logprobs, logprobs) - logprobs
    with torch.no_grad():
        excess = torch.where(loss_mask & selected, decrease - threshold, 0.0)
        active = excess > 0
        if gate == "action":
            check_rows(logprobs, "gate='action'")
            index = run_index(action_ids_from_mask(loss_mask) if action_ids is None else action_ids)
            active &= (run_sums(excess, index) > 0)[index].view(logprobs.shape)
        elif gate == "response":
            check_rows(logprobs, "gate='response'")
            active &= excess.sum(-1, keepdim=True) > 0
    penalty = torch.where(active, decrease, 0.0)
    weights = _answer_weights(answer_mask, answer_weight, logprobs)
    return penalty if weights is None else penalty * weights


def sapo_penalty(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    tau: float = 1.0,
    preserved: Tensor | None = None,
) -> Tensor:
    """The conditional KL of SAPO, per token, to be minimised. Not multiplied by its coefficient γ (0.1 in the paper).

        penalty_k = −log r_k   if the token is preserved and r_k < τ,  else 0         r_k = exp(l_k − l_old,k)

    The comparison is strict, in log space: log r < log τ, so for τ ≤ 1 an unmoved token gives exactly 0 and zero
    gradient. With τ < 1 a token is active once its decrease exceeds −log τ, and then in full: a jump, not a hinge. With
    τ > 1, tokens that became slightly more likely are active too, with a negative penalty, and are still pushed up.

    With τ = 1 and A ≥ 0 this is `llds_penalty(gate="token")`; with τ < 1, that one with threshold = −log τ.

    Args:
        logprobs: float [..., T], under the policy being updated, in nats.
        old_logprobs: float [..., T], under the policy frozen for this rollout batch. Detached.
        advantages: float [..., 1] or [..., T], unweighted. Read only when `preserved` is None.
        loss_mask: bool [..., T], True on tokens the model sampled.
        tau: ratio below which a token is active, above 0.
        preserved: bool [..., 1] or [..., T]. None: the paper's rule, A > 0.

    Returns:
        float [..., T] in nats, unreduced, exactly 0 with zero gradient outside the mask.

    Raises:
        TypeError, ValueError: dtypes, shapes or τ do not fit.

    Source: arXiv 2603.10069, eqs. 9 to 11.

    >>> logprobs, old = torch.tensor([[-1.5, -1.0, -0.5]]), torch.full((1, 3), -1.0)
    >>> sapo_penalty(logprobs, old, torch.tensor([[1.0]]), torch.ones(1, 3, dtype=torch.bool)).tolist()
    [[0.5, 0.0, 0.0]]
    """
    if not 0 < tau < math.inf:
        raise ValueError(
            f"tau={tau} must be above 0 and finite; it is the ratio below which a token counts (paper: 1.0)"
        )
    logprobs = check_logprobs(logprobs, loss_mask)
    advantages = check_per_row("advantages", advantages, logprobs)
    selected = advantages > 0 if preserved is None else check_flags("preserved", preserved, logprobs)
    decrease = check_paired("old_logprobs", old_logprobs, logprobs) - logprobs
    active = loss_mask & selected & (decrease.detach() > -math.log(tau))
    return torch.where(active, decrease, 0.0)


def adaptive_answer_weight(
    mean_valid_searches: float,
    *,
    schedule: Literal["paper", "code"] = "paper",
    target: float = 2.0,
    base: float = 1.0,
) -> float:
    """`answer_weight` of a step, from how much the policy searches: the less it searches, the lower the weight.

        schedule="paper":  min(1, base · V / target)                      0.5 at one search, 1 at two
        schedule="code":   min(1, base · max(V − 1, 0) / (target − 1))    0 at one search, 1 at two

    Args:
        mean_valid_searches: V, valid searches per rollout, mean over the whole rollout batch.
        schedule: the paper's or the released code's.
        target: searches per rollout at which the weight is `base`.
        base: the weight at the target. The code's `MASK_WEIGHT` is base · λ, so its script's 0.2 with λ = 0.2 is the
            default 1.

    Returns:
        In [0, 1].

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
    return min(max(base * (mean_valid_searches - lowest) / (target - lowest), 0.0), 1.0)


def _answer_weights(answer_mask: Tensor | None, answer_weight: float | Tensor, logprobs: Tensor) -> Tensor | None:
    """Token weights [..., T], or None if all are 1."""
    if answer_mask is not None:
        check_tensor("answer_mask", answer_mask)
    if answer_mask is not None and (answer_mask.dtype != torch.bool or answer_mask.shape != logprobs.shape):
        raise ValueError(
            f"answer_mask must be bool of shape {list(logprobs.shape)}, not {answer_mask.dtype} of shape "
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
    weight = answer_weight.detach().to(logprobs.dtype) if isinstance(answer_weight, Tensor) else answer_weight
    return torch.where(answer_mask, weight, logprobs.new_ones(()))
