"""What a person reads: tables to the letter, and figures with their numbers in them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.evaluate.probes import BySearches, FirstAction, PerSample, RatioTail, Result, draw, lines
from holdfast.evaluate.probes.likelihood import Level, Rounds
from holdfast.evaluate.probes.updates import ArmChange, ArmRatios, QuestionChange, Response, RolloutRatios


def question(number: int, right: float, *wrong: float) -> QuestionChange:
    responses = [Response(correct=True, tokens=10, change=right)]
    responses += [Response(correct=False, tokens=20, change=change) for change in wrong]
    return QuestionChange(id=f"q{number}", question="?", responses=tuple(responses))


def moved(advantage: float, *products: float) -> RolloutRatios:
    return RolloutRatios(id="q", correct=advantage > 0, advantage=advantage, tokens=5, log_products=products)


HALF = math.log(0.5)
PER_SAMPLE = PerSample(
    asked=8,
    optimizer_steps=5,
    arms=(
        ArmChange(penalty="none", questions=(question(1, -0.5, -2.0), question(2, 1.5, -4.0))),
        ArmChange(penalty="llds", questions=(question(1, 0.25), question(2, 1.75))),
    ),
)
FIRST_ACTION = FirstAction(
    compared=4,
    matching=3,
    correct=(Level(rollouts=5, logprob=-0.25), Level(rollouts=1, logprob=-1.0)),
    incorrect=(Level(rollouts=4, logprob=-0.5),),
    first_matching=Level(rollouts=3, logprob=-0.125),
    first_other=Level(rollouts=0, logprob=None),
)
BY_SEARCHES = BySearches(
    rounds=(
        Rounds(
            searches=0,
            everyone=Level(rollouts=2, logprob=-0.5),
            correct=Level(rollouts=0, logprob=None),
            incorrect=Level(rollouts=2, logprob=-0.5),
        ),
        Rounds(
            searches=3,
            everyone=Level(rollouts=12, logprob=-0.75),
            correct=Level(rollouts=6, logprob=-0.25),
            incorrect=Level(rollouts=6, logprob=-1.25),
        ),
    )
)
RATIO_TAIL = RatioTail(
    arms=(
        ArmRatios(
            penalty="sapo",
            rollouts=(moved(1.0, 2 * HALF, 0.1), moved(1.0, 0.1, HALF), moved(0.0, 0.0, -20.0)),
        ),
    )
)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (
            PER_SAMPLE,
            [
                "2 of 8 questions have a correct rollout and one with another reward. Each got its own update "
                "of 5 optimizer steps.",
                "Change of log-likelihood, mean over rollouts: nats per rollout (per token)",
                "penalty  questions displaced    correct rollouts    incorrect rollouts",
                "none           1 of 2 (50 %)  +0.500 (+0.0500)  -3.000 (-0.1500)",
                "llds            0 of 2 (0 %)  +1.000 (+0.1000)                 –",
            ],
        ),
        (
            FIRST_ACTION,
            [
                "4 incorrect rollouts belong to questions with a correct one. 3 of them (75 %) began with a "
                "search that returned the same passages.",
                "Log-prob per token, mean over rollouts (rollouts)",
                "action                                 1           2",
                "correct rollouts                -0.250 (5)  -1.000 (1)",
                "incorrect rollouts                -0.500 (4)",
                "incorrect, began as a correct one   -0.125 (3)",
                "incorrect, began differently                 –",
            ],
        ),
        (
            BY_SEARCHES,
            [
                "Log-prob per token, mean over rollouts (rollouts)",
                "searches          all       correct       incorrect",
                "0          -0.500 (2)           –  -0.500 (2)",
                "3         -0.750 (12)  -0.250 (6)  -1.250 (6)",
            ],
        ),
        (
            RATIO_TAIL,
            [
                "P(∏ r < ε): share of rollouts whose probability was multiplied by less than ε in 2 optimizer "
                "steps on them",
                "penalty   rollouts  ε 0.9  ε 0.5  ε 0.2  ε 0.1  ε 0.01  ε 1e-3  ε 1e-4  ε 1e-6",
                "sapo       all (3)   67 %   33 %   33 %   33 %    33 %    33 %    33 %    33 %",
                "sapo     A > 0 (2)   50 %    0 %    0 %    0 %     0 %     0 %     0 %     0 %",
                "sapo     A < 0 (0)      –      –      –      –       –       –       –       –",
                "",
                "The same for ε = 0.5 and A > 0, after each optimizer step",
                "sapo  50 %  0 %",
            ],
        ),
    ],
    ids=["per-sample", "first-action", "by-searches", "ratio-tail"],
)
def test_tables(result: Result, expected: list[str]) -> None:
    assert [" ".join(line.split()) for line in lines(result)] == [" ".join(line.split()) for line in expected]
    table = [line for line in lines(result) if "  " in line]
    assert max(map(len, table)) <= 80


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (PER_SAMPLE, ["none: 1 of 2 questions displaced (50 %)", "llds: 0 of 2 questions displaced (0 %)"]),
        (
            FIRST_ACTION,
            ["3 of 4 incorrect rollouts (75 %) began as a correct one", "incorrect, began as a correct one"],
        ),
        (BY_SEARCHES, ["searches", "12", "correct"]),
        (
            RATIO_TAIL,
            ["sapo: after 2 optimizer steps (thin: A > 0, earlier steps)", "all (3 rollouts)", "A > 0 (2 rollouts)"],
        ),
    ],
    ids=["per-sample", "first-action", "by-searches", "ratio-tail"],
)
def test_figures(result: Result, words: list[str], tmp_path: Path) -> None:
    draw(result, "a title", tmp_path / "one.svg")
    said = {" ".join(text.split()) for text in ElementTree.parse(tmp_path / "one.svg").getroot().itertext()}
    assert {"a title", *words} <= said
    assert "incorrect, began differently" not in said  # there are none
    assert "A < 0 (0 rollouts)" not in said
    draw(result, "a title", tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize("result", [PER_SAMPLE, FIRST_ACTION, BY_SEARCHES, RATIO_TAIL])
def test_json_has_no_nan(result: Result) -> None:
    json.dumps(result.to_json(), allow_nan=False)


def test_json_numbers() -> None:
    (plain, llds) = PER_SAMPLE.to_json()["arms"]  # type: ignore[misc]
    assert (plain["displaced"], plain["displaced_share"], plain["questions_used"]) == (1, 0.5, 2)
    assert (plain["correct_change"], plain["correct_change_per_token"]) == (0.5, pytest.approx(0.05))
    assert (plain["incorrect_change"], plain["incorrect_change_per_token"]) == (-3.0, pytest.approx(-0.15))
    assert llds["incorrect_change"] is None
    (arm,) = RATIO_TAIL.to_json()["arms"]  # type: ignore[misc]
    assert arm["share_below"]["positive"][0][:2] == [0.5, 0.5]  # after step 1: 0.25 and 1.1
    assert arm["share_below"]["negative"][1][0] is None
