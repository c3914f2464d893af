"""What the methods of `[loss.methods]` do to a batch. `build` makes an operation of the settings of each.

What happens in one place only is written there: NTHR's weights in `train/learner.py`, score centering in
`train/objective.py`, further rollouts and supervised steps in `train/trainer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import stdev
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.metrics.rollouts import first_action_matches
from holdfast.agent.trajectory import Group, Invalid
from holdfast.losses import (
    clip_cov_mask,
    ipo_mask,
    off_policy_sequence_mask,
    sampler_weights,
    second_moment_cut,
    second_moments,
)
from holdfast.methods.credit import action_credit
from holdfast.methods.registry import (
    IPO,
    M2PO,
    ClipCov,
    DropFirstActions,
    DropVoid,
    DynamicSampling,
    GiGPO,
    Method,
    Methods,
    NegativeWeight,
    OffPolicyMask,
    SamplerWeights,
    VarianceFilter,
)

_MAX_RATIO = 1e4
"""prime-rl's bound of IPO's ratio."""
_SLACK = 0.01
"""RAGEN-2's `selection_eps`: the sum may miss its share by this much."""


class Operation:
    """What a method does, in the order of a step. A hook that it does not override does nothing.

    B rollouts, T tokens.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def select(self, groups: Sequence[Group]) -> Sequence[bool]:
        """Which scored groups to learn from. If a step has none, it learns from all."""
        return [True] * len(groups)

    def on_rollouts(self, batch: TokenBatch, groups: Sequence[Group]) -> TokenBatch:
        """The batch with other advantages, or without tokens: judged by the rollouts.

        Args:
            batch: all rollouts of `groups`, with their advantages. On the CPU.
            groups: where the rows come from, in order.
        """
        return batch

    def on_old_policy(self, micro: TokenBatch) -> TokenBatch:
        """A micro-batch without tokens, or with weights: judged by its `old_logprobs`, which are those of the loss."""
        return micro

    judges_steps: ClassVar[bool] = False
    """Whether `on_step` does something: it costs a forward pass."""

    def on_step(self, mini: Sequence[TokenBatch], logprobs: Sequence[Tensor]) -> list[TokenBatch]:
        """The micro-batches of an optimizer step, with weights: judged together, by the policy as it is now."""
        return list(mini)

    def keeps(self, micro: TokenBatch, logprobs: Tensor) -> Tensor | None:
        """bool [B, T]: tokens that stay in the policy loss, judged by the policy as it is now; None: all."""
        return None

    @property
    def judges_by_policy(self) -> bool:
        """Whether it judges tokens by the policy as it is now, so that an update must pass over all of them."""
        return self.judges_steps or type(self).keeps is not Operation.keeps


def selected(groups: Sequence[Group], operations: Sequence[Operation]) -> list[bool]:
    """Which groups every operation would learn from."""
    votes = [[True] * len(groups), *(operation.select(groups) for operation in operations)]
    return [all(of_group) for of_group in zip(*votes, strict=True)]


# ---- groups


class _DynamicSampling(Operation):
    def select(self, groups: Sequence[Group]) -> list[bool]:
        """Groups whose rewards differ."""
        return [group.mixed for group in groups]


class _VarianceFilter(Operation):
    settings: VarianceFilter

    def select(self, groups: Sequence[Group]) -> list[bool]:
        """The groups with the largest deviation, until they have their share."""
        scored = [[t.reward or 0.0 for t in group.trajectories if not t.status.is_failure] for group in groups]
        deviations = [stdev(rewards) if len(rewards) > 1 else 0.0 for rewards in scored]
        keep, left = [False] * len(groups), self.settings.share * sum(deviations) - _SLACK
        for index in sorted(range(len(groups)), key=lambda i: -deviations[i]):
            if left <= 0 or deviations[index] == 0:
                break
            keep[index], left = True, left - deviations[index]
        return keep


# ---- rollouts


class _GiGPO(Operation):
    settings: GiGPO

    def on_rollouts(self, batch: TokenBatch, groups: Sequence[Group]) -> TokenBatch:
        """With advantages of actions."""
        return replace(batch, advantages=batch.advantages + action_credit(self.settings, batch, groups))


class _DropVoid(Operation):
    def on_rollouts(self, batch: TokenBatch, groups: Sequence[Group]) -> TokenBatch:
        """Without rollouts with an invalid turn."""
        rollouts = [t for group in groups for t in group.trajectories]
        void = torch.tensor([any(isinstance(turn.action, Invalid) for turn in t.turns) for t in rollouts])
        return batch.without(void[:, None])


class _DropFirstActions(Operation):
    def on_rollouts(self, batch: TokenBatch, groups: Sequence[Group]) -> TokenBatch:
        """Without first actions of incorrect rollouts that a correct one shares."""
        matched = torch.tensor([bool(match) for group in groups for match in first_action_matches(group)])
        return batch.without(matched[:, None] & (batch.action_ids == 1))


# ---- the old policy


class _SamplerWeights(Operation):
    settings: SamplerWeights

    def on_old_policy(self, micro: TokenBatch) -> TokenBatch:
        """With weights, or with `keep = "reject"` without the tokens whose weight is outside the bounds."""
        s = self.settings
        weights = _sampler_weights(s, micro, keep=s.keep, low=s.low, high=s.high)
        return micro.without(weights == 0) if s.keep == "reject" else micro.weighted(weights)


class _NegativeWeight(Operation):
    settings: NegativeWeight

    def on_old_policy(self, micro: TokenBatch) -> TokenBatch:
        """With `weight` where A < 0."""
        weights = torch.where(micro.advantages < 0, self.settings.weight, 1.0)
        return micro.weighted(weights.expand(micro.loss_mask.shape))


class _IPO(Operation):
    settings: IPO

    def on_old_policy(self, micro: TokenBatch) -> TokenBatch:
        """With old policy / sampler, which makes the ratio of the loss, policy / old policy, one to the sampler."""
        assert micro.old_logprobs is not None and micro.sampler_logprobs is not None
        return micro.weighted((micro.old_logprobs - micro.sampler_logprobs).exp().clamp(max=_MAX_RATIO))

    def keeps(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """Tokens that have not moved too far."""
        assert micro.sampler_logprobs is not None
        return ipo_mask(logprobs, micro.sampler_logprobs, micro.learned_mask, eps=self.settings.eps)


def weight_percentiles(settings: SamplerWeights, micros: Sequence[TokenBatch]) -> dict[str, float]:
    """Two percentiles of the weights of `sampler_weights` before their bounds; none without sampled tokens."""
    unbounded = [_sampler_weights(settings, m, keep="truncate", low=0.0, high=math.inf)[m.loss_mask] for m in micros]
    weights = torch.cat(unbounded).cpu().numpy()
    if not len(weights):
        return {}
    low, high = np.quantile(weights, (0.05, 0.95)).tolist()
    return {"sampler/weight_p05": low, "sampler/weight_p95": high}


def _sampler_weights(settings: SamplerWeights, micro: TokenBatch, **bounds: Any) -> Tensor:
    assert micro.old_logprobs is not None and micro.sampler_logprobs is not None
    return sampler_weights(
        micro.old_logprobs,
        micro.sampler_logprobs,
        micro.loss_mask,
        level=settings.level,
        aggregate=settings.aggregate,
        action_ids=micro.action_ids,
        **bounds,
    )


# ---- the policy as it is now


class _ClipCov(Operation):
    settings: ClipCov

    def keeps(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """All but the tokens that are drawn. The draw depends on the micro-batch alone, so a resumed run repeats it."""
        generator = torch.Generator().manual_seed(int(micro.token_ids.sum()))
        draws = torch.rand(micro.token_ids.shape, generator=generator).to(logprobs.device)
        s = self.settings
        return clip_cov_mask(
            logprobs, micro.advantages, micro.learned_mask, draws, share=s.share, low=s.low, high=s.high
        )


class _OffPolicyMask(Operation):
    settings: OffPolicyMask

    def keeps(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """All but rollouts with A < 0 that fell by more than `threshold`."""
        assert micro.old_logprobs is not None
        return off_policy_sequence_mask(
            logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask, threshold=self.settings.threshold
        )


class _M2PO(Operation):
    settings: M2PO
    judges_steps = True

    def on_step(self, mini: Sequence[TokenBatch], logprobs: Sequence[Tensor]) -> list[TokenBatch]:
        """With weight 0 where a ratio is above the cut of the whole step."""
        moments = []
        for micro, now in zip(mini, logprobs, strict=True):
            assert micro.old_logprobs is not None
            moments.append(second_moments(now, micro.old_logprobs, micro.advantages, micro.learned_mask))
        cut = second_moment_cut(torch.cat([of_micro.flatten() for of_micro in moments]), self.settings.bound)
        return [
            micro.weighted(torch.where(of_micro >= cut, 0.0, 1.0))
            for micro, of_micro in zip(mini, moments, strict=True)
        ]

    def keeps(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """The tokens to which `on_step` left a weight."""
        assert micro.policy_weights is not None
        return micro.policy_weights != 0


OPERATIONS: Mapping[type[Method], type[Operation]] = {
    DynamicSampling: _DynamicSampling,
    VarianceFilter: _VarianceFilter,
    GiGPO: _GiGPO,
    DropVoid: _DropVoid,
    DropFirstActions: _DropFirstActions,
    ClipCov: _ClipCov,
    SamplerWeights: _SamplerWeights,
    NegativeWeight: _NegativeWeight,
    OffPolicyMask: _OffPolicyMask,
    IPO: _IPO,
    M2PO: _M2PO,
}


def build(methods: Methods) -> tuple[Operation, ...]:
    """The operations of the methods that are on."""
    return tuple(OPERATIONS[type(method)](method) for method in methods.used if type(method) in OPERATIONS)
