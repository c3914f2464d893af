"""Rollouts of a few tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.agent.trajectory import Action, Status, Trajectory, Turn


def turn(action: Action, tokens: int | Sequence[int] = 2, **more: Any) -> Turn:
    """One of these tokens, or of so many; each has the log-prob -1."""
    ids = tuple(range(2, 2 + tokens)) if isinstance(tokens, int) else tuple(tokens)
    return Turn(**{"tokens": ids, "logprobs": (-1.0,) * len(ids), "action": action} | more)


def rollout(*turns: Turn, right: float = 0, failed: bool = False, **more: Any) -> Trajectory:
    """One whose reward is the exact match `right`; one that failed has none."""
    ends: dict[str, Any] = {"reward": float(right), "reward_parts": {"em": float(right)}}
    if failed:
        ends = {"status": Status.RETRIEVAL_FAILED}
    return Trajectory(**{"example_id": "q", "prompt": (1, 2), "turns": turns} | ends | more)
