"""The leak, turn by turn, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.metrics import tail_metrics
from holdfast.agent.trajectory import Trajectory
from holdfast.base.errors import RolloutError
from holdfast.evaluate.probes import Subject, draw, tail_leak
from holdfast.evaluate.probes.subject import batch_of

Make = Callable[..., Any]
PLAIN = {"loss.advantage": "dr_grpo"}


def kept(trajectory: Trajectory, *masses: tuple[float, ...]) -> Trajectory:
    turns = [replace(turn, mask_mass=own) for turn, own in zip(trajectory.turns, masses, strict=True)]
    return replace(trajectory, turns=tuple(turns))


def test_turn_by_turn(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    right = kept(episode(True, [0, 1], [0]), (0.9, 0.8), (1.0,))
    wrong = kept(episode(False, [1], [1, 0], [1]), (0.9,), (0.5, 0.7), (0.6,))
    failed = episode(False, [0], [1], failed=True)
    found = tail_leak(coin(changes=PLAIN), rolled([right, wrong, failed]))  # advantages of a half, and minus a half
    first, second, third = found.turns
    assert (first.rollouts, first.correct, first.tokens) == (2, 1, 3)
    assert (first.advantage, first.mask_mass) == (pytest.approx((1 - 0.5) / 3), pytest.approx(2.6 / 3))
    assert first.tail_advantage == pytest.approx((0.5 * 0.3 - 0.5 * 0.1) / 0.4)
    assert (second.rollouts, second.tokens, second.advantage) == (2, 3, pytest.approx((0.5 - 1) / 3))
    assert second.tail_advantage == pytest.approx(-0.5)  # the right one was sure of its token
    assert (third.rollouts, third.correct, third.tail_advantage) == (1, 0, pytest.approx(-0.5))
    assert found.whole.tokens == 7 and found.whole.advantage == pytest.approx((1.5 - 2) / 7)
    assert found.whole.tail_advantage == pytest.approx((0.5 * 0.3 - 0.5 * (0.1 + 0.8 + 0.4)) / 1.6)


def test_the_whole_is_the_trainers_metric(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    failed = episode(False, [1], failed=True)
    subject = coin()
    rollouts = rolled([kept(episode(True, [0, 1]), (0.9, 0.8)), failed, kept(episode(False, [1]), (0.3,))])
    metrics = tail_metrics(batch_of(subject, rollouts.groups).advantages, rollouts.groups)
    assert metrics == {"advantage/tail_mean": tail_leak(subject, rollouts).whole.tail_advantage}
    assert metrics["advantage/tail_mean"] < 0


def test_a_sampler_that_cuts_nothing(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    found = tail_leak(coin(), rolled([episode(True, [0]), episode(False, [1])]))
    assert (found.whole.mask_mass, found.whole.tail_advantage) == (1.0, None)
    assert "not truncated, so nothing can leak" in found.lines()[0]
    assert found.lines()[-1].endswith("–")


def test_a_loss_that_keeps_the_mask_is_named(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    subject = coin(changes={"sampling.mask_logprobs": True, "sampling.top_p": 0.9, "sampling.top_k": 8})
    found = tail_leak(subject, rolled([kept(episode(True, [0]), (0.9,)), kept(episode(False, [1]), (0.9,))]))
    assert found.mask_in_loss and "nothing leaks" in found.lines()[0]


@pytest.mark.parametrize("kinds", [(True, True), (False, False)])
def test_without_contrast_there_is_nothing_to_push(
    coin: Callable[..., Subject], episode: Make, rolled: Make, kinds: tuple[bool, bool]
) -> None:
    with pytest.raises(RolloutError, match=r"every advantage is 0\. Raise --questions"):
        tail_leak(coin(), rolled([episode(kind, [0]) for kind in kinds]))


def test_failures_alone(coin: Callable[..., Subject], episode: Make, rolled: Make) -> None:
    with pytest.raises(RolloutError, match="all 1 rollouts failed"):
        tail_leak(coin(), rolled([episode(True, [0], failed=True)]))


def test_the_figure(coin: Callable[..., Subject], episode: Make, rolled: Make, tmp_path: Path) -> None:
    for masses in ((0.9,), None):
        pair = [episode(True, [0]), episode(False, [1])]
        rollouts = rolled([kept(t, masses) if masses else t for t in pair])
        draw(tail_leak(coin(), rollouts), "leak", tmp_path / "leak.svg")
        assert ("advantage of the tail" in (tmp_path / "leak.svg").read_text()) == bool(masses)
