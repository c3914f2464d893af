"""The tail of the importance ratios, on a policy of two weights; and that it leaves no trace."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from holdfast.base.errors import RolloutError
from holdfast.evaluate.probes import Rollouts, Subject, draw
from holdfast_research.probes import RatioTail, ratio_tail
from holdfast_research.probes.ratio_tail import ArmRatios, RolloutRatios

Make = Callable[..., Any]


@pytest.fixture
def asked(episode: Make, rolled: Make) -> Rollouts:
    """Two questions to learn from, and three that teach nothing: all right, all wrong, rewards but nothing right."""
    return rolled(
        [episode(True, [0]), episode(False, [1])],
        [episode(True, [0, 1]), episode(False, [0, 0, 0])],
        [episode(True, [0]), episode(True, [1])],
        [episode(False, [0]), episode(False, [1])],
        [episode(False, [0], reward=0.5), episode(False, [1])],
    )


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
    assert heard.totals["optimizer steps"] == heard.done == 1


def test_drift_after_each_optimizer_step(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    found = ratio_tail(coin(changes={"train.optimizer_steps_per_rollout": 4}), asked, seed=0, listener=heard)
    products = [r.log_products for r in found.arms[0].rollouts]
    assert {len(p) for p in products} == {4}
    assert len({p[0] for p in products} | {p[-1] for p in products}) > 2
    assert heard.done == 4
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


def test_a_gradient_that_is_not_finite_is_told_of(coin: Callable[..., Subject], asked: Rollouts, heard: Any) -> None:
    subject = coin()
    subject.language_model.model.logits.register_hook(lambda gradient: gradient * torch.nan)
    found = ratio_tail(subject, asked, seed=0, listener=heard)
    assert len(heard.notes) == 1 and "gradient was not finite" in heard.notes[0]
    assert {r.log_products for r in found.arms[0].rollouts} == {(0.0,)}


# ---- what a person reads


def moved(advantage: float, *products: float) -> RolloutRatios:
    return RolloutRatios(id="q", correct=advantage > 0, advantage=advantage, tokens=5, log_products=products)


HALF = math.log(0.5)
RATIO_TAIL = RatioTail(
    arms=(
        ArmRatios(
            penalty="sapo",
            rollouts=(moved(1.0, 2 * HALF, 0.1), moved(1.0, 0.1, HALF), moved(0.0, 0.0, -20.0)),
        ),
    )
)


def test_the_table_and_the_figure(tmp_path: Path) -> None:
    expected = [
        "P(∏ r < ε): share of rollouts whose probability was multiplied by less than ε in 2 optimizer steps on them",
        "penalty   rollouts  ε 0.9  ε 0.5  ε 0.2  ε 0.1  ε 0.01  ε 1e-3  ε 1e-4  ε 1e-6",
        "sapo       all (3)   67 %   33 %   33 %   33 %    33 %    33 %    33 %    33 %",
        "sapo     A > 0 (2)   50 %    0 %    0 %    0 %     0 %     0 %     0 %     0 %",
        "sapo     A < 0 (0)      –      –      –      –       –       –       –       –",
        "",
        "The same for ε = 0.5 and A > 0, after each optimizer step",
        "sapo  50 %  0 %",
    ]
    assert [" ".join(line.split()) for line in RATIO_TAIL.lines()] == [" ".join(line.split()) for line in expected]
    draw(RATIO_TAIL, "a title", tmp_path / "one.svg")
    said = {" ".join(text.split()) for text in ElementTree.parse(tmp_path / "one.svg").getroot().itertext()}
    assert {"a title", "all (3 rollouts)", "A > 0 (2 rollouts)"} <= said
    assert "A < 0 (0 rollouts)" not in said  # there are none
    draw(RATIO_TAIL, "a title", tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    json.dumps(RATIO_TAIL.to_json(), allow_nan=False)
    (arm,) = RATIO_TAIL.to_json()["arms"]  # type: ignore[misc]
    assert arm["share_below"]["positive"][0][:2] == [0.5, 0.5]  # after step 1: 0.25 and 1.1
    assert arm["share_below"]["negative"][1][0] is None
