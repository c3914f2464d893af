"""What is found at a step depends on the log up to it: over every recorded run, the monitor says what the file says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.monitor import Monitor
from holdfast.diagnose.readers import read_log
from holdfast_research import collection
from holdfast_research.recordings.library import FOLDER, PACKED, read_manifest

RECORDINGS = sorted(recording.name for recording in read_manifest())
RUNS = [pytest.param(name, marks=[pytest.mark.long] if number % 5 else []) for number, name in enumerate(RECORDINGS)]


def log_of(name: str, folder: Path) -> Log:
    """The log alone: a monitor has no settings."""
    ((file, text),) = collection.read(FOLDER / PACKED)[name].items()
    (folder / file).write_text(text, encoding="utf-8")
    return read_log(folder / file)


def rows_of(log: Log) -> Iterator[tuple[int, dict[str, float]]]:
    table: dict[int, dict[str, float]] = {int(step): {} for step in log.steps}
    for name, series in log.series.items():
        for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
            table[step][name] = value
    yield from table.items()


def changed(log: Log, seed: int) -> Log:
    """Noise, holes, and series that begin late or are not there at all."""
    draw = np.random.default_rng(seed)
    series = {}
    for name, one in log.series.items():
        begins = draw.choice([0, 0, 0, len(one) // 3, len(one)])
        keep = (draw.random(len(one)) > 0.1) & (np.arange(len(one)) >= begins)
        values = one.values + draw.normal(0, 0.1, len(one)) * np.nanstd(
            np.where(np.isfinite(one.values), one.values, np.nan)
        )
        values = np.where(draw.random(len(one)) > 0.02, values, draw.choice([np.nan, np.inf, -np.inf]))
        if keep.any():
            series[name] = Series(one.steps[keep], values[keep])
    return replace(log, series=series)


@pytest.mark.grid(6)
@pytest.mark.parametrize("name", RUNS)
def test_the_monitor_says_what_the_file_says(name: str, tmp_path: Path) -> None:
    """What it says at a step is what the file says that ends there, unless it was said before."""
    log = log_of(name, tmp_path)
    for one in (log, changed(log, 1)):
        monitor, reported = Monitor(host=one.host), set[tuple[str, int]]()
        for step, metrics in rows_of(one):
            new = monitor.observe(step, metrics)
            assert all(finding.step == step for finding in new)
            if new:
                said = {
                    finding.code: repr(replace(finding, lead=None)) for finding in diagnose(one.until(step)).findings
                }
                assert all(said[finding.code] == repr(replace(finding, lead=None)) for finding in new)
            reported |= {(finding.code, finding.step) for finding in new}
        assert {(finding.code, finding.step) for finding in diagnose(one).findings} <= reported
