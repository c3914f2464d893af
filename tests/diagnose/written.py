"""Logs that a test writes, and the rewards that stand in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log

REWARDS = [round(0.1 + 0.02 * i, 3) for i in range(12)]
NUMBERED = list(enumerate(REWARDS, 1))


def write(folder: Path, text: str | bytes, name: str = "train.log") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(folder: Path, text: str | bytes, name: str = "train.log") -> Log:
    return read_log(write(folder, text, name))


def jsonl(rows: Iterable[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def lines(*forms: str) -> str:
    """A line of every form for each of the rewards: `{i}` is its step, and `{r}` the reward."""
    return "".join(form.format(i=i, r=r) + "\n" for i, r in NUMBERED for form in forms)


def points(log: Log, name: str = "reward/mean") -> list[tuple[int, float]]:
    """(step, value) of a series."""
    series = log.series[name]
    return list(zip(series.steps.tolist(), series.values.round(6).tolist(), strict=True))
