"""The null model draws what it says, and the rules say nothing of a healthy run. The command counts in more runs."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast_research.null_model import (
    Verdict,
    autocorrelated,
    drawn,
    log_of,
    rate,
    runs_of,
    table,
    too_many,
    verdicts,
)

AT_MOST = 0.05
"""Findings per run in the few runs of a test. The cells of the command have `CELL_AT_MOST`."""


def test_a_run_is_drawn_again_by_its_seed() -> None:
    one, same, other = (log_of(drawn(100, 8, seed)) for seed in (1, 1, 2))
    rewards = [log.series["reward/mean"].values for log in (one, same, other)]
    assert np.array_equal(rewards[0], rewards[1]) and not np.array_equal(rewards[0], rewards[2])
    assert all(len(part) == 100 for name, part in one.series.items() if not name.startswith("eval/"))


def test_rewards_are_means_of_so_many() -> None:
    for seed in range(3):
        correct = log_of(drawn(60, 8, seed)).series["rewards/correct/mean"].values * 8
        assert np.allclose(correct, correct.round()) and correct.std() > 0


def test_noise_has_its_memory() -> None:
    memory = 0.9
    noise = autocorrelated(np.random.default_rng(0), 20_000, memory)
    assert noise.std() == pytest.approx(1, abs=0.1)
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(memory, abs=0.05)


@pytest.mark.parametrize(
    ("rows", "completions", "runs"),
    [((20, 100, 300), (8, 64), 8), pytest.param((20, 100, 300, 1000), (8, 64, 512), 12, marks=pytest.mark.long)],
)
def test_healthy_runs_have_no_findings(rows: tuple[int, ...], completions: tuple[int, ...], runs: int) -> None:
    found = list(verdicts(rows, completions, runs))
    assert len(found) == len(rows) * (len(completions) + 3) * runs
    assert rate(found) <= AT_MOST, [v for v in found if v.codes]
    assert not [v for v in found if "RWD004" in v.reasons and v.run.shape == "rising"], "it learns"


def test_cells_above_the_limit_are_named() -> None:
    silent, loud = (
        Verdict(run=drawn(20, size, 1), codes=codes, steps=()) for size, codes in ((8, ()), (64, ("RWD001",)))
    )
    assert too_many([silent, loud]) == ["20 rows, 64 completions: 1.000"]
    assert "| RWD001 | 0.500 |" in table([silent, loud])
    assert runs_of(20, 200) == 200 and runs_of(10_000, 200) == 60
