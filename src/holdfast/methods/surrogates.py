"""The policy losses that `loss.surrogate` chooses from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch

Policy = Callable[["TokenBatch", "Tensor", Any], "tuple[Tensor, Tensor | None]"]
"""(batch, log-probs [B, T], the `[loss]` section) -> policy loss [B, T], and the tokens it keeps; None: all."""
Problems = Callable[[Any], Iterator[str]]


def _none(loss: Any) -> Iterator[str]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """A policy loss."""

    policy: Policy
    clips: bool = False
    """Whether it stops the gradient outside the clip, so that clipped tokens can be counted."""
    problems: Problems = _none
    """Settings of `[loss]` that it cannot use."""


def _arguments(micro: TokenBatch, logprobs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert micro.old_logprobs is not None
    return logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask


# ---- PPO's clip


def _clip(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, None]:
    from holdfast.losses import clipped_policy_loss

    policy = clipped_policy_loss(
        *_arguments(micro, logprobs),
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        dual_clip=loss.dual_clip,
        ratio=loss.ratio,
        action_ids=micro.action_ids,
    )
    return policy, None


def _of_the_clip_alone(loss: Any) -> Iterator[str]:
    """Settings that only PPO's clip reads."""
    where = f"with loss.surrogate = {loss.surrogate!r}"
    if loss.dual_clip is not None:
        yield f"loss.dual_clip = {loss.dual_clip} {where}: only PPO's clip has a second bound. Leave it out"
    if loss.ratio != "token":
        yield (
            f"loss.ratio = {loss.ratio!r} {where}: this surrogate uses the ratio of single tokens. Leave loss.ratio at "
            "'token'"
        )


# ---- CISPO


def _cispo(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, None]:
    from holdfast.losses import cispo_loss

    return cispo_loss(*_arguments(micro, logprobs), clip_low=loss.clip_low, clip_high=loss.clip_high), None


# ---- DPPO


def _dppo(micro: TokenBatch, logprobs: Tensor, loss: Any) -> tuple[Tensor, Tensor]:
    from holdfast.losses import clipped_policy_loss, dppo_mask

    arguments = _arguments(micro, logprobs)
    keep = dppo_mask(*arguments, low=loss.clip_low, high=loss.clip_high)
    return clipped_policy_loss(*arguments, clip_low=1.0, clip_high=math.inf), keep


def _dppo_problems(loss: Any) -> Iterator[str]:
    yield from _of_the_clip_alone(loss)
    for key in ("clip_low", "clip_high"):
        if (bound := getattr(loss, key)) >= 1:
            yield (
                f"loss.{key} = {bound:g} with loss.surrogate = 'dppo': a probability cannot change by 1 or more, so no "
                f"token would be left out. Set loss.{key} below 1, for example 0.2"
            )


SURROGATES: Mapping[str, Surrogate] = {
    "clip": Surrogate(policy=_clip, clips=True),
    "cispo": Surrogate(policy=_cispo, problems=_of_the_clip_alone),
    "dppo": Surrogate(policy=_dppo, problems=_dppo_problems),
}
"""`loss.surrogate` -> its policy loss."""
