"""Influence: predictions against derivatives in float64, and ranks and similarities by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import RolloutError
from holdfast.methods.penalties import NoPenalty
from holdfast.methods.registry import DropVoid, Methods, NegativeWeight
from holdfast_research.probes import Rollouts, Subject, influence, per_sample
from holdfast_research.ranks import correlation_interval, rank_correlation

Make = Callable[..., Any]
VOCABULARY = 4


@pytest.fixture
def subject(policy_of: Make) -> Callable[..., Subject]:
    """subject(only_output=True): over four tokens; with only its output layer trained."""

    def make(*, only_output: bool = True, temperature: float = 1.0) -> Subject:
        tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=0)
        made: Subject = policy_of(tokenizer, vocabulary=VOCABULARY, temperature=temperature, lr=1e-5)
        for name, parameter in made.language_model.model.named_parameters():
            parameter.requires_grad_(not only_output or name == "lm_head.weight")
        return made

    return make


@pytest.fixture
def some(episode: Make, rolled: Make) -> Callable[..., Rollouts]:
    """some(3): groups of four rollouts with one to three correct ones, one to three actions and all four tokens."""

    def make(groups: int) -> Rollouts:
        rng = random.Random(1)

        def rollout(correct: bool) -> Trajectory:
            turns = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 3))]
            turns[0] += range(VOCABULARY)  # so that V* is the vocabulary
            made: Trajectory = episode(correct, *turns)
            return made

        return rolled(*([rollout(k <= g % 3) for k in range(4)] for g in range(groups)))  # type: ignore[no-any-return]

    return make


def test_with_the_output_layer_alone_the_prediction_is_the_derivative(subject: Make, some: Make, heard: Any) -> None:
    """Of whole rollouts and of each action; the optimizer's small step goes the same way."""
    policy = subject(temperature=0.7)
    before = [p.clone() for p in policy.language_model.model.parameters()]
    found = influence(policy, some(6), listener=heard)
    assert (found.asked, found.used, heard.done[-1]) == (6, 6, 6)
    assert len(found.rollouts) == 2 * (1 + 2 + 3) and max(u.action for u in found.units) == 3
    for unit in found.units:
        assert unit.gradient == pytest.approx(unit.predicted, rel=1e-3, abs=1e-7)
    for rollout in found.rollouts:
        parts = [u for u in found.units if (u.question, u.rollout) == (rollout.question, rollout.rollout) and u.action]
        for name in ("predicted", "gradient", "optimizer", "tokens"):
            assert sum(getattr(u, name) for u in parts) == pytest.approx(getattr(rollout, name), rel=1e-5, abs=1e-12)
    agreement = found.agreement("rollout", "gradient")
    assert agreement.correlation == pytest.approx(1, abs=0.02) and agreement.overlap == 1.0
    optimizer = found.agreement("rollout", "optimizer").correlation
    assert optimizer is not None and optimizer > 0.5
    after = policy.language_model.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_recipes_loss_does_not_count(subject: Make, some: Make, heard: Any) -> None:
    plain, rollouts = subject(), some(3)
    loss = plain.config.loss.model_copy(
        update={
            "advantage": "dr_grpo",
            "reduction": "seq-mean-token-mean",
            "methods": Methods(negative_weight=NegativeWeight(), drop_void=DropVoid()),
        }
    )
    other = replace(plain, config=plain.config.model_copy(update={"loss": loss}))
    assert influence(other, rollouts, listener=heard) == influence(plain, rollouts, listener=heard)


def test_the_optimizers_step_is_that_of_per_sample(subject: Make, some: Make, heard: Any) -> None:
    """With one optimizer step and no penalty: AdamW's first step does not depend on the size of the gradient."""
    policy, rollouts = subject(only_output=False), some(3)
    once = policy.config.train.model_copy(update={"optimizer_steps_per_rollout": 1})
    plain = policy.config.loss.model_copy(update={"penalty": NoPenalty()})
    policy = replace(policy, config=policy.config.model_copy(update={"train": once, "loss": plain}))
    (alone,) = per_sample(policy, rollouts, seed=0, compare=[], listener=heard).arms
    pairs = influence(policy, rollouts, listener=heard).pairs("question", "optimizer")
    assert len(pairs) == 3
    assert [change for _, _, change in pairs] == pytest.approx([q.displacement for q in alone.questions], rel=1e-3)


def test_questions_without_both_kinds_are_left_out(
    subject: Make, some: Make, episode: Make, rolled: Make, heard: Any
) -> None:
    mixed = some(1).groups[0].trajectories
    failed = episode(False, [1], failed=True)
    found = influence(subject(), rolled(mixed, [episode(True, [1])] * 2, [episode(True, [1]), failed]), listener=heard)
    assert (found.asked, found.used) == (3, 1)
    assert found.similarity[0].other_questions is None
    with pytest.raises(RolloutError, match="1 of 2 rollouts on 1 questions are correct"):
        influence(subject(), rolled([episode(True, [1]), failed]), listener=heard)


# ---- similarity


def test_similarities_are_cosines_of_mean_states(subject: Make, some: Make, heard: Any) -> None:
    """One pair at a time, from transformers' own hidden states."""
    policy, rollouts = subject(), some(3)
    model = policy.language_model.model
    means: list[tuple[int, bool, dict[int, torch.Tensor]]] = []
    for g, group in enumerate(rollouts.groups):
        for t in group.trajectories:
            with torch.no_grad():
                states = model(input_ids=torch.tensor([t.token_ids]), output_hidden_states=True).hidden_states[-1][0]
            places = [k for k, sampled in enumerate(t.loss_mask) if sampled]
            by_action = {0: states[[k - 1 for k in places]].mean(0)}
            for action in {t.action_ids[k] for k in places}:
                by_action[action] = states[[k - 1 for k in places if t.action_ids[k] == action]].mean(0)
            means.append((g, t.correct, by_action))
    compared = 0
    for found in influence(policy, rollouts, listener=heard).similarity:
        cosines: dict[str, list[float]] = {"incorrect_correct": [], "correct_correct": [], "other_questions": []}
        for i, (g, correct, mine) in enumerate(means):
            for j, (h, also, theirs) in enumerate(means):
                if found.action not in mine or found.action not in theirs or not also:
                    continue
                a, b = mine[found.action], theirs[found.action]
                cosine = float(a @ b / (a.norm() * b.norm()))
                if not correct:
                    cosines["incorrect_correct" if g == h else "other_questions"].append(cosine)
                elif g == h and i < j:
                    cosines["correct_correct"].append(cosine)
        for name, values in cosines.items():
            expected = pytest.approx(sum(values) / len(values), abs=1e-6) if values else None
            assert getattr(found, name) == expected
        compared += any(cosines.values())
    assert compared >= 2


# ---- ranks


def test_rank_correlation() -> None:
    rng = random.Random(0)
    for _ in range(20):
        one = [rng.randrange(6) for _ in range(9)]
        two = [x + rng.randrange(5) for x in one]
        ranks = [[sum(b < a for b in v) + (sum(b == a for b in v) + 1) / 2 for a in v] for v in (one, two)]
        middle = [[r - 5 for r in line] for line in ranks]
        product = sum(a * b for a, b in zip(*middle, strict=True))
        size = math.sqrt(sum(a * a for a in middle[0]) * sum(b * b for b in middle[1]))
        assert rank_correlation(one, two) == pytest.approx(product / size)
    assert rank_correlation([1, 2], [1, 2]) is None and rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_intervals_draw_questions() -> None:
    """Forty copies of the same unit in each question are no more evidence than one."""
    rng = random.Random(3)
    once = [(f"q{k}", x := rng.random(), x + rng.random()) for k in range(12)]
    low, high = correlation_interval(once)
    many = correlation_interval([pair for pair in once for _ in range(40)])
    assert low is not None and high is not None and high - low > 0.2
    assert many == pytest.approx((low, high), abs=0.05)
    assert correlation_interval(once[:4]) == (None, None)
