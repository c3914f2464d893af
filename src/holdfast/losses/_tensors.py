"""What every loss shares: shape checks, the compute dtype, and sums over runs of tokens. Private.

Nothing here reads a value back from the device: a check that would need one (`mask.sum().item()`) is not made.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""|log ratio| is clamped to this before exp(); e**20 is 5e8, far outside anything a clip keeps."""


def upcast(x: Tensor) -> Tensor:
    """float16 and bfloat16 become float32; float32 and float64 stay (no copy)."""
    return x.float() if x.element_size() < 4 else x


def check_tensor(name: str, value: object) -> None:
    """Refuse a list, an array or None, which would only fail later, with AttributeError."""
    if not isinstance(value, Tensor):
        kind = "None" if value is None else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be a tensor, not {kind}; torch.as_tensor makes one of numbers")


def check_logprobs(logprobs: Tensor, loss_mask: Tensor, name: str = "logprobs") -> Tensor:
    """`logprobs` [..., T] in the dtype to compute in. Refuses a mask that is not bool or has another shape."""
    check_tensor(name, logprobs)
    if not logprobs.is_floating_point():
        raise TypeError(f"{name} must be floating point, not {logprobs.dtype}")
    if logprobs.dim() == 0:
        raise ValueError(f"{name} must have a token dimension: shape [..., T], not a scalar")
    check_mask(loss_mask, logprobs)
    return upcast(logprobs)


def check_mask(loss_mask: Tensor, like: Tensor) -> None:
    """A float mask could carry weights that would be silently dropped, so only bool is accepted."""
    check_tensor("loss_mask", loss_mask)
    if loss_mask.dtype != torch.bool:
        raise TypeError(
            f"loss_mask must be bool, not {loss_mask.dtype}, because weights in a mask would be dropped; "
            "pass loss_mask.bool()"
        )
    if loss_mask.shape != like.shape:
        raise ValueError(
            f"loss_mask has shape {_shape(loss_mask)}, but the tokens have {_shape(like)}; they must agree"
        )


def check_paired(name: str, values: Tensor, like: Tensor) -> Tensor:
    """Old or reference log-probs: same shape as `like`, detached, in its dtype."""
    check_tensor(name, values)
    if values.shape != like.shape:
        raise ValueError(f"{name} has shape {_shape(values)}, but logprobs have {_shape(like)}; they must agree")
    return values.detach().to(like.dtype)


def check_per_row(name: str, values: Tensor, like: Tensor) -> Tensor:
    """`values` [..., 1] (one per row) or [..., T] (one per token), detached. `[B]` for tokens `[B, T]` is refused."""
    check_tensor(name, values)
    row = (*like.shape[:-1], 1)
    if values.shape != like.shape and values.shape != row:
        raise ValueError(
            f"{name} has shape {_shape(values)}, but the tokens have {_shape(like)}; pass one value per row, shape "
            f"{list(row)} (for a [B] tensor: {name}[:, None]), or one per token"
        )
    return values.detach()


def check_flags(name: str, values: Tensor, like: Tensor) -> Tensor:
    """`check_per_row` for a bool tensor."""
    check_tensor(name, values)
    if values.dtype != torch.bool:
        raise TypeError(f"{name} must be bool, not {values.dtype}; pass {name}.bool()")
    return check_per_row(name, values, like)


def check_ids(name: str, ids: Tensor | None, like: Tensor) -> None:
    """`ids` is None or an integer tensor [..., T]."""
    if ids is None:
        return
    check_tensor(name, ids)
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, not {ids.dtype}")
    if ids.shape != like.shape:
        raise ValueError(f"{name} has shape {_shape(ids)}, but the tokens have {_shape(like)}; they must agree")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r} does not exist; choose one of {', '.join(map(repr, choices))}")


def check_rows(like: Tensor, what: str) -> None:
    """1-D tokens do not say where a sequence ends."""
    if like.dim() == 1:
        raise ValueError(
            f"{what} sums over each sequence, and tokens of shape {_shape(like)} do not say where one ends; pass rows "
            "[B, T], a single sequence as [1, T]"
        )


def run_index(ids: Tensor) -> Tensor:
    """Number the runs of equal ids: flat int64 [N] over tokens [..., T], 0 for the first run.

    A run ends where the id changes and at the end of a row. There are at most N runs, so a buffer of N slots always
    suffices, without a read from the device.
    """
    starts = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
    starts[..., 1:] = ids[..., 1:] != ids[..., :-1]
    return starts.flatten().cumsum(0) - 1


def run_sums(values: Tensor, index: Tensor) -> Tensor:
    """Sum of `values` [..., T] over each run of `index`: flat [N], zero in the slots that no run uses.

    A scatter and not a difference of prefix sums: a run of zeros must sum to exactly 0, or a strict gate would open.
    """
    sums = torch.zeros(index.shape, dtype=values.dtype, device=values.device)
    return sums.index_add_(0, index, values.flatten())


def _shape(x: Tensor) -> list[int]:
    return list(x.shape)
