"""From per-token losses to one number. The mean is chosen here and nowhere else."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from holdfast.losses._tensors import (
    check_choice,
    check_mask,
    check_rows,
    check_tensor,
    upcast,
)

Mode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


def reduce_loss(
    per_token: Tensor,
    loss_mask: Tensor,
    *,
    mode: Mode = "token-mean",
    denominator: float | Tensor | None = None,
    max_tokens: int | None = None,
) -> Tensor:
    """Reduce a per-token loss over the mask.

        x_ik: loss of token k of sequence i, n_i: its tokens in the mask, N: tokens, S: sequences with n_i > 0

        "token-mean"                Σ_ik x_ik / N                       N: `denominator`
        "token-sum"                 Σ_ik x_ik                           no denominator
        "seq-mean-token-sum"        Σ_i (Σ_k x_ik) / S                  S: `denominator`
        "seq-mean-token-mean"       Σ_i (Σ_k x_ik / n_i) / S            S: `denominator`
        "seq-mean-token-sum-norm"   Σ_i (Σ_k x_ik / max_tokens) / S     S: `denominator`     (Dr.GRPO)

    When an optimizer step is split into micro-batches or ranks, pass as `denominator` the count of the **whole step**
    and sum the results: the sum equals that of one big batch, wherever the splits are. Without it each call divides by
    its own count, and the mean over micro-batches gives short ones too much weight.

    LLDS's paper divides a penalty by the preserved tokens: reduce it over `preserved_mask`. LLDS's code divides it as
    the policy loss: reduce it over the loss mask.

    Args:
        per_token: float [..., T]; values outside the mask are not read, not even NaN.
        loss_mask: bool [..., T].
        mode: one of the five, named as in verl.
        denominator: tokens or sequences (see above) of the whole optimizer step; a number or a 0-d tensor. None: those
            of this call. A count of 0 divides by 1, so an empty step gives exactly 0.
        max_tokens: for "seq-mean-token-sum-norm", a constant of the run (the longest response allowed). verl falls back
            to the padded width, which changes from batch to batch; here it is required.

    Returns:
        Scalar, with a graph even when the mask is empty (0, zero gradient).

    Raises:
        TypeError, ValueError: dtypes, shapes or settings that cannot work.

    Source: verl's `agg_loss`. Older verl versions leave out the division by S in "seq-mean-token-sum-norm".

    Rows of 1 and 2 tokens: the token mean is (4 + 1 + 1) / 3, the mean of row means (4 + 1) / 2.

    >>> x = torch.tensor([[4.0, 9.0], [1.0, 1.0]])
    >>> mask = torch.tensor([[True, False], [True, True]])
    >>> reduce_loss(x, mask).item(), reduce_loss(x, mask, mode="seq-mean-token-mean").item()
    (2.0, 2.5)
    """
    check_choice("mode", mode, get_args(Mode))
    check_tensor("per_token", per_token)
    if per_token.dim() == 0 or not per_token.is_floating_point():
        raise ValueError(f"per_token must be floating point of shape [..., T], not {per_token.dtype} {per_token.shape}")
    check_mask(loss_mask, per_token)
    x = torch.where(loss_mask, upcast(per_token), 0.0)
    _check_settings(mode, denominator, max_tokens)
    if mode == "token-sum":
        return x.sum()
    if mode == "token-mean":
        return _divide(x.sum(), loss_mask.sum() if denominator is None else denominator)
    check_rows(x, f"mode={mode!r}")
    if mode == "seq-mean-token-mean":
        x = x / loss_mask.sum(-1, keepdim=True).clamp(min=1)
    elif max_tokens is not None:  # "seq-mean-token-sum-norm": no other mode may be given one
        x = x / max_tokens
    return _divide(x.sum(), loss_mask.any(-1).sum() if denominator is None else denominator)


def _check_settings(mode: str, denominator: float | Tensor | None, max_tokens: int | None) -> None:
    if mode == "token-sum" and denominator is not None:
        raise ValueError("mode='token-sum' divides by nothing, so denominator would be ignored; leave it out")
    if isinstance(denominator, Tensor):
        if denominator.dim() != 0:
            raise ValueError(f"denominator must be one number, not a tensor of shape {list(denominator.shape)}")
    elif denominator is not None and not denominator >= 0:
        raise ValueError(f"denominator={denominator} must be a count of tokens or sequences, not negative")
    if mode == "seq-mean-token-sum-norm":
        if max_tokens is None:
            raise ValueError(
                "mode='seq-mean-token-sum-norm' divides by max_tokens, a constant of the run, and the padded width is "
                "not one; pass max_tokens, for example the longest response allowed"
            )
        if not max_tokens > 0:
            raise ValueError(f"max_tokens={max_tokens} must be above 0")
    elif max_tokens is not None:
        raise ValueError(f"max_tokens={max_tokens} would be ignored by mode={mode!r}; leave it out")


def _divide(total: Tensor, count: float | Tensor) -> Tensor:
    if not isinstance(count, Tensor):
        return total / (count or 1)
    return total / torch.where(count > 0, count, 1)
