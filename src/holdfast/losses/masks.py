"""Masks over tokens: which tokens belong to which action, and which ones a penalty preserves."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from holdfast.losses._tensors import check_choice, check_flags, check_mask, check_per_row


def action_ids_from_mask(loss_mask: Tensor) -> Tensor:
    """Number the runs of True: 0 outside, k on the tokens of the k-th run of a row.

    Two actions with no observation between them are one run, and no mask can tell them apart. A host that knows the
    turns passes explicit ids instead (`TokenBatch.action_ids`); this function is for hosts that have only a mask.

    Args:
        loss_mask: bool [..., T], True on tokens the model sampled.

    Returns:
        int64 [..., T].

    Raises:
        TypeError, ValueError: the mask is not bool, or has no token dimension.

    Source: LLDS's authors call a run a chunk (arXiv 2512.04220, code).

    >>> import torch
    >>> action_ids_from_mask(torch.tensor([[False, True, True, False, True]])).tolist()
    [[0, 1, 1, 0, 2]]
    """
    check_mask(loss_mask, loss_mask)
    if loss_mask.dim() == 0:
        raise ValueError("loss_mask must have a token dimension: shape [..., T], not a scalar")
    starts = loss_mask.clone()
    starts[..., 1:] &= ~loss_mask[..., :-1]
    return starts.cumsum(-1) * loss_mask


def preserved_mask(
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    rule: Literal["nonnegative", "positive", "correct", "all"] = "nonnegative",
    correct: Tensor | None = None,
) -> Tensor:
    """The preserved tokens: those a penalty acts for.

        "nonnegative"   A ≥ 0                            LLDS's paper and code; SAPO's code
        "positive"      A > 0                            SAPO's paper
        "correct"       A > 0, or A = 0 and correct      ours
        "all"           any A                            SAPO's ablation, the rows without its condition on A

    The first three differ only in rollouts with A = 0, whose group all got the same reward. "nonnegative" preserves
    them all, so where reward is rare it also anchors the policy to its own errors. "positive" preserves none of them;
    "correct" preserves the all-correct groups and not the all-incorrect ones. "all" also preserves what the policy loss
    pushes down, and exists to show what that costs.

    Args:
        advantages: float [..., 1] or [..., T], before any weighting.
        loss_mask: bool [..., T].
        rule: see above.
        correct: bool [..., 1] or [..., T], True where exact match is 1. Required by the rule "correct"; the other rules
            ignore it.

    Returns:
        bool [..., T]. False where the advantage is NaN.

    Raises:
        TypeError, ValueError: dtypes, shapes or the rule do not fit.

    Source: LLDS (arXiv 2512.04220, eqs. 4 and 5: i ∈ Pre), SAPO (2603.10069, eq. 11).

    >>> import torch
    >>> advantages, mask = torch.tensor([[1.0], [0.0], [0.0], [-1.0]]), torch.ones(4, 1, dtype=torch.bool)
    >>> correct = torch.tensor([[True], [True], [False], [False]])
    >>> preserved_mask(advantages, mask, rule="correct", correct=correct)[:, 0].tolist()
    [True, True, False, False]
    """
    check_choice("rule", rule, ("nonnegative", "positive", "correct", "all"))
    check_mask(loss_mask, loss_mask)
    advantages = check_per_row("advantages", advantages, loss_mask)
    if correct is not None:
        correct = check_flags("correct", correct, loss_mask)
    if rule == "nonnegative":
        return (advantages >= 0) & loss_mask
    if rule == "positive":
        return (advantages > 0) & loss_mask
    if rule == "all":
        return ~advantages.isnan() & loss_mask
    if correct is None:
        raise ValueError(
            "rule='correct' needs to know which rollouts are correct; pass correct, bool [..., 1] or [..., T], or use "
            "rule='positive', which preserves no rollout with A = 0"
        )
    return ((advantages > 0) | ((advantages == 0) & correct)) & loss_mask
