"""IPO, prime-rl's trust region: tokens whose probability has moved far from the sampler's are left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class IPO(Method):
    """Leave tokens out of the policy loss whose probability is more than `eps` above or below that of the sampler.

    prime-rl has no other clip: set `loss.clip_low = 1` and a large `loss.clip_high` for its loss.
    """

    eps: float = Field(0.3, gt=0, lt=1)
    """How far the probability of a token may move."""

    name: ClassVar = "ipo"
    source: ClassVar = "INTELLECT Policy Optimization, prime-rl's default loss"
    needs: ClassVar = frozenset({"sampler", "sampler's tokens"})
    hosts: ClassVar = {
        "trl": "TRL bounds ratios, not probabilities",
        "verl": "verl bounds probabilities on the side of the advantage only (loss.surrogate = 'dppo')",
    }

    def drop_by_policy(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """Tokens that have moved too far."""
        from holdfast.losses import ipo_mask

        assert micro.sampler_logprobs is not None
        return ~ipo_mask(logprobs, micro.sampler_logprobs, micro.learned_mask, eps=self.eps)
