"""Copies within a group, and advantages that were taken over rollouts of other prompts."""

from __future__ import annotations

import random

from holdfast.diagnose.readers.rollouts import SampledRollout, SampledTurn
from holdfast.diagnose.text_groups import copies, mixed_groups

QUESTIONS, SIZE = 12, 4


def rollouts(*, copied: int = 0, shift: int = 0, over: str = "group", text: int = 300) -> list[SampledRollout]:
    """Groups of four. The first `copied` of each have one text; advantages are over blocks that begin `shift` late."""
    draw = random.Random(7)
    rewards = [float(draw.random() < 0.1 + 0.8 * (k // SIZE) / QUESTIONS) for k in range(QUESTIONS * SIZE)]
    rows = []
    for k, reward in enumerate(rewards):
        begin = (k - shift) // SIZE * SIZE + shift
        block = rewards if over == "batch" else [rewards[i % len(rewards)] for i in range(begin, begin + SIZE)]
        said = "x" * text if k % SIZE < copied else f"{k} " * (text // 2)
        rows.append(
            SampledRollout(
                step=3,
                question=f"q{k // SIZE}",
                turns=(SampledTurn(text=said, observation="", query=None),),
                reward=reward,
                advantage=reward - sum(block) / len(block) + (0.05 if over == "whitened" else 0.0),
            )
        )
    return rows


def test_long_texts_that_are_the_same_in_a_group_are_copies() -> None:
    found = copies(rollouts(copied=2))
    assert found is not None and (found.kind, found.step) == ("copies", 3) and "12 of 48" in found.summary
    assert copies(rollouts()) is None
    assert copies(rollouts(copied=4, text=20)) is None  # short answers are the same by right


def test_advantages_over_other_prompts_are_mixed_groups() -> None:
    found = mixed_groups(rollouts(shift=2))
    assert found is not None and found.kind == "mixed_groups"
    for sound in (rollouts(), rollouts(over="batch"), rollouts(over="whitened")):
        assert mixed_groups(sound) is None


def test_without_advantages_nothing_is_said_of_groups() -> None:
    bare = [SampledRollout(step=1, question="q", turns=(SampledTurn(text="x", observation="", query=None),))] * 9
    assert mixed_groups(bare) is None and copies(bare) is None
