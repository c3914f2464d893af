"""From groups of episodes to what the losses take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Status, Trajectory, Turn
from holdfast.recipe import Loss
from holdfast.train.rollouts import training_batch


def episode(right: bool, searches: int, *, failed: bool = False) -> Trajectory:
    """Three tokens a search with four of feedback, then two for the answer."""
    turns = [
        Turn(tokens=(7, 8, 9), logprobs=(0.0,) * 3, observation=(4, 5, 6, 4), action=Search("lake"), text="s")
        for _ in range(searches)
    ]
    turns.append(Turn(tokens=(10, 11), logprobs=(0.0,) * 2, action=Answer("town"), text="a"))
    return Trajectory(
        example_id="q",
        prompt=(1, 2),
        turns=tuple(turns),
        status=Status.RETRIEVAL_FAILED if failed else Status.OK,
        reward=None if failed else float(right),
        reward_parts={} if failed else {"em": float(right)},
    )


def advantages(settings: Mapping[str, Any]) -> tuple[list[float], TokenBatch]:
    group = Group("q", (episode(True, 1), episode(False, 2), episode(False, 3), episode(False, 9, failed=True)))
    batch = training_batch([group], Loss(**settings), pad_token_id=0, device=torch.device("cpu"))
    assert batch.advantages is not None
    return batch.advantages[:, 0].tolist(), batch


def test_grpo_sums_to_zero_over_rollouts_and_is_negative_over_tokens() -> None:
    found, batch = advantages({})
    assert found == pytest.approx([2 / 3 / (1 / 3) ** 0.5, *[-1 / 3 / (1 / 3) ** 0.5] * 2], 1e-4)
    assert sum(found) == pytest.approx(0, abs=1e-5)
    assert float((batch.advantages * batch.loss_mask).sum()) < -1


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_baseline_by_length_counts_sampled_tokens_alone(kind: str) -> None:
    found, batch = advantages({"advantage": kind, "baseline": "length"})
    b = 5 / (5 + 8 + 11)  # feedback and the failed rollout count for nothing
    deviation = (1 / 3) ** 0.5 if kind == "grpo" else 1.0
    assert found == pytest.approx([x / deviation for x in (1 - b, -b, -b)], 1e-4)
    assert float((batch.advantages * batch.loss_mask).sum()) == pytest.approx(0, abs=1e-5)
