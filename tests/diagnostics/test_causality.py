"""What is found at a step depends on the log up to it: over every recorded run, the monitor says what the file says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.diagnostics.diagnose import diagnose
from holdfast.diagnostics.finding import Finding
from holdfast.diagnostics.log import Log, Series
from holdfast.diagnostics.monitor import Monitor
from holdfast.diagnostics.readers import read_log

FOLDER = Path(__file__).parents[2] / "research" / "data" / "recordings"
RECORDINGS = sorted(FOLDER.glob("*.gz"))


def codes_and_steps(findings: tuple[Finding, ...]) -> list[str]:
    """Everything but the lead, as text: NaN is not equal to itself."""
    return [repr(replace(finding, lead=None)) for finding in findings]


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


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.name.partition(".")[0] for path in RECORDINGS])
def test_the_monitor_says_what_the_file_says(path: Path) -> None:
    log = read_log(path)
    for one in (log, changed(log, 1)):
        monitor = Monitor(host=one.host)
        found: list[Finding] = []
        for step, metrics in rows_of(one):
            new = monitor.observe(step, metrics)
            assert all(finding.step == step for finding in new)
            found += new
        assert codes_and_steps(tuple(found)) == codes_and_steps(diagnose(one).findings)


@pytest.mark.parametrize("path", RECORDINGS[::4], ids=[path.name.partition(".")[0] for path in RECORDINGS[::4]])
def test_a_finding_once_made_stays(path: Path) -> None:
    log = read_log(path)
    for one in (log, changed(log, 2), changed(log, 3)):
        findings = diagnose(one).findings
        for step in one.steps[2::7].tolist():
            known = tuple(finding for finding in findings if finding.step <= step)
            assert codes_and_steps(diagnose(one.until(step)).findings) == codes_and_steps(known), step
