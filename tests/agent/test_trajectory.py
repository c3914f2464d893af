"""Trajectories derive everything flat from their turns; the flat arrays must say exactly what the model saw."""

from __future__ import annotations

import dataclasses
import random

import pytest

from holdfast.agent.trajectory import Answer, Group, Invalid, Search, Status, Trajectory, Turn


def turn(n, observation=(), action=None, **fields):
    return Turn(
        tokens=tuple(range(100, 100 + n)),
        logprobs=tuple(-0.1 * (k + 1) for k in range(n)),
        observation=observation,
        action=action or Search("q"),
        **fields,
    )


def trajectory(*turns, **fields):
    return Trajectory(**{"example_id": "world/train/7", "prompt": (1, 2)} | fields, turns=turns)


# prompt 1 2 | search of 2, feedback 5 6 | search of 1, no feedback | answer of 3, its last two the answer span
GOLDEN = trajectory(
    turn(2, observation=(5, 6)),
    turn(1),
    turn(3, action=Answer("x"), answer_span=(1, 3)),
)


def test_golden():
    assert GOLDEN.token_ids == (1, 2, 100, 101, 5, 6, 100, 100, 101, 102)
    assert GOLDEN.action_ids == (0, 0, 1, 1, 0, 0, 2, 3, 3, 3)  # actions 2 and 3 touch and stay apart
    assert GOLDEN.loss_mask == tuple(a > 0 for a in GOLDEN.action_ids)
    assert [int(x) for x in GOLDEN.answer_mask] == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1]
    assert GOLDEN.rollout_logprobs == pytest.approx((0, 0, -0.1, -0.2, 0, 0, -0.1, -0.1, -0.2, -0.3))


@pytest.mark.parametrize("seed", range(20))
def test_flat_arrays_agree_with_a_walk_over_the_turns(seed):
    rng = random.Random(seed)
    turns = []
    for _ in range(rng.randint(0, 5)):
        n = rng.randint(1, 4)
        start = rng.randint(0, n)
        span = rng.choice((None, (start, rng.randint(start, n))))
        turns.append(turn(n, observation=tuple(range(rng.randint(0, 3))), answer_span=span))
    t = trajectory(*turns)

    seen = [(i, False, 0, False, 0.0) for i in t.prompt]
    for k, step in enumerate(turns, start=1):
        for j in range(len(step.tokens)):
            in_answer = step.answer_span is not None and step.answer_span[0] <= j < step.answer_span[1]
            seen.append((step.tokens[j], True, k, in_answer, step.logprobs[j]))
        seen += [(i, False, 0, False, 0.0) for i in step.observation]
    flat = list(zip(t.token_ids, t.loss_mask, t.action_ids, t.answer_mask, t.rollout_logprobs, strict=True))
    assert flat == seen
    assert len(t.token_ids) == len(t.prompt) + sum(map(len, turns))


@pytest.mark.parametrize("status", Status)
def test_only_episodes_that_say_something_about_the_policy_are_trained_on(status):
    t = dataclasses.replace(GOLDEN, status=status)
    failed = status in (Status.RETRIEVAL_FAILED, Status.ERROR)
    assert status.is_failure == failed
    assert any(t.loss_mask) != failed
    assert t.action_ids == GOLDEN.action_ids and t.token_ids == GOLDEN.token_ids


def test_answer_searches_and_correct():
    assert (GOLDEN.answer, GOLDEN.searches) == ("x", 2)
    assert trajectory(turn(1), turn(1, action=Invalid("no tag"))).answer is None
    assert trajectory().answer is None and trajectory().searches == 0
    assert trajectory(reward_parts={"em": 1.0}).correct
    assert not trajectory(reward=1.0, reward_parts={"em": 0.0, "f1": 0.9}).correct  # positive is not correct
    assert not trajectory().correct


def test_a_turn_without_token_ids_cannot_be_flattened():
    text_only = dataclasses.replace(turn(1), tokens=None, logprobs=None)
    t = trajectory(turn(1), text_only)
    for name in ("token_ids", "loss_mask", "action_ids", "answer_mask", "rollout_logprobs"):
        with pytest.raises(ValueError, match=r"world/train/7 has turns without token ids.*cannot be trained on"):
            getattr(t, name)
    assert len(text_only) == 0


def test_values_are_frozen():
    for value, name in (
        (GOLDEN, "reward"),
        (GOLDEN.turns[0], "tokens"),
        (Group("g", ()), "id"),
        (Search("q"), "query"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)


def test_mixed_groups_have_a_contrast_and_failures_are_none():
    def group(*rewards, failed=()):
        rows = [trajectory(reward=r) for r in rewards]
        rows += [trajectory(reward=r, status=Status.RETRIEVAL_FAILED) for r in failed]
        return Group("g", tuple(rows))

    assert group(1.0, 0.0).mixed
    assert not group(1.0, 1.0).mixed
    assert not group(1.0, failed=(0.0, None)).mixed
    assert not group().mixed
