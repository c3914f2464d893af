"""IGPO's credit: a turn is rewarded for what it tells of the golden answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory, Turn
from holdfast.methods.igpo import gain_credit
from holdfast.methods.registry import IGPO


def rollout(reward: float, searches: int) -> Trajectory:
    search = [Turn(tokens=(7,), logprobs=(-1.0,), observation=(4, k), action=Search("q")) for k in range(searches)]
    answer = Turn(tokens=(9,), logprobs=(-1.0,), action=Answer("x"))
    return Trajectory(example_id="q", prompt=(1, 2), turns=(*search, answer), reward=reward)


GROUP = Group("q", (rollout(1.0, 2), rollout(0.0, 1), rollout(0.0, 0)))
PROBABILITIES = [0.25, 0.25, 0.75, 0.1, 0.2, 0.1]  # of the golden answer, before each turn of each rollout
GAINS = [[0.0, 0.5], [0.1], []]


def gold(asked: Sequence[tuple[str, tuple[int, ...]]]) -> list[float]:
    """Behind the prompt and behind every turn but the last."""
    assert [(name, list(context)) for name, context in asked] == [
        ("q", [1, 2]), ("q", [1, 2, 7, 4, 0]), ("q", [1, 2, 7, 4, 0, 7, 4, 1]),
        ("q", [1, 2]), ("q", [1, 2, 7, 4, 0]),
        ("q", [1, 2]),
    ]  # fmt: skip
    return [math.log(p) for p in PROBABILITIES]


@pytest.mark.parametrize(("gamma", "weight"), [(1.0, 1.0), (0.5, 2.0)])
def test_a_turn_gets_the_gains_from_it_on(gamma: float, weight: float) -> None:
    batch = TokenBatch.from_trajectories([GROUP], pad_token_id=0)
    batch.advantages[:] = torch.tensor([[1.0], [-0.5], [-0.5]])
    credit = gain_credit(IGPO(gamma=gamma, weight=weight), batch, [GROUP], gold)
    mean, deviation = 0.3, 0.2  # of 0.5 and 0.1; the turn that gains nothing counts in neither
    for row, (gains, outcome) in enumerate(zip(GAINS, (1.0, -0.5, -0.5), strict=True)):
        turns = len(gains) + 1
        for k in range(turns):
            normalised = [(gain - mean) / deviation if gain else 0.0 for gain in gains]
            ahead = sum(gamma ** (j - k) * normalised[j] for j in range(k, len(gains)))
            wanted = weight * ahead + gamma ** (turns - 1 - k) * outcome
            (got,) = (credit + batch.advantages)[row, batch.action_ids[row] == k + 1].tolist()
            assert got == pytest.approx(wanted, abs=1e-6)
    assert bool((credit[~batch.loss_mask] == 0).all())
