"""Probes on a policy of two tokens: first actions, rounds of searches, the tail of the importance ratios."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.agent.metrics.rollouts import rollout_metrics
from holdfast.base.errors import RolloutError
from holdfast_research.probes import Rollouts, Subject, by_searches, first_action, ratio_tail
from holdfast_research.probes.ratio_tail import ArmRatios, RolloutRatios

Make = Callable[..., Any]
ZERO, ONE = math.log(0.8), math.log(0.2)


def near(rollouts: int, logprob: float | None) -> tuple[int, Any]:
    return rollouts, None if logprob is None else pytest.approx(logprob, abs=1e-6)


def told(level: Any) -> tuple[int, float | None]:
    return level.rollouts, level.logprob


def test_first_actions(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    rollouts = rolled(
        [
            episode(True, [0], [0, 0], hits="ab"),
            episode(False, [1], [1, 0], hits="ab"),  # the same passages
            episode(False, [0, 1], [0], [1], hits="ba"),  # in another order
            episode(False, [1, 1]),  # no search
            episode(False, [0], hits="ab", failed=True),
        ],
        [episode(False, [0], [0], hits="ab")],  # nothing to compare with
        [episode(True, [0], [1], hits="c"), episode(True, [1], hits="c")],
    )
    found = first_action(coin(0.8), rollouts, listener=heard)
    assert (found.compared, found.matching, found.share) == (3, 1, pytest.approx(1 / 3))
    assert [told(level) for level in found.correct] == [near(3, (ZERO + ZERO + ONE) / 3), near(2, (ZERO + ONE) / 2)]
    assert [told(level) for level in found.incorrect] == [
        near(4, (ONE + (ZERO + ONE) / 2 + ONE + ZERO) / 4),
        near(3, ((ONE + ZERO) / 2 + ZERO + ZERO) / 3),
        near(1, ONE),
    ]
    assert told(found.first_matching) == near(1, ONE)
    assert told(found.first_other) == near(2, ((ZERO + ONE) / 2 + ONE) / 2)


def test_the_share_is_the_trainers_metric(
    coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any
) -> None:
    parts = {"em": 0.0, "f1": 0.0}
    right, wrong = episode(True, [0], [0]), episode(False, [0], [1])
    group = [replace(right, reward_parts={"em": 1.0, "f1": 1.0}), replace(wrong, reward_parts=parts)]
    rollouts = rolled(group, [*group, replace(episode(False, [1]), reward_parts=parts)])
    found = first_action(coin(), rollouts, listener=heard)
    assert (
        found.share == rollout_metrics(rollouts.groups)["rollout/first_action_match_fraction"] == pytest.approx(2 / 3)
    )


def test_first_actions_need_a_pair_and_rounds_an_episode(
    coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any
) -> None:
    for kind in (False, True):
        with pytest.raises(RolloutError, match=f"{2 * kind} of 2 rollouts on 1 questions are correct, and no question"):
            first_action(coin(), rolled([episode(kind, [0], [0])] * 2), listener=heard)
    with pytest.raises(RolloutError, match="all 2 rollouts failed"):
        by_searches(coin(), rolled([episode(False, [0], failed=True)] * 2), listener=heard)


def test_rounds_of_searches(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    rollouts = rolled(
        [episode(True, [0]), episode(False, [1, 1]), episode(False, [0], [0], [1, 1])],
        [episode(False, [1]), episode(False, [1], [1], failed=True)],
    )
    found = by_searches(coin(0.8), rollouts, listener=heard)
    assert [r.searches for r in found.rounds] == [0, 2]
    none, two = found.rounds
    assert told(none.everyone) == near(3, (ZERO + ONE + ONE) / 3)
    assert told(none.correct) == near(1, ZERO)
    assert told(none.incorrect) == near(2, ONE)
    assert told(two.everyone) == told(two.incorrect) == near(1, (ZERO + ONE) / 2)
    assert told(two.correct) == near(0, None)


# ---- the tail of the importance ratios


def test_drift_in_numbers() -> None:
    rows = [(1.0, (0.5, -1.0)), (1.0, (0.5, -3.0)), (-1.0, (-2.0, -8.0)), (0.0, (0.0, math.log(0.5)))]
    arm = ArmRatios(
        penalty="none",
        rollouts=tuple(RolloutRatios(id="q", correct=a > 0, advantage=a, tokens=3, log_products=p) for a, p in rows),
    )
    assert arm.optimizer_steps == 2
    # After step 2: exp(-1) = 0.37, exp(-3) = 0.050, exp(-8) = 0.0003, and 0.5, which is not below 0.5.
    assert [arm.share_below(e, "all", 2) for e in (0.5, 0.51, 0.1, 0.01, 1e-4)] == [0.75, 1.0, 0.5, 0.25, 0.0]
    assert [arm.share_below(e, "positive", 2) for e in (0.5, 0.1)] == [1.0, 0.5]
    assert [arm.share_below(e, "all", 1) for e in (0.5, 0.1)] == [0.25, 0.0]
    assert arm.share_below(0.1, "negative", 1) == 0.0
    assert arm.share_below(0.2, "negative", 1) == 1.0
    assert math.isnan(ArmRatios(penalty="none", rollouts=arm.rollouts[:1]).share_below(0.5, "negative", 1))


def test_drift_of_a_coin(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    rollouts = rolled([episode(True, [0]), episode(False, [1, 1]), episode(True, [0], failed=True)])
    found = ratio_tail(coin(), rollouts, seed=0, listener=heard)
    right, wrong = found.arms[0].rollouts
    assert (right.correct, right.tokens, wrong.tokens) == (True, 1, 2)
    assert right.advantage > 0 > wrong.advantage
    # As in the first question above; the wrong one has two tails.
    assert right.log_products == (pytest.approx(0.095008, abs=1e-6),)
    assert wrong.log_products == (pytest.approx(2 * -0.104992, abs=1e-6),)
    assert ("optimizer steps", 1) in heard.stages and heard.done[-1] == 1


def test_drift_after_each_optimizer_step(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    found = ratio_tail(coin(changes={"train.optimizer_steps_per_rollout": 4}), asked, seed=0, listener=heard)
    products = [r.log_products for r in found.arms[0].rollouts]
    assert {len(p) for p in products} == {4}
    assert len({p[0] for p in products} | {p[-1] for p in products}) > 2
    assert heard.done[-1] == 4
    subject = coin(changes={"train.optimizer_steps_per_rollout": 4})
    model = subject.language_model.model
    before = model.logits.detach().clone()
    other = ratio_tail(subject, asked, seed=1, listener=heard)
    assert torch.equal(model.logits, before) and model.logits.grad is None and not model.training
    assert [r.log_products for r in other.arms[0].rollouts] != products  # dealt to the steps otherwise


def test_nothing_to_learn_is_refused(coin: Callable[..., Subject], episode: Make, rolled: Make, heard: Any) -> None:
    nothing = rolled([episode(False, [0]), episode(False, [1])], [episode(True, [0]), episode(False, [1], failed=True)])
    with pytest.raises(RolloutError, match="1 of 4 rollouts on 2 questions are correct"):
        ratio_tail(coin(), nothing, seed=0, listener=heard)
