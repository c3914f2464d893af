"""Logs made by hand, a run that is well in every series and changes to it; and what the fixtures' trackers logged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.log import Log, Series

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
STEPS = 24
SETTINGS = {"learning_rate": 1e-6, "num_generations": 8, "beta": 0.04}


def tracked(seed: int = 0) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, metrics) of the run that the trackers' own files in `LOGS` hold: made up numbers, as TRL's callbacks log
    them, with one NaN and one evaluation."""
    rng = random.Random(seed)
    for step in range(1, STEPS + 1):
        row = {
            "train/reward": round(0.2 + 0.02 * step + rng.gauss(0, 0.03), 4),
            "train/frac_reward_zero_std": round(rng.uniform(0.1, 0.4), 3),
            "train/grad_norm": math.nan if step == 9 else round(rng.uniform(0.1, 0.3), 4),
            "train/entropy": round(0.9 - 0.005 * step, 4),
            "train/completions/mean_length": 120.0 + step,
        }
        if step == 12:
            row["eval/reward"] = 0.5
        yield step, row


ROWS = 60
MakeLog = Callable[..., Log]


def log_of(
    series: Mapping[str, Sequence[float]], *, host: Any = "holdfast", every: int = 1, settings: Any = None
) -> Log:
    """A log whose series all begin at the first row; a value that is None was not logged."""
    made = {}
    for name, values in series.items():
        kept = [(every * (i + 1), v) for i, v in enumerate(values) if v is not None]
        made[name] = Series(np.array([s for s, _ in kept], np.int64), np.array([v for _, v in kept], float))
    steps = sorted({int(s) for one in made.values() for s in one.steps})
    return Log(
        format="holdfast" if host == "holdfast" else "trl",
        host=host,
        name="made",
        series=made,
        steps=np.array(steps, np.int64),
        settings=settings or {},
    )


def well(rows: int = ROWS, seed: int = 0) -> dict[str, list[float]]:
    """The series of a run that learns and sharpens."""
    draw = np.random.default_rng(seed)
    t = np.arange(rows)
    rising = 1 - np.exp(-t / 12)

    def noisy(curve: Any, spread: float) -> list[float]:
        return (curve + draw.normal(0, spread, rows)).tolist()

    ones = np.ones(rows)
    return {
        "reward/mean": noisy(0.4 + 0.4 * rising, 0.04),
        "reward/em": noisy(0.4 + 0.4 * rising, 0.04),
        "likelihood/correct": noisy(-0.9 + 0.3 * rising, 0.01),
        "likelihood/incorrect": noisy(-1.2 + 0.3 * rising, 0.02),
        "likelihood/correct/action_1": noisy(-0.9 + 0.3 * rising, 0.01),
        "likelihood/correct/action_2": noisy(-0.95 + 0.3 * rising, 0.01),
        "displacement/correct": noisy(0.006 * ones, 0.003),
        "displacement/fraction": noisy(0.25 * ones, 0.05),
        "entropy/mean": noisy(1.2 - 0.4 * rising, 0.02),
        "rollout/length": noisy(60 + 10 * rising, 2),
        "ratio/log_product": noisy(-0.05 * ones, 0.03),
        "clip/fraction": noisy(0.003 * ones, 0.0005),
        "grad/norm": noisy(0.4 - 0.2 * rising, 0.03),
        "grad/skipped_steps": [0.0] * rows,
        "penalty/active_fraction": noisy(0.1 * ones, 0.01),
        "penalty/preserved_fraction": noisy(0.6 * ones, 0.02),
        "loss/tokens": [0.0] * rows,
        "sampler/logprob_gap": noisy(0 * ones, 0.001),
        "sampler/mask_mass": [1.0] * rows,
        "rollout/mixed_group_fraction": noisy(0.6 - 0.4 * rising, 0.05),
        "rollout/truncated_fraction": [0.0] * rows,
        "rollout/answered_fraction": [1.0] * rows,
        "rollout/failed_fraction": [0.0] * rows,
        "retrieval/error_fraction": [0.0] * rows,
        "retrieval/empty_fraction": [0.01] * rows,
        "optimizer_steps_per_rollout": [10.0] * rows,
    }


@pytest.fixture
def make_log() -> MakeLog:
    """make_log(seed=0, rows=60, host="holdfast", every=1, settings=None, drop=(), **changed): the run that is well,
    with some series changed: `name_with__for_slashes=lambda rows: values`, or a list."""

    def make(
        *, seed: int = 0, rows: int = ROWS, drop: Sequence[str] = (), only: Sequence[str] = (), **more: Any
    ) -> Log:
        how = {key: more.pop(key) for key in ("host", "every", "settings") if key in more}
        series = well(rows, seed)
        series["loss/tokens"] = list(series["rollout/length"])
        for key, change in more.items():
            name = key.replace("__", "/")
            series[name] = list(change(np.array(series.get(name, np.zeros(rows)))) if callable(change) else change)
        kept = {n: v for n, v in series.items() if n not in drop and (not only or n in only)}
        return log_of(kept, **how)

    return make
