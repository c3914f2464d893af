"""DeepSeek-V3.2's off-policy sequence mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class OffPolicyMask(Method):
    """Leave rollouts with A < 0 out of the policy loss once their log-prob has fallen by more than `threshold`."""

    threshold: float = Field(0.5, gt=0)
    """Largest fall of the mean log-prob since the rollout was sampled, in nats per token."""

    name: ClassVar = "off_policy_mask"
    source: ClassVar = "DeepSeek-V3.2, [arXiv 2512.02556](https://arxiv.org/abs/2512.02556)"
    needs: ClassVar = frozenset({"rollout advantages", "negative rollouts", "drift"})
    acts_on: ClassVar = "it leaves out rollouts by the sign of their advantage"

    def drop_by_policy(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """Rollouts with A < 0 that fell by more than `threshold`."""
        from holdfast.losses import off_policy_sequence_mask

        assert micro.old_logprobs is not None
        return ~off_policy_sequence_mask(
            logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask, threshold=self.threshold
        )
