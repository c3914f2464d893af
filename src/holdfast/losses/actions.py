"""Which tokens belong to which action. The one place that finds runs in a mask."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.losses._tensors import check_ids


def action_ids_from_mask(loss_mask: Tensor, *, sequence_ids: Tensor | None = None) -> Tensor:
    """Number the runs of ones: 0 outside, k on the tokens of the k-th run of a sequence.

    Two actions with no observation between them are one run, and no mask can tell them apart. Whoever knows the turns
    passes explicit ids instead (`TokenBatch.action_ids`); this function is for hosts that hand over only a mask.

    Args:
        loss_mask: bool [..., T], True on tokens the model sampled.
        sequence_ids: int [..., T] for packed rows: a run ends and the numbering starts again where the id changes.

    Returns:
        int64 [..., T].

    Raises:
        TypeError: the mask is not bool, or `sequence_ids` are not integers.
        ValueError: shapes differ.

    Source: LLDS's authors call a run a chunk (arXiv 2512.04220, code). Their chunks are runs of mask · 1[A ≥ 0], which
    is the same when the advantage is one value per row.

    >>> action_ids_from_mask(torch.tensor([[False, True, True, False, True]])).tolist()
    [[0, 1, 1, 0, 2]]
    """
    if loss_mask.dtype != torch.bool:
        raise TypeError(f"loss_mask must be bool, not {loss_mask.dtype}; pass loss_mask.bool()")
    if loss_mask.dim() == 0:
        raise ValueError("loss_mask must have a token dimension: shape [..., T], not a scalar")
    check_ids("sequence_ids", sequence_ids, loss_mask)
    starts = loss_mask.clone()
    starts[..., 1:] &= ~loss_mask[..., :-1]
    if sequence_ids is None:
        return starts.cumsum(-1) * loss_mask
    new_sequence = torch.ones_like(loss_mask)
    new_sequence[..., 1:] = sequence_ids[..., 1:] != sequence_ids[..., :-1]
    starts |= new_sequence & loss_mask
    count = starts.cumsum(-1)
    # Runs that started in earlier sequences of the row. It never falls along the row, so a running maximum carries it.
    before = torch.where(new_sequence, count - starts.long(), 0).cummax(-1).values
    return (count - before) * loss_mask
