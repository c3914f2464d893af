"""`holdfast_research.pages.influence`: phases, pooling and intervals, on made-up numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import mean

import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast_research.pages.influence import (
    Pairs,
    Probed,
    ProbedRun,
    estimate,
    from_kept,
    ranks,
    to_kept,
)
from holdfast_research.probes import Influence
from holdfast_research.probes.influence import Influenced, Similarity

REWARDS = [0.2, 0.4, 0.6] + [0.8] * 10 + [0.5, 0.2] + [0.1] * 8
"""The five-step mean is highest at step 8; the fall is shown at step 18."""


@pytest.fixture
def found() -> Callable[..., Influence]:
    """found([(question, predicted, gradient, optimizer), ...]): each a correct rollout of one action."""

    def make(units: Sequence[tuple[str, float, float, float]]) -> Influence:
        rows = []
        for number, (question, *changes) in enumerate(units):
            for action in (0, 1):
                predicted, gradient, optimizer = (change * (1 + action) for change in changes)
                rows.append(
                    Influenced(
                        question=question, rollout=number, action=action, tokens=3, predicted=predicted,
                        gradient=gradient, optimizer=optimizer,
                    )
                )  # fmt: skip
        alike = Similarity(action=1, incorrect_correct=0.5, correct_correct=None, other_questions=0.25)
        return Influence(asked=9, used=len({u[0] for u in units}), units=tuple(rows), similarity=(alike,))

    return make


@pytest.fixture
def run(found: Callable[..., Influence]) -> ProbedRun:
    """Checkpoints at 5, 8, 9, 18 and 19, with two correct rollouts of each of six questions."""
    rng = random.Random(0)
    checkpoints = []
    for step in (5, 8, 9, 18, 19):
        units = [(f"q{k}", rng.random(), rng.random() - 0.5, rng.random() - 0.2) for k in range(6) for _ in range(2)]
        checkpoints.append(Probed(step=step, influence=found(units)))
    steps = range(1, len(REWARDS) + 1)
    return ProbedRun(
        seed=1,
        rewards=dict(zip(steps, REWARDS, strict=True)),
        displaced={step: step / 100 for step in steps if step != 20},
        checkpoints=tuple(checkpoints),
    )


def test_the_phases_are_those_of_the_fall(run: ProbedRun) -> None:
    assert (run.fall.peak_step, run.fall.step) == (8, 18)
    assert [[c.step for c in run.during(phase)] for phase in ("before", "at", "after")] == [[5, 8], [9, 18], [19]]
    with pytest.raises(DataError, match="seed 7 did not fall"):
        _ = ProbedRun(seed=7, rewards={1: 0.5, 2: 0.5, 3: 0.5}, displaced={}, checkpoints=()).fall


# ---- pooling


def made(levels: Sequence[float], rng: random.Random, *, questions: int = 12, copies: int = 1) -> list[Pairs]:
    """A checkpoint for each level, where what was measured is the prediction with so much noise."""
    checkpoints = []
    for level in levels:
        pairs = [(x := rng.random(), x + level * rng.random()) for _ in range(questions)]
        checkpoints.append({f"q{k}": np.asarray([pair] * copies) for k, pair in enumerate(pairs)})
    return checkpoints


def test_checkpoints_are_not_mixed_and_runs_count_alike() -> None:
    """Two checkpoints of opposite order and levels far apart, in a run, beside a run with one."""
    up = {"a": np.asarray([(1.0, 1.0), (2.0, 2.0)]), "b": np.asarray([(3.0, 3.0)])}
    down = {"a": np.asarray([(1.0, 103.0), (2.0, 102.0)]), "b": np.asarray([(3.0, 101.0)])}
    assert (pooled := estimate([[up, down], [up]], ranks, draws=50)) is not None
    assert pooled.value == pytest.approx(mean([mean([1, -1]), 1]))
    assert estimate([[], []], ranks, draws=50) is None
    two = {"a": np.asarray([(1.0, 1.0), (2.0, 2.0)])}
    assert estimate([[two]], ranks, draws=50) is None


def test_the_interval_draws_questions() -> None:
    """Copies of a unit within its question are no more evidence, and so are copies of a checkpoint."""
    once = made([1.0], random.Random(1))
    copied = made([1.0], random.Random(1), copies=20)
    first, second, third = (estimate([c], ranks, draws=400) for c in (once, copied, once * 5))
    assert first is not None and second is not None and third is not None
    assert first.low < first.value < first.high and first.high - first.low > 0.2
    assert (third.low, third.high) == (first.low, first.high)
    assert (second.low, second.high) == pytest.approx((first.low, first.high), abs=0.05)


# ---- what is kept, and the page


def test_what_is_kept_gives_the_same_numbers(run: ProbedRun) -> None:
    again = from_kept(to_kept(run))
    assert (again.seed, again.rewards, again.displaced) == (run.seed, run.rewards, run.displaced)
    assert again.checkpoints[0].influence.similarity == run.checkpoints[0].influence.similarity
    for one, two in zip(run.checkpoints, again.checkpoints, strict=True):
        assert (one.step, one.influence.asked, one.influence.used) == (
            two.step,
            two.influence.asked,
            two.influence.used,
        )
        for before, after in zip(one.influence.units, two.influence.units, strict=True):
            assert after.optimizer == pytest.approx(before.optimizer, rel=1e-3)
            assert (after.question, after.rollout, after.unit) == (before.question, before.rollout, before.unit)
