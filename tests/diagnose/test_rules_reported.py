"""What people report is named, by each trainer's own series, and is not named in a run that is well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.diagnose.reported import HOSTS, REPORTED, written

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.rules import RULES

NEW = {"TOL001", "TOL002", "LRN001", "RWD004", "SMP003", "OFP001"}
CASES = [(name, host) for name, case in REPORTED.items() for host in case.hosts]


def judged(file: Path) -> Diagnosis:
    return diagnose(read_log(file))


@pytest.mark.parametrize("host", HOSTS)
def test_a_run_that_is_well(host: str, tmp_path: Path) -> None:
    diagnosis = judged(written(host, {}, tmp_path))
    assert not diagnosis.findings
    assert not NEW & {note.code for note in diagnosis.notes}


def test_every_new_code_has_a_case() -> None:
    assert {case.code for case in REPORTED.values()} == NEW | {"SMP002"}
    assert {host for _, host in CASES} == set(HOSTS)


@pytest.mark.parametrize(("name", "host"), CASES)
def test_it_is_named_first(name: str, host: str, tmp_path: Path) -> None:
    case = REPORTED[name]
    other = ("calls",) if "turns" in case.changes else ()
    diagnosis = judged(written(host, case.changes, tmp_path, leave_out=other))
    reported = diagnosis.findings if case.level == "finding" else diagnosis.notes
    assert reported and reported[0].code == case.code, diagnosis
    assert case.level == "finding" or not diagnosis.findings


def disturbed(log: Log, seed: int) -> Log:
    """Noise, holes, and series that begin late."""
    draw = np.random.default_rng(seed)
    series = {}
    for name, one in log.series.items():
        keep = (draw.random(len(one)) > 0.1) & (np.arange(len(one)) >= draw.choice([0, 0, len(one) // 3]))
        values = one.values + 0.1 * np.std(one.values) * draw.normal(size=len(one))
        series[name] = Series(one.steps[keep], np.where(draw.random(len(one)) > 0.02, values, np.nan)[keep])
    return replace(log, series={name: one for name, one in series.items() if len(one)})


@pytest.mark.parametrize(("name", "host"), CASES)
def test_no_new_rule_looks_ahead(name: str, host: str, tmp_path: Path) -> None:
    """A finding is made of the rows up to its step: a log that ends there has it, with the same words."""
    whole = read_log(written(host, REPORTED[name].changes, tmp_path))
    for log in (whole, *(disturbed(whole, seed) for seed in range(3))):
        for code in NEW - {"RWD004"}:  # a note about the whole log
            hit = RULES[code].find(log)
            if hit is not None and hit.level == "finding":
                before = RULES[code].find(log.until(hit.step - 1))
                assert before is None or before.level == "note"
                earlier = RULES[code].find(log.until(hit.step))
                assert earlier is not None
                assert (earlier.step, earlier.summary, repr(earlier.evidence)) == (
                    hit.step,
                    hit.summary,
                    repr(hit.evidence),
                )
