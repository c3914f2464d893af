"""The policy losses that `loss.surrogate` chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.losses import cispo_loss, clipped_policy_loss, dppo_mask

PolicyLoss = Callable[[TokenBatch, Tensor, Any], tuple[Tensor, Tensor | None]]
"""(batch, log-probs [B, T], the `[loss]` section) -> policy loss [B, T], and the tokens it keeps; None: all."""


def _arguments(micro: TokenBatch, logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert micro.old_logprobs is not None
    return logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask


def _clip(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, None]:
    policy = clipped_policy_loss(
        *_arguments(micro, logprobs),
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        dual_clip=loss.dual_clip,
        ratio=loss.ratio,
        action_ids=micro.action_ids,
    )
    return policy, None


def _cispo(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, None]:
    return cispo_loss(*_arguments(micro, logprobs), clip_low=loss.clip_low, clip_high=loss.clip_high), None


def _dppo(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    arguments = _arguments(micro, logprobs)
    keep = dppo_mask(*arguments, low=loss.clip_low, high=loss.clip_high)
    return clipped_policy_loss(*arguments, clip_low=1.0, clip_high=math.inf), keep


SURROGATES: Mapping[str, PolicyLoss] = {"clip": _clip, "cispo": _cispo, "dppo": _dppo}
"""`loss.surrogate` -> its policy loss."""
