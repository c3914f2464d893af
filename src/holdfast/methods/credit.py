"""Credit for actions (GiGPO), by other actions that rollouts took in the same place."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group
from holdfast.losses import group_advantages
from holdfast.methods.registry import GiGPO


def action_credit(settings: GiGPO, batch: TokenBatch, groups: Sequence[Group]) -> Tensor:
    """float [B, T]: the weighted advantages of actions, on their tokens. `groups` are where the rows come from."""
    rollouts = [(group.id, t) for group in groups for t in group.trajectories]
    actions = [(row, k) for row, (_, t) in enumerate(rollouts) for k in range(len(t.turns))]
    states: dict[str, list[tuple[str, int]]] = {}
    """Question -> (text of the first observation, number) of each of its states."""
    numbers, returns, valid = [], [], []
    for row, k in actions:
        question, t = rollouts[row]
        seen, text = states.setdefault(question, []), t.turns[k - 1].observation_text if k else ""
        number = next((n for first, n in seen if _similar(first, text, settings.similarity)), None)
        if number is None:
            number = sum(map(len, states.values()))
            seen.append((text, number))
        numbers.append(number)
        returns.append(settings.gamma ** (len(t.turns) - 1 - k) * (t.reward or 0.0))
        valid.append(not t.status.is_failure)
    ids = torch.tensor(numbers, dtype=torch.long)
    advantages = group_advantages(torch.tensor(returns), ids, scale=settings.scale, valid=torch.tensor(valid))[:, 0]
    advantages = torch.where(torch.bincount(ids)[ids] > 1, advantages, 0.0) if len(ids) else advantages
    credit = torch.zeros_like(batch.rollout_logprobs)
    for (row, k), advantage in zip(actions, advantages.tolist(), strict=True):
        credit[row, batch.action_ids[row] == k + 1] = settings.weight * advantage
    return credit


def _similar(one: str, other: str, least: float) -> bool:
    """Whether two texts are so similar, as `difflib` measures it."""
    if one == other:
        return True
    matcher = SequenceMatcher(None, one, other)
    return least < 1 and matcher.real_quick_ratio() >= least and matcher.ratio() >= least
