"""A smaller weight, or none, for rollouts with A < 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class NegativeWeight(Method):
    """Multiply the policy loss of rollouts with A < 0 by `weight`. At 0, only rollouts with A > 0 train."""

    weight: float = Field(0.0, ge=0, le=1)
    """Weight of rollouts with A < 0 in the policy loss."""

    name: ClassVar = "negative_weight"
    source: ClassVar = "a control: positive rollouts alone"
    needs: ClassVar = frozenset({"rollout advantages"})
    acts_on: ClassVar = "it weights rollouts by the sign of their advantage"
    elsewhere: ClassVar = "its loss gives all rollouts the same weight"

    def weights(self, micro: TokenBatch) -> Tensor:
        """`weight` where A < 0, otherwise 1."""
        import torch

        return torch.where(micro.advantages < 0, self.weight, 1.0).expand(micro.loss_mask.shape)
