"""Credit for actions (GiGPO), by other actions that rollouts took in the same place, and for turns (IGPO), by how much
likelier each makes the golden answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from statistics import fmean, pstdev

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Group, Trajectory
from holdfast.losses import group_advantages
from holdfast.methods.registry import IGPO, GiGPO

GoldLogprobs = Callable[[Sequence[tuple[str, tuple[int, ...]]]], Sequence[float]]
"""(id of a question, token ids of a context) -> for each, the mean log-prob of the tokens of the question's first
golden answer behind the context, in nats."""


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


def gain_credit(settings: IGPO, batch: TokenBatch, groups: Sequence[Group], gold: GoldLogprobs) -> Tensor:
    """float [B, T]: the weighted gains, on the tokens of turns. `groups` are where the rows come from."""
    asked = [(group.id, context) for group in groups for t in group.trajectories for context in _contexts(t)]
    logprobs = iter(gold(asked))
    credit = torch.zeros_like(batch.rollout_logprobs)
    row = 0
    for group in groups:
        of_turns = []
        for t in group.trajectories:
            found = [math.exp(next(logprobs)) for _ in _contexts(t)]
            of_turns.append([b - a for a, b in pairwise(found)])
        flat = [gain for gains in of_turns for gain in gains if gain]
        mean, std = (fmean(flat), pstdev(flat)) if flat else (0.0, 0.0)
        for t, gains in zip(group.trajectories, of_turns, strict=True):
            outcome = float(batch.advantages[row, 0])
            ahead = 0.0
            for k in reversed(range(len(t.turns))):
                if k < len(gains):  # every turn but the last
                    ahead = settings.gamma * ahead + ((gains[k] - mean) / std if gains[k] and std > 0 else 0.0)
                discounted = settings.gamma ** (len(t.turns) - 1 - k) * outcome
                value = settings.weight * ahead + discounted - outcome
                credit[row, batch.action_ids[row] == k + 1] = value
            row += 1
    return credit


def _contexts(trajectory: Trajectory) -> Iterator[tuple[int, ...]]:
    """What the model had read before each turn; nothing of a failed rollout."""
    if trajectory.status.is_failure or not trajectory.turns:
        return
    context = tuple(trajectory.prompt)
    for turn in trajectory.turns:
        yield context
        context = (*context, *(turn.tokens or ()), *turn.observation)
