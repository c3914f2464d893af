"""Which tokens a likelihood-preserving penalty may pull on."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from holdfast.losses._tensors import check_choice, check_flags, check_mask, check_per_row


def preserving_mask(
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    rule: Literal["nonnegative", "positive", "correct", "all"] = "nonnegative",
    correct: Tensor | None = None,
) -> Tensor:
    """The preserving set, as a mask over tokens.

        "nonnegative"   A ≥ 0                            LLDS's paper and code; SAPO's code
        "positive"      A > 0                            SAPO's paper
        "correct"       A > 0, or A = 0 and correct      ours
        "all"           whatever A                       SAPO's ablation, the rows without its condition on A

    The first three differ only in rollouts with A = 0, whose group all got the same reward. "nonnegative" preserves
    them all, so where reward is rare it also anchors the policy to its own errors; "positive" preserves none of them;
    "correct" preserves the all-right groups and not the all-wrong ones. "all" also holds on to what the loss pushes
    down, and is there to show what that costs.

    Args:
        advantages: float [..., 1] or [..., T], before any weighting.
        loss_mask: bool [..., T].
        rule: see above.
        correct: bool [..., 1] or [..., T], True where exact match is 1. Needed by the rule "correct"; the other rules
            do not look at it.

    Returns:
        bool [..., T]. False where the advantage is NaN.

    Raises:
        TypeError, ValueError: dtypes, shapes or the rule do not fit.

    Source: LLDS (arXiv 2512.04220, eqs. 4 and 5: i ∈ Pre), SAPO (2603.10069, eq. 11).

    >>> import torch
    >>> a, mask = torch.tensor([[1.0], [0.0], [0.0], [-1.0]]), torch.ones(4, 1, dtype=torch.bool)
    >>> right = torch.tensor([[True], [True], [False], [False]])
    >>> preserving_mask(a, mask, rule="correct", correct=right)[:, 0].tolist()
    [True, True, False, False]
    """
    check_choice("rule", rule, ("nonnegative", "positive", "correct", "all"))
    check_mask(loss_mask, loss_mask)
    a = check_per_row("advantages", advantages, loss_mask)
    if correct is not None:
        correct = check_flags("correct", correct, loss_mask)
    if rule == "nonnegative":
        return (a >= 0) & loss_mask
    if rule == "positive":
        return (a > 0) & loss_mask
    if rule == "all":
        return ~a.isnan() & loss_mask
    if correct is None:
        raise ValueError(
            "rule='correct' needs to know which rollouts are correct; pass correct, bool [..., 1] or [..., T], or use "
            "rule='positive', which preserves no rollout with A = 0"
        )
    return ((a > 0) | ((a == 0) & correct)) & loss_mask
