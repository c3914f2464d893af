"""IPO, prime-rl's trust region: tokens whose probability has moved far from the sampler's are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


_MOST = 1e4
"""prime-rl's bound of the ratio."""


class IPO(Method):
    """Leave tokens out of the policy loss whose probability is more than `eps` above or below that of the sampler, and
    take the ratio to the sampler, at most 10,000.

    prime-rl has no other clip: set `loss.clip_low = 1` and `loss.clip_high = 1e4` for its loss.
    """

    eps: float = Field(0.3, gt=0, lt=1)
    """How far the probability of a token may move."""

    name: ClassVar = "ipo"
    source: ClassVar = "INTELLECT Policy Optimization, prime-rl's default loss"
    needs: ClassVar = frozenset({"sampler", "sampler's tokens"})

    def weights(self, micro: TokenBatch) -> Tensor:
        """Old policy / sampler, which makes the ratio of the loss, policy / old policy, one to the sampler."""
        assert micro.old_logprobs is not None and micro.sampler_logprobs is not None
        return (micro.old_logprobs - micro.sampler_logprobs).exp().clamp(max=_MOST)

    def drop_by_policy(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """Tokens that have moved too far."""
        from holdfast.losses import ipo_mask

        assert micro.sampler_logprobs is not None
        return ~ipo_mask(logprobs, micro.sampler_logprobs, micro.learned_mask, eps=self.eps)
