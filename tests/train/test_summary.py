"""The closing paragraph, and the three episodes under it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from holdfast.agent.protocol import CLEAN
from holdfast.agent.tools import NATIVE
from holdfast.agent.trajectory import Answer, Call, Search, ToolResult, Trajectory
from holdfast.tasks.questions import Example
from holdfast.train.evaluate import EvaluationSums, intervals_of
from holdfast.train.summary import read_sample, samples_of, verdict_of

from ..rollouts import rollout, turn

BEFORE = {"em": 0.2, "em_greedy": 0.4}
SCORES = {"em": [0.07, 0.13], "em_greedy": [0.16, 0.24]}


@pytest.mark.parametrize(
    ("last", "headline"), [(0.6, "Learned, and stayed stable."), (0.21, "Stable, but learned little.")]
)
def test_without_a_score_of_the_start_the_reward_says_what_was_learned(last: float, headline: str) -> None:
    rows = [{"reward/mean": r} for r in [0.2] * 5 + [last] * 10]
    said = verdict_of(rows, {}, {"em": 0.5, "em_greedy": 0.45}, "test")
    assert said.startswith(headline) and said.endswith("Exact match on test: sampled 0.500, greedy 0.450.")


def test_a_score_has_its_questions_and_its_interval() -> None:
    rows, intervals = [{"reward/mean": 0.2}] * 15, {"em": [0.25, 0.75], "em_greedy": [0.2, 0.7]}
    said = verdict_of(rows, {}, {"em": 0.5, "em_greedy": 0.45}, "test", 6, intervals)
    exact = "Exact match on test (6 questions, 95 % intervals): sampled 0.500 (0.250 to 0.750), greedy 0.450 (0.200 to"
    assert exact in said


def test_a_loss_on_unseen_questions_is_said_whatever_the_reward_did() -> None:
    """With stale rollouts the reward is that of older weights."""
    rows = [{"reward/mean": r} for r in [0.7] * 5 + [0.9] * 10]

    def headline(*change: float) -> str:
        return verdict_of(rows, BEFORE, {"em": 0.1, "em_greedy": 0.2}, "test", 400, {"em_change": change, **SCORES})

    assert headline(-0.15, -0.05).startswith("Ended below its initial checkpoint on unseen questions. The reward")
    assert headline(-0.25, 0.05).startswith("Stable, but learned little."), "ten questions cannot tell"


def answered(*scores: tuple[float | None, float | None]) -> EvaluationSums:
    """An evaluation with a sampled and a greedy EM for each question."""
    rows = ({"id": f"q{i}", "em_sampled": [a], "em_greedy": [b]} for i, (a, b) in enumerate(scores))
    return EvaluationSums(len(scores), answers=tuple(rows))


def test_intervals_are_over_questions_and_changes_are_paired() -> None:
    before, after = answered((0.0, 1.0), (1.0, 0.0), (0.0, None)), answered((0.0, 1.0), (1.0, 0.0), (0.0, 1.0))
    found = intervals_of(before, after)
    assert found["em_change"] == found["em_greedy_change"] == [0.0, 0.0], "each question scores as before"
    low, high = found["em"]
    assert low < 1 / 3 < high
    assert set(intervals_of(EvaluationSums(), after)) == {"em", "em_greedy"}


def verdict(rewards: list[float], em: float = 0.5, moved: float | None = 0.01) -> str:
    rows = [{"reward/mean": r} | ({} if moved is None else {"displacement/correct": moved}) for r in rewards]
    return verdict_of(rows, BEFORE, {"em": em, "em_greedy": 0.45}, "test")


@pytest.mark.parametrize(
    ("rewards", "em", "headline"),
    [
        (
            [0.2] * 5 + [0.6] * 10,
            0.5,
            "Learned, and stayed stable. The reward changed from 0.20 to 0.60 (peak 0.60, means of 5 steps).",
        ),
        ([0.2] * 5 + [0.6] * 10, 0.21, "Stable, but learned little."),
        (
            [0.2] * 5 + [0.6] * 24 + [0.35] * 5,
            0.5,
            "Collapsed. The reward fell from its peak of 0.60 to 0.35 (0.20 at first",
        ),
        (
            [0.2] * 5 + [0.6] * 10 + [0.35] * 5,
            0.5,
            "Fell. The reward fell from its peak of 0.60 to 0.35 (0.20 at first",
        ),
        ([0.2] * 5 + [0.6] * 10 + [0.45] * 5, 0.5, "Declined. The reward declined from its peak of 0.60 to 0.45"),
        (
            [0.2] * 5 + [0.6] * 10 + [0.1] * 5 + [0.6] * 9,
            0.5,
            "Fell and recovered. The reward fell from 0.60 to 0.10 and ended at 0.60 (0.20 at first",
        ),
        ([0.2] * 5 + [0.6] * 60 + [0.1] * 5 + [0.42] * 60, 0.5, "Fell and partly recovered. The reward fell from 0.60"),
        (
            [0.1, 0.0, 0.1, 0.2, 0.0, 0.0, 0.0, 0.1, 0.0, 0.0] + [0.5] * 9,
            0.5,
            "Learned, and stayed stable.",
        ),  # a rare reward
        ([-1.0] * 5 + [-0.2] * 9, 0.5, "Learned, and stayed stable. The reward rose from -1.00 to -0.20 (peak -0.20"),
        ([-1.0] * 5 + [0.5] * 9 + [-0.5] * 5, 0.5, "Fell."),
        (
            [0.6, 0.2] * 6 + [0.7, 0.1, 0.2, 0.3, 0.0],
            0.2,
            "Ended with a lower reward, perhaps by chance. The reward changed from 0.44 to",
        ),
        ([0.0] * 9, 0.2, "Nothing was learned: the reward was 0 in every step."),
        ([0.2, 0.4], 0.5, "Too few steps to judge. The reward was 0.30 on average, in 2 steps."),
    ],
)
def test_headline(rewards: list[float], em: float, headline: str) -> None:
    assert verdict(rewards, em).startswith(headline)


@pytest.mark.parametrize("seed", range(10))
def test_a_fall_is_never_said_with_a_rise(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rewards = np.repeat(draw.uniform(-0.5, 1.0, 6), 12) + draw.normal(0, 0.03, 72)
    words = verdict(rewards.tolist()).split(" Exact match")[0]
    assert words.startswith(("Collapsed.", "Fell", "Declined.")) is ("(peak" not in words)
    assert "rose" not in words or words.startswith("Learned")


def test_displacement_is_told_in_words() -> None:
    assert "more likely under their own updates: displacement +0.0100 nats" in verdict([0.2] * 6)
    assert "less likely" in verdict([0.2] * 6, moved=-0.5)
    assert "below 0 in 100% of the steps" in verdict([0.2], moved=-1)
    assert "displacement" not in verdict([0.2] * 6, moved=None)


def test_a_row_without_a_reward_is_no_step() -> None:
    rows = [{"eval/em": 0.1}, {"reward/mean": 0.3}, {"rollout/failed_fraction": 1.0}]
    assert "was 0.30 on average, in 1 step" in verdict_of(rows, BEFORE, {"em": 0.2, "em_greedy": 0.4}, "dev")
    assert verdict_of(rows[:1], BEFORE, BEFORE, "dev") == "No training step was made."


def episode(name: str, turns: int, right: bool) -> Trajectory:
    searches = [turn(Search("q"))] * (turns - 1)
    return rollout(*searches, turn(Answer(name)), right=right, example_id=f"s/test/{ord(name)}")


@pytest.mark.parametrize(
    ("right", "wrong", "shown"),
    [
        ("", "", ""),
        ("a", "", "a"),  # once, not three times
        ("abc", "x", "abx"),
        ("abcde", "xy", "acx"),
        ("a", "xyz", "axy"),
    ],
)
def test_samples_are_different_episodes(right: str, wrong: str, shown: str) -> None:
    """`a` is the longest right one."""
    episodes = [episode(name, 5 - k, True) for k, name in enumerate(right)]
    episodes += [episode(name, 1, False) for name in wrong]
    questions = [
        Example(source="s", split="test", index=ord(name), question=f"{name}?", golden_answers=(name,))
        for name in right + wrong
    ]
    samples = samples_of(episodes, questions, CLEAN)
    assert "".join(s.answer or "" for s in samples) == shown
    assert all(s.question == f"{s.answer}?" and s.reward == (s.answer in right) for s in samples)


def test_a_sample_of_tool_calls_says_what_was_called_and_what_came_back() -> None:
    """And is the same after results.json."""
    returned = ToolResult("12", failed=False, seconds=0.0)
    text = 'I look. <call>{"name": "times"}</call>'
    call = turn(Call("times", '{"a": 3}'), text=text, observation_text="12", result=returned)
    called = replace(episode("a", 1, True), turns=(call, turn(Answer("12"), text="12")))
    asked = Example(source="s", split="test", index=ord("a"), question="?", golden_answers=("12",))
    (sample,) = samples_of([called], [asked], NATIVE)
    assert sample.turns == (
        ([("says", "I look."), ("calls", 'times {"a": 3}')], "12", True),
        ([("answers", "12")], "", False),
    )
    assert read_sample(json.loads(json.dumps(asdict(sample)))) == sample
