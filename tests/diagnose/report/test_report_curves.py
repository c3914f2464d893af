"""What is thinned away must not be seen, and what is smoothed must not know the future."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.report.data import curve, share_of_samples, smoothed, thin


@pytest.mark.parametrize("count", [1, 100, 101, 10_000])
@pytest.mark.parametrize("most", [4, 100])
def test_thinning_keeps_the_picture(count: int, most: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    kept = thin(values, most)
    assert len(kept) <= most or count <= most
    assert (np.diff(kept) > 0).all() and kept[0] == 0 and kept[-1] == count - 1
    assert values[kept].min() == values.min() and values[kept].max() == values.max()


def test_a_short_or_broken_series_is_not_smoothed() -> None:
    steps = np.arange(30)
    assert smoothed(Series(steps[:14], np.ones(14))) is None
    values = np.ones(30)
    values[3] = np.nan
    mean = smoothed(Series(steps, values))
    assert mean is not None and mean.steps[0] == 5 and np.isfinite(mean.values).all() and len(mean) == 25


def test_a_long_series_is_smoothed_over_more_values() -> None:
    noise = np.random.default_rng(0).normal(size=10_000)
    mean = smoothed(Series(np.arange(10_000), noise))
    assert mean is not None and mean.steps[0] == 49 and len(mean) == 9951
    assert mean.values[0] == pytest.approx(noise[:50].mean()) and mean.values.std() < 0.2


def test_numbers_that_are_none_are_told_apart(make_log: Callable[..., Log]) -> None:
    log = make_log({"x": [1.0, float("nan"), 2.0, float("inf"), -float("inf")]})
    assert curve(log.series["x"], 100) == {"x": [1, 3], "y": [1, 2], "bad": [2, 4, 5]}
    assert len(curve(make_log({"x": [float("nan")] * 5000}).series["x"], 100)["bad"]) == 200


def test_samples_are_sorted_over_their_share() -> None:
    changes = np.random.default_rng(1).normal(size=999).tolist()
    found = share_of_samples([*changes, float("nan")])
    assert len(found["x"]) == 200 and found["y"] == sorted(found["y"]) and found["x"] == sorted(found["x"])
    assert 0 < found["x"][0] < 0.1 and 99 < found["x"][-1] <= 100
    assert found["y"][0] == pytest.approx(min(changes), rel=1e-3)
    below = max(x for x, y in zip(found["x"], found["y"], strict=True) if y < 0)
    assert below == pytest.approx(100 * np.mean(np.array(changes) < 0), abs=1)
    assert share_of_samples([]) == share_of_samples([float("nan")]) == {"x": [], "y": []}
