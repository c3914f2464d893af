"""SimpleTIR: rollouts with an invalid turn are left out of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group


class DropVoid(Method):
    """Leave rollouts with an invalid turn out of the loss. Their rewards still count in the group mean."""

    name: ClassVar = "drop_void"
    source: ClassVar = "SimpleTIR, [arXiv 2509.02479](https://arxiv.org/abs/2509.02479)"
    elsewhere: ClassVar = "its loss does not see which turns are invalid"

    def drop_by_rollout(self, batch: TokenBatch, groups: Sequence[Group]) -> Tensor:
        """All tokens of rollouts with an invalid turn."""
        import torch

        from holdfast.agent.trajectory import Invalid
        from holdfast.losses import void_turn_mask

        void = [
            any(isinstance(turn.action, Invalid) for turn in t.turns) for group in groups for t in group.trajectories
        ]
        return batch.loss_mask & ~void_turn_mask(batch.loss_mask, torch.tensor(void)[:, None])
