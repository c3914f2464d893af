"""Anything may stand in a log: no rule fails on it, warns, or forgets what it said."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import as_json, headline, to_text
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.rules import RULES

NAMES = sorted(
    {name for rule in RULES.values() for names in rule.needs for name in names}
    | {"advantage/token_mean", "loss/kl", "rewards/one/mean", "rewards/two/mean"}
)


def anything(seed: int) -> Log:
    draw = np.random.default_rng(seed)
    series = {}
    for name in NAMES:
        rows = int(draw.choice([0, 1, 2, 3, 7, 40]))
        steps = np.sort(draw.choice(200, rows, replace=False)).astype(np.int64)
        values = draw.normal(0, 1, rows) * 10.0 ** draw.choice([-300, -9, 0, 1, 9, 150, 307])
        values += draw.choice([0, 0, 1, -1, 1e6])
        odd = draw.random(rows) < draw.choice([0, 0.1, 1.0])
        values[odd] = draw.choice([np.nan, np.inf, -np.inf, 0.0, 1e308, -1e308], odd.sum())
        if draw.random() < 0.8:
            series[name] = Series(steps, values)
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(one.steps for one in series.values())]))
    return Log(format="wandb", host="unknown", name="anything", series=series, steps=steps)


@pytest.mark.parametrize("seed", range(150))
def test_anything(seed: int) -> None:
    log = anything(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diagnosis = diagnose(log)
        json.loads(to_text(as_json(log, diagnosis)))
        assert headline(log, diagnosis)
        for code, rule in RULES.items():
            hit = rule.find(log)
            for step in (3, 50, 120):
                early = rule.find(log.until(step))
                if hit is not None and hit.level == "finding" and hit.step <= step:
                    assert early is not None and early.level == "finding" and early.step <= hit.step, code
                if early is not None and early.level == "finding":  # it stays, has passed, or has come back since
                    assert hit is not None and (hit.level == "note" or hit.step >= early.step), code
