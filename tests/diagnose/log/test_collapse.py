"""Dropped, fell, collapsed: by hand, in any unit, causally, and not for noise."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.collapse import PLATEAU_ROWS, Curve, Fall, collapsed, curve_of, fell
from holdfast.diagnose.log.trailing import count_of, drawn_count, first, margin, noise, noise_of_mean, trailing_mean

PEAK = [0.4] * 5 + [0.8] * 24


def step(found: object) -> int | None:
    return getattr(found, "step", None)


def first_drop(curve: Curve) -> Fall | None:
    row = first(curve.dropped)
    return None if row is None else curve.loss_at(row, curve.short)


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
    assert (step(first_drop(curve)), step(fell(curve))) == steps


@pytest.mark.parametrize(("near", "found"), [(PLATEAU_ROWS, True), (PLATEAU_ROWS - 1, False)])
def test_a_collapse_is_a_fall_from_a_plateau(near: int, found: bool) -> None:
    """Means of five are near 0.8 from the fourth row of it, 0.66, to the last: the next one is 0.64."""
    curve = curve_of([0.1] * 5 + [0.8] * (near + 3) + [0.0] * 9)
    assert fell(curve) is not None and (collapsed(curve) is not None) is found


def test_what_is_lost_is_a_share_of_the_range_with_0_in_it() -> None:
    assert fell(curve_of([-0.98] * 8 + [-1.0] * 20)) is None
    assert fell(curve_of([-0.2] * 8 + [-1.0] * 20)) is not None


@pytest.mark.parametrize("seed", range(8))
def test_noise_is_no_fall_and_nothing_looks_ahead(seed: int) -> None:
    draw = np.random.default_rng(seed)
    assert fell(curve_of(draw.binomial(16, 0.3, 60) / 16)) is None
    rewards = np.repeat(draw.uniform(-0.5, 1.0, 4), 15) + draw.normal(0, 0.05, 60)
    for predicate in (first_drop, fell, collapsed):
        steps = [step(predicate(curve_of(rewards[:end]))) for end in range(1, 61)]
        at = step(predicate(curve_of(rewards)))
        if predicate is not collapsed or at is not None:
            assert steps == [None if at is None or end < at else at for end in range(1, 61)]


def test_a_fall_stays_one_when_the_reward_comes_back() -> None:
    curve = curve_of(PEAK + [0.1] * 6 + [0.9] * 20)
    assert step(fell(curve)) == 32 and not curve.fallen[-1]


@pytest.mark.parametrize(
    ("begins", "rises"),
    [
        ([-0.07] * 3 + [0.0] * 50, False),  # odd rows before a constant
        ([-0.07] * 4 + [0.0] * 50, True),
    ],
)
def test_a_few_odd_rows_are_no_rise(begins: list[float], rises: bool) -> None:
    assert curve_of(begins).rose[-1] == rises


def test_what_is_not_finite_is_left_out_and_nothing_is_no_fall() -> None:
    whole = curve_of(PEAK + [0.0] * 9)
    holes = curve_of([*PEAK, float("nan"), float("inf"), *[0.0] * 9])
    assert holes.rewards.tolist() == whole.rewards.tolist() and holes.steps[-1] == len(PEAK) + 11
    for rewards in ([], [0.5], [0.0] * 9, [float("nan")] * 3):
        assert fell(curve_of(rewards)) is None and first_drop(curve_of(rewards)) is None


def test_what_rounding_leaves_of_a_normalised_reward_does_not_fall() -> None:
    rewards = 1e-6 * np.array([1.0] * 20 + [-1.0] * 20)
    assert not curve_of(rewards).fallen.any() and curve_of(1e6 * rewards).fallen.any()


# ---- noise is estimated at the scale of a mean, and a fall has to stand out of it at any length


Rewards = np.ndarray


def by_steps(*parts: tuple[float, int]) -> Rewards:
    return np.concatenate([np.full(rows, level) for level, rows in parts])


def diagnosed(rewards: Rewards) -> Diagnosis:
    steps = np.arange(1, len(rewards) + 1)
    series = {"reward/mean": Series(steps, np.asarray(rewards, np.float64))}
    return diagnose(Log(format="trl", host="trl", name="", series=series, steps=steps))


def findings(rewards: Rewards) -> list[str]:
    return [finding.code for finding in diagnosed(rewards).findings]


def with_memory(seed: int, rows: int, memory: float) -> Rewards:
    draw = np.random.default_rng(seed).normal(size=rows + 200)
    return np.asarray(np.convolve(draw, memory ** np.arange(201), "valid") * np.sqrt(1 - memory**2))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("window", [5, 10])
def test_the_noise_of_a_mean_is_that_of_its_means(memory: float, window: int) -> None:
    values = with_memory(1, 3000, memory)
    assert noise_of_mean(values, window)[-1] == pytest.approx(trailing_mean(values, window).std(), rel=0.35)


@pytest.mark.parametrize("break_at", [40, 100, 400])
def test_neither_a_break_nor_a_trend_is_noise(break_at: int) -> None:
    draw = np.random.default_rng(0).normal(0, 0.1, break_at + 10)
    values = draw + by_steps((0.0, break_at), (5.0, 10)) + np.linspace(0, 3, break_at + 10)
    assert 0.03 < noise_of_mean(values, 5)[-1] < 0.1
    assert noise(values[:9], 5)[-1] < 0.3


def test_noise_never_looks_ahead() -> None:
    values = with_memory(2, 400, 0.5).round(2)
    for rows in (1, 2, 7, 45, 133, 134, 300):
        for of in (noise_of_mean, lambda v, w: margin(v, w, 4.0), lambda v, w: noise(v, w)):
            assert np.array_equal(of(values[:rows], 5), of(values, 5)[:rows])
        assert np.array_equal(drawn_count(values[:rows]), drawn_count(values)[:rows])


def test_the_number_of_binary_rewards_shows() -> None:
    draw = np.random.default_rng(0)
    assert count_of(draw.binomial(8, 0.4, 50) / 8)[-1] == 8
    assert count_of((draw.binomial(32, 0.4, 50) / 32).round(4))[-1] == 32
    assert np.isinf(count_of(draw.random(50))[-1])
    assert np.isinf(drawn_count(np.full(50, 0.8))[-1])  # it repeats, so it is not drawn anew


@pytest.mark.parametrize(("completions", "mean"), [(4, 0.2), (8, 0.4), (16, 0.2), (64, 0.2), (128, 0.6)])
def test_stationary_rewards_do_not_fall(completions: int, mean: float) -> None:
    draw = np.random.default_rng(completions)
    assert not any(findings(draw.binomial(completions, mean, 1000) / completions) for _ in range(10))


FALLS: dict[str, Rewards] = {
    "in eight rows": by_steps((0.8, 4), (0.0, 4)),
    "in twelve": by_steps((0.8, 6), (0.02, 6)),
    "slowly": np.concatenate([np.full(15, 0.6), np.linspace(0.6, 0.1, 15), np.full(10, 0.1)]),
    "late": by_steps((0.5, 900), (0.1, 100)),
    "after the first row": by_steps((0.5, 1), (0.0, 19)),
}


@pytest.mark.parametrize("name", FALLS)
@pytest.mark.parametrize("completions", [16, 64])
def test_falls_are_found(name: str, completions: int) -> None:
    draw, runs = np.random.default_rng(1), 20
    found = [findings(draw.binomial(completions, FALLS[name]) / completions) for _ in range(runs)]
    assert sum("RWD001" in codes for codes in found) >= 0.9 * runs


def test_a_slow_fall_of_a_very_noisy_reward_is_found_in_a_long_log() -> None:
    draw = np.random.default_rng(3)
    rewards = draw.binomial(8, by_steps((0.5, 900), (0.3, 600))) / 8
    short, *slow = (shown.any() for _, shown in curve_of(rewards).falls)
    assert not short and any(slow)
    assert fell(curve_of(rewards)) is not None


def test_a_dip_that_came_back_is_a_note_until_it_falls_again() -> None:
    rewards = by_steps((0.8, 20), (0.1, 10), (0.8, 20), (0.1, 10)) + np.random.default_rng(0).normal(0, 0.02, 60)
    whole, dip = diagnosed(rewards), diagnosed(rewards[:50])
    assert [f.code for f in dip.notes if f.code != "RWD004"] == ["RWD001"] and not dip.findings
    assert [f.code for f in whole.findings] == ["RWD001"] and whole.findings[0].step > 50
