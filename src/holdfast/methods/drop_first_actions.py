"""First searches of incorrect rollouts that a correct one shares are left out of the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group


class DropFirstActions(Method):
    """Leave the first search of an incorrect rollout out of the loss if the first search of a correct rollout of the
    same question found the same passages."""

    name: ClassVar = "drop_first_actions"
    source: ClassVar = "proposed by LLDS, section 5.3, [arXiv 2512.04220](https://arxiv.org/abs/2512.04220)"
    needs: ClassVar = frozenset({"rollout advantages"})
    acts_on: ClassVar = "it compares the rollouts of a group"
    elsewhere: ClassVar = "its loss does not see which searches found the same passages"

    def drop_by_rollout(self, batch: TokenBatch, groups: Sequence[Group]) -> Tensor:
        """First actions of incorrect rollouts that a correct one shares."""
        import torch

        from holdfast.agent.metrics import first_action_matches
        from holdfast.losses import first_action_mask

        matched = torch.tensor([bool(match) for group in groups for match in first_action_matches(group)])
        return batch.loss_mask & ~first_action_mask(batch.loss_mask, batch.action_ids, matched[:, None])
