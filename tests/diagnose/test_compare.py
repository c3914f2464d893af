"""What differs first between two runs: nothing in two draws of one run, and the cause in one that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from holdfast.diagnose.compare import compare, differing_settings, first_difference, parts_at
from holdfast.diagnose.log import Log, Series
from holdfast_research.null_model import Run, drawn, log_of
from holdfast_research.null_pairs import comparisons


def changed(log: Log, name: str, change: Callable[[np.ndarray], np.ndarray]) -> Log:
    return replace(log, series={**log.series, name: Series(log.series[name].steps, change(log.series[name].values))})


@pytest.fixture
def run() -> Run:
    """A healthy run of 300 rows with a moderate reward and noise that lasts."""
    return replace(drawn(300, 64, 3), mean=0.6, shape="plateau", memory=0.5, season=0.0, functions=1, observed=False)


@pytest.mark.parametrize(("rows", "pairs", "most"), [(20, 40, 3), pytest.param(100, 100, 4, marks=pytest.mark.long)])
def test_two_draws_of_a_run_rarely_differ(rows: int, pairs: int, most: int) -> None:
    """At most 2 in 100 may; this many are still compatible with that."""
    assert sum(bool(comparison.differences) for comparison in comparisons(rows, pairs)) <= most


def test_the_cause_is_found_before_the_fall(run: Run) -> None:
    """Entropy doubles over steps 150 to 170. The reward falls to a fifth over steps 180 to 200."""
    a, b = log_of(run, 1), log_of(run, 2)
    steps = np.arange(1, 301)
    b = changed(b, "entropy/mean", lambda values: values * (1 + np.clip((steps - 150) / 20, 0, 1)))
    b = changed(b, "reward/mean", lambda values: values * (1 - 0.8 * np.clip((steps - 180) / 20, 0, 1)))
    found = {one.series: one for one in compare(a, b).differences}
    first, fall = compare(a, b).differences[0], found["reward/mean"]
    assert first.series == "entropy/mean" and 150 < first.step < 180 < fall.step < 210
    assert first.b > first.a and fall.b < fall.a
    assert all(one.step <= other.step for one, other in pairwise(compare(a, b).differences))
    assert {one.series for one in compare(b, a).differences} == set(found)


def test_a_difference_from_the_first_row(run: Run) -> None:
    a, b = log_of(run, 1), changed(log_of(run, 2), "rollout/length", lambda values: 2 * values)
    assert {one.series for one in compare(a, b).differences} >= {"rollout/length"}
    assert next(one.step for one in compare(a, b).differences if one.series == "rollout/length") < 20


def test_a_difference_must_exceed_the_noise_and_one_outlier_is_none() -> None:
    noise, rows = np.random.default_rng(1).normal(size=100), np.arange(100)
    assert parts_at(np.where(rows == 50, 1000.0, noise), 5) is None
    assert parts_at(np.where(rows >= 50, 1000.0, noise), 5) == 50
    assert parts_at(noise + np.where(rows < 3, 8.0, 0.0), 5) is None, "fewer rows than a mean has are none"
    small, large = (parts_at(noise + np.where(rows >= 60, jump, 0.0), 5, tries=20) for jump in (1.0, 10.0))
    assert small is None and large is not None


def test_only_shared_steps_are_compared(run: Run) -> None:
    whole = log_of(run, 1)
    every_tenth = replace(whole, series={n: Series(s.steps[::10], s.values[::10]) for n, s in whole.series.items()})
    few = replace(whole, series={n: Series(s.steps[::30], s.values[::30]) for n, s in whole.series.items()})
    assert compare(whole, every_tenth).series > 10 and not compare(whole, every_tenth).differences
    assert compare(whole, few).series == 0 and "in common" in first_difference(compare(whole, few))


def test_settings_that_differ(run: Run) -> None:
    log = log_of(run, 1)
    a = replace(log, settings={"run.name": "a", "train": {"lr": 1e-6, "steps": 40}, "seed": 1})
    b = replace(log, settings={"run.name": "b", "train": {"lr": 1e-5, "steps": 40}})
    assert differing_settings([a, b]) == {"seed": ["1", None], "train.lr": ["1e-06", "1e-05"]}
