"""First actions and rounds of searches of a policy that says token 0 with probability 0.8, token 1 with 0.2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast.base.errors import RolloutError
from holdfast.evaluate.probes import Subject, draw
from holdfast_research.probes import FirstAction, by_searches, first_action
from holdfast_research.probes.likelihood import Level

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
    assert [told(level) for level in found.correct] == [
        near(3, (ZERO + ZERO + ONE) / 3),
        near(2, (ZERO + ONE) / 2),
    ]
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
    from dataclasses import replace

    from holdfast.agent.metrics import rollout_metrics

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


# ---- what a person reads


FIRST_ACTION = FirstAction(
    compared=4,
    matching=3,
    correct=(Level(rollouts=5, logprob=-0.25), Level(rollouts=1, logprob=-1.0)),
    incorrect=(Level(rollouts=4, logprob=-0.5),),
    first_matching=Level(rollouts=3, logprob=-0.125),
    first_other=Level(rollouts=0, logprob=None),
)


def test_the_table_and_the_figure_of_first_actions(tmp_path: Path) -> None:
    expected = [
        "4 incorrect rollouts belong to questions with a correct one. 3 of them (75 %) began with a "
        "search that returned the same passages.",
        "Log-prob per token, mean over rollouts (rollouts)",
        "action                                 1           2",
        "correct rollouts                -0.250 (5)  -1.000 (1)",
        "incorrect rollouts                -0.500 (4)",
        "incorrect, began as a correct one   -0.125 (3)",
        "incorrect, began differently                 –",
    ]
    assert [" ".join(line.split()) for line in FIRST_ACTION.lines()] == [" ".join(line.split()) for line in expected]
    draw(FIRST_ACTION, "a title", tmp_path / "one.svg")
    said = {" ".join(text.split()) for text in ElementTree.parse(tmp_path / "one.svg").getroot().itertext()}
    assert {"a title", "3 of 4 incorrect rollouts (75 %) began as a correct one"} <= said
    assert "incorrect, began differently" not in said  # there are none
    draw(FIRST_ACTION, "a title", tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    json.dumps(FIRST_ACTION.to_json(), allow_nan=False)
