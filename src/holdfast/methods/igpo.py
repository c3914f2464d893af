"""IGPO: credit for a turn by how much likelier it makes the golden answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method, Probe, ToAnswer

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch
    from holdfast.agent.trajectory import Group, Trajectory


class IGPO(Method):
    """Reward every turn but the last with its information gain: the probability of the golden answer behind it minus
    that before it.

    Gains are normalised over the turns of a group that gain or lose anything; a gain of 0 stays 0. A turn gets those of
    the turns from it on, discounted, and the advantage of its rollout. The probability is the geometric mean over the
    tokens of the first golden answer, under the policy that sampled. It costs a further pass over each rollout, up to
    every turn.
    """

    weight: float = Field(1.0, gt=0)
    """Weight of the gains beside the advantage of the rollout."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount of what later turns gain, and of the rollout's advantage, for every turn in between."""

    name: ClassVar = "igpo"
    source: ClassVar = "IGPO, [arXiv 2510.14967](https://arxiv.org/abs/2510.14967), gains and outcome normalised apart"
    needs: ClassVar = frozenset({"group advantages"})
    acts_on: ClassVar = "it adds to advantages within groups"
    elsewhere: ClassVar = "its trainer knows neither turns nor golden answers"

    def probes(self, groups: Sequence[Group], answers: Sequence[Sequence[str]], to_answer: ToAnswer) -> list[Probe]:
        """The golden answer behind the prompt and behind every turn but the last."""
        return [
            (context + opening, answer)
            for group, golds in zip(groups, answers, strict=True)
            for opening, answer in [to_answer(golds[0])]
            for trajectory in group.trajectories
            for context in _contexts(trajectory)
        ]

    def credit(self, batch: TokenBatch, groups: Sequence[Group], probed: Sequence[float]) -> Tensor:
        """The weighted gains, on the tokens of turns."""
        import torch

        likelihoods = iter(probed)
        credit = torch.zeros_like(batch.rollout_logprobs)
        row = 0
        for group in groups:
            of_turns = []
            for t in group.trajectories:
                found = [math.exp(next(likelihoods)) for _ in _contexts(t)]
                of_turns.append([b - a for a, b in pairwise(found)])
            flat = [gain for gains in of_turns for gain in gains if gain]
            mean, std = (fmean(flat), pstdev(flat)) if flat else (0.0, 0.0)
            for t, gains in zip(group.trajectories, of_turns, strict=True):
                outcome = float(batch.advantages[row, 0])
                ahead = 0.0
                for k in reversed(range(len(t.turns))):
                    if k < len(gains):  # every turn but the last
                        ahead = self.gamma * ahead + ((gains[k] - mean) / std if gains[k] and std > 0 else 0.0)
                    discounted = self.gamma ** (len(t.turns) - 1 - k) * outcome
                    value = self.weight * ahead + discounted - outcome
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
