"""Measures of the rival explanations against loops over plain numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.measures import (
    centering_metrics,
    long_and_unlikely,
    mean_advantages,
    negative_metrics,
    observation_metrics,
)
from holdfast.agent.trajectory import Answer, Group, Search, Status, Trajectory, Turn


def a_group(seed: int, *, cut: bool) -> tuple[list[Group], TokenBatch]:
    """Three questions of four rollouts of one to three actions, one of which failed; and their batch."""
    g = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    def turn(*, last: bool) -> Turn:
        n = number(1, 5)
        masses = tuple((0.5 + torch.rand(n, generator=g) / 2).tolist()) if cut else None
        return Turn(
            tokens=(7,) * n,
            logprobs=(-1.0,) * n,
            observation=() if last else (9,) * number(1, 3),
            action=Answer("x") if last else Search("q"),
            mask_mass=masses,
        )

    def rollout(failed: bool) -> Trajectory:
        actions, right = number(1, 3), float(number(0, 1))
        turns = tuple(turn(last=k == actions - 1) for k in range(actions))
        status, reward = (Status.ERROR, None) if failed else (Status.OK, right)
        return Trajectory(
            example_id="q", prompt=(1, 2), turns=turns, status=status, reward=reward, reward_parts={"em": right}
        )

    groups = [Group(f"q{k}", tuple(rollout(failed=k == 1 and n == 2) for n in range(4))) for k in range(3)]
    batch = TokenBatch.from_trajectories(groups, pad_token_id=0)
    batch = batch.select(batch.loss_mask.any(-1))
    shape = batch.loss_mask.shape
    return groups, replace(
        batch,
        advantages=torch.randn(shape[0], 1, generator=g, dtype=torch.float64),
        old_logprobs=-0.7 - torch.rand(shape, generator=g, dtype=torch.float64),
        old_entropy=torch.rand(shape, generator=g, dtype=torch.float64),
    )


def sampled(batch: TokenBatch, row: int) -> list[int]:
    return [t for t in range(batch.loss_mask.shape[1]) if batch.loss_mask[row, t]]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("cut", [True, False])
def test_centering_against_loops(seed: int, cut: bool) -> None:
    groups, batch = a_group(seed, cut=cut)
    learned = [t for group in groups for t in group.trajectories if not t.status.is_failure]
    cells: dict[tuple[int, int], list[float]] = {}
    tokens = []
    for row, trajectory in enumerate(learned):
        masses = [mass for turn in trajectory.turns for mass in turn.mask_mass or [1.0] * len(turn.tokens or ())]
        for t, mass in zip(sampled(batch, row), masses, strict=True):
            cell = (int(batch.group_ids[row]), int(batch.action_ids[row, t]))
            cells.setdefault(cell, []).append(float(batch.advantages[row]))
            assert batch.old_logprobs is not None
            tokens.append((cell, float(batch.advantages[row]), mass, math.exp(float(batch.old_logprobs[row, t]))))
    drift = [2 * abs(fmean(cells[cell])) * (1 - mass) for cell, _, mass, _ in tokens]
    covariance = [2 * abs(a - fmean(cells[cell])) * (1 - min(p / mass, 1)) for cell, a, mass, p in tokens]
    found = centering_metrics(batch, groups)
    assert found["centering/drift"] == pytest.approx(fmean(drift), abs=1e-6)
    assert found["centering/covariance"] == pytest.approx(fmean(covariance), abs=1e-6)
    assert (found["centering/drift"] > 0) is cut
    by_token = replace(batch, advantages=batch.advantages.expand(batch.loss_mask.shape))
    assert centering_metrics(by_token, groups) == pytest.approx(found, abs=1e-12)
    means = mean_advantages(batch.advantages, batch.group_ids, batch.action_ids, batch.loss_mask)
    assert means[0, sampled(batch, 0)[0]].item() == pytest.approx(fmean(cells[0, 1]), abs=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_before_and_after_the_first_observation_against_loops(seed: int) -> None:
    _, batch = a_group(seed, cut=False)
    assert batch.old_logprobs is not None and batch.old_entropy is not None
    expected = {}
    for name, values in (("entropy", batch.old_entropy), ("likelihood", batch.old_logprobs)):
        for part, first in (("before", True), ("after", False)):
            expected[f"{name}/{part}_observation"] = fmean(
                float(values[row, t])
                for row in range(len(batch))
                for t in sampled(batch, row)
                if (int(batch.action_ids[row, t]) == 1) is first
            )
    assert observation_metrics(batch) == pytest.approx(expected, abs=1e-6)


def test_without_a_second_action_nothing_is_said_about_it() -> None:
    _, batch = a_group(0, cut=False)
    found = observation_metrics(replace(batch, action_ids=batch.loss_mask.long()))
    assert found.keys() == {"entropy/before_observation", "likelihood/before_observation"}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", ["token-mean", "seq-mean-token-mean"])
def test_the_push_on_long_unlikely_rollouts_against_loops(seed: int, weighted: bool, reduction: str) -> None:
    _, batch = a_group(seed, cut=False)
    g = torch.Generator().manual_seed(seed)
    weights = torch.rand(batch.loss_mask.shape, generator=g, dtype=torch.float64) if weighted else None
    excluded = torch.rand(batch.loss_mask.shape, generator=g) < 0.1
    batch = replace(batch, policy_weights=weights, excluded=excluded, correct=torch.arange(len(batch)) % 3 == 0)
    assert batch.old_logprobs is not None
    lengths, logprobs, push = [], [], []
    for row in range(len(batch)):
        places = [t for t in sampled(batch, row) if not excluded[row, t]]
        values = [float(batch.old_logprobs[row, t]) for t in places]
        lengths.append(len(places))
        logprobs.append(fmean(values) if values else 0.0)
        push.append(
            sum(
                max(-float(batch.advantages[row]), 0) * (1 if weights is None else float(weights[row, t]))
                for t in places
            )
        )
    here = [
        not batch.correct[row] and lengths[row] > median(lengths) and logprobs[row] < median(logprobs)
        for row in range(len(batch))
    ]
    per = [x / max(n, 1) for x, n in zip(push, lengths, strict=True)]
    own = per if reduction == "seq-mean-token-mean" else push

    def share(values: list[float]) -> float:
        return sum(x for x, mine in zip(values, here, strict=True) if mine) / sum(values)

    found = negative_metrics([part.trim() for part in batch.split(4)], reduction=reduction)
    assert found == pytest.approx(
        {
            "negative/long_unlikely_share": share(own),
            "negative/long_unlikely_share_by_response": share(per),
            "negative/long_unlikely_rollouts": share([float(x > 0) for x in push]),
        },
        abs=1e-6,
    )


def test_long_and_unlikely_by_hand() -> None:
    lengths, logprobs = torch.tensor([1.0, 2.0, 8.0, 9.0, 9.0]), torch.tensor([-1.0, -2.0, -3.0, -9.0, -9.0])
    correct = torch.tensor([False, False, False, False, True])
    assert long_and_unlikely(lengths, logprobs, correct).tolist() == [False, False, False, True, False]


def test_without_a_push_there_is_no_share() -> None:
    _, batch = a_group(0, cut=False)
    assert negative_metrics([replace(batch, advantages=batch.advantages.abs())], reduction="token-mean") == {}
