"""Dropped, fell, collapsed: by hand, in any unit, causally, and not for noise."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.base.collapse import FALLEN_ERRORS, FALLEN_SHARE, PLATEAU_ROWS, collapsed, curve_of, dropped, fell
from holdfast.base.trailing import trailing_mean

PEAK = [0.4] * 5 + [0.8] * 24


def step(found: object) -> int | None:
    return getattr(found, "step", None)


@pytest.mark.parametrize(
    ("low", "steps"),
    [
        (0.65, (None, None)),  # 19 % lost
        (0.63, (34, None)),
        (0.49, (32, None)),  # 39 %
        (0.47, (32, 34)),
        (0.0, (30, 31)),
    ],
)
def test_dropped_and_fell_by_hand(low: float, steps: tuple[int | None, int | None]) -> None:
    curve = curve_of(PEAK + [low] * 6)
    assert (step(dropped(curve)), step(fell(curve))) == steps


def test_what_a_fall_says() -> None:
    fall = fell(curve_of(PEAK + [0.0] * 3, range(0, 320, 10)))
    assert fall is not None and (fall.peak_step, fall.step) == (90, 300)
    assert (fall.peak, fall.level, fall.lost) == pytest.approx((0.8, 0.48, 0.4))


def test_a_slow_fall_in_a_noisy_reward_shows_in_the_mean_of_ten() -> None:
    rewards = np.repeat([0.6, 0.38], 30) - 0.06 * (-1.0) ** np.arange(60)
    curve = curve_of(rewards)
    assert not curve.short.has_lost(FALLEN_SHARE, FALLEN_ERRORS).any() and step(fell(curve)) is not None


@pytest.mark.parametrize(("near", "found"), [(PLATEAU_ROWS, True), (PLATEAU_ROWS - 1, False)])
def test_a_collapse_is_a_fall_from_a_plateau(near: int, found: bool) -> None:
    """Means of five are near 0.8 from the fourth row of it, 0.66, to the last: the next one is 0.64."""
    curve = curve_of([0.1] * 5 + [0.8] * (near + 3) + [0.0] * 9)
    assert fell(curve) is not None and (collapsed(curve) is not None) is found


@pytest.mark.parametrize("scale", [0.01, 100.0])
@pytest.mark.parametrize("low", [0.63, 0.47, -0.4])
def test_units_do_not_matter(scale: float, low: float) -> None:
    rewards = np.array(PEAK + [low] * 12)
    for predicate in (dropped, fell, collapsed):
        assert step(predicate(curve_of(scale * rewards))) == step(predicate(curve_of(rewards)))


def test_what_is_lost_is_a_share_of_the_range_with_0_in_it() -> None:
    assert fell(curve_of([-0.98] * 8 + [-1.0] * 20)) is None
    assert fell(curve_of([-0.2] * 8 + [-1.0] * 20)) is not None


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_fall_and_nothing_looks_ahead(seed: int) -> None:
    draw = np.random.default_rng(seed)
    assert fell(curve_of(draw.binomial(16, 0.3, 60) / 16)) is None
    rewards = np.repeat(draw.uniform(-0.5, 1.0, 4), 15) + draw.normal(0, 0.05, 60)
    for predicate in (dropped, fell, collapsed):
        steps = [step(predicate(curve_of(rewards[:end]))) for end in range(1, 61)]
        at = step(predicate(curve_of(rewards)))
        if predicate is not collapsed or at is not None:
            assert steps == [None if at is None or end < at else at for end in range(1, 61)]


def test_a_fall_stays_one_when_the_reward_comes_back() -> None:
    curve = curve_of(PEAK + [0.1] * 6 + [0.9] * 20)
    assert step(fell(curve)) == 32 and not curve.fallen[-1]


def test_what_is_not_finite_is_left_out_and_nothing_is_no_fall() -> None:
    whole = curve_of(PEAK + [0.0] * 9)
    holes = curve_of([*PEAK, float("nan"), float("inf"), *[0.0] * 9])
    assert holes.rewards.tolist() == whole.rewards.tolist() and holes.steps[-1] == len(PEAK) + 11
    for rewards in ([], [0.5], [0.0] * 9, [float("nan")] * 3):
        assert fell(curve_of(rewards)) is None and dropped(curve_of(rewards)) is None


def test_the_mean_looks_back_only() -> None:
    values = np.random.default_rng(0).normal(size=40)
    assert trailing_mean(values, 5) == pytest.approx([np.mean(values[max(0, k - 4) : k + 1]) for k in range(40)])


def test_what_rounding_leaves_of_a_normalised_reward_does_not_fall() -> None:
    rewards = 1e-6 * np.array([1.0] * 20 + [-1.0] * 20)
    assert not curve_of(rewards).fallen.any() and curve_of(1e6 * rewards).fallen.any()
