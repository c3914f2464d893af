"""GiGPO: credit for single actions, by comparison with other actions that rollouts took in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group


class GiGPO(Method):
    """Add an advantage of each action to that of its rollout: its return against those of other actions that rollouts
    of the question took in the same state.

        A(action) = A(rollout) + weight · (R − mean R) / std R          R = gamma^(actions after it) · reward

    Two actions are in the same state if they are the first, or follow similar observations. An action that is alone in
    its state gets no credit of its own.
    """

    weight: float = Field(1.0, gt=0)
    """Weight of the actions' advantages beside those of rollouts."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount for every action that follows. At 1, the first actions have the advantage of their rollouts."""
    similarity: float = Field(0.9, gt=0, le=1)
    """How similar the text of an observation must be to that of the first in its state: twice the matching characters
    over all characters. 0.9 is that of the search agent of GiGPO's authors; 1: equal."""
    scale: bool = True
    """Divide by the standard deviation of the returns in a state."""

    name: ClassVar = "gigpo"
    source: ClassVar = "GiGPO, [arXiv 2505.10978](https://arxiv.org/abs/2505.10978)"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it adds to advantages within groups"
    elsewhere: ClassVar = "its advantages are of whole rollouts"

    def credit(self, batch: TokenBatch, groups: Sequence[Group], probed: Sequence[float]) -> Tensor:
        """The weighted advantages of actions, on their tokens."""
        import torch

        from holdfast.losses import group_advantages

        rollouts = [(group.id, t) for group in groups for t in group.trajectories]
        actions = [(row, k) for row, (_, t) in enumerate(rollouts) for k in range(len(t.turns))]
        states: dict[str, list[tuple[str, int]]] = {}
        """Question -> (text of the first observation, number) of each of its states."""
        numbers, returns, valid = [], [], []
        for row, k in actions:
            question, t = rollouts[row]
            seen, text = states.setdefault(question, []), t.turns[k - 1].observation_text if k else ""
            number = next((n for first, n in seen if _similar(first, text, self.similarity)), None)
            if number is None:
                number = sum(map(len, states.values()))
                seen.append((text, number))
            numbers.append(number)
            returns.append(self.gamma ** (len(t.turns) - 1 - k) * (t.reward or 0.0))
            valid.append(not t.status.is_failure)
        ids = torch.tensor(numbers, dtype=torch.long)
        advantages = group_advantages(torch.tensor(returns), ids, scale=self.scale, valid=torch.tensor(valid))[:, 0]
        advantages = torch.where(torch.bincount(ids)[ids] > 1, advantages, 0.0) if len(ids) else advantages
        credit = torch.zeros_like(batch.rollout_logprobs)
        for (row, k), advantage in zip(actions, advantages.tolist(), strict=True):
            credit[row, batch.action_ids[row] == k + 1] = self.weight * advantage
        return credit


def _similar(one: str, other: str, least: float) -> bool:
    """Whether two texts are so similar, as `difflib` measures it."""
    if one == other:
        return True
    matcher = SequenceMatcher(None, one, other)
    return least < 1 and matcher.real_quick_ratio() >= least and matcher.ratio() >= least
