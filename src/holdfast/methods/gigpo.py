"""GiGPO: credit for single actions, by comparison with other actions that rollouts took in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group

_WHY = "its advantages are of whole rollouts"


class GiGPO(Method):
    """Add an advantage of each action to that of its rollout: its return against those of other actions that rollouts
    of the question took in the same state.

        A(action) = A(rollout) + weight · (R − mean R) / std R          R = gamma^(actions after it) · reward

    Two actions are in the same state if they are the first, or follow the same observation. An action that is alone in
    its state gets no credit of its own.
    """

    weight: float = Field(1.0, gt=0)
    """Weight of the actions' advantages beside those of rollouts."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount for every action that follows. At 1, the first actions have the advantage of their rollouts."""
    scale: bool = True
    """Divide by the standard deviation of the returns in a state."""

    name: ClassVar = "gigpo"
    source: ClassVar = "GiGPO, [arXiv 2505.10978](https://arxiv.org/abs/2505.10978)"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it adds to advantages within groups"
    hosts: ClassVar = {"trl": _WHY, "verl": _WHY}

    def credit(self, batch: TokenBatch, groups: Sequence[Group]) -> Tensor:
        """The weighted advantages of actions, on their tokens."""
        import torch

        from holdfast.losses import group_advantages

        rollouts = [(group.id, t) for group in groups for t in group.trajectories]
        actions = [(row, k) for row, (_, t) in enumerate(rollouts) for k in range(len(t.turns))]
        states: list[tuple[str, tuple[int, ...]]] = []
        returns, valid = [], []
        for row, k in actions:
            question, t = rollouts[row]
            states.append((question, t.turns[k - 1].observation if k else ()))
            returns.append(self.gamma ** (len(t.turns) - 1 - k) * (t.reward or 0.0))
            valid.append(not t.status.is_failure)
        number = {state: n for n, state in enumerate(dict.fromkeys(states))}
        ids = torch.tensor([number[state] for state in states], dtype=torch.long)
        advantages = group_advantages(torch.tensor(returns), ids, scale=self.scale, valid=torch.tensor(valid))[:, 0]
        advantages = torch.where(torch.bincount(ids)[ids] > 1, advantages, 0.0) if len(ids) else advantages
        credit = torch.zeros_like(batch.rollout_logprobs)
        for (row, k), advantage in zip(actions, advantages.tolist(), strict=True):
            credit[row, batch.action_ids[row] == k + 1] = self.weight * advantage
        return credit
