"""What people report is named, by each trainer's own series, and is not named in a run that is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis
from holdfast.diagnose.readers import read_log
from holdfast_research.reported import HOSTS, REPORTED, written

NEW = {"EVL001", "TOL001", "TOL002", "LRN001", "RWD004", "SMP003", "OFP001", "FMT001", "KLD002"}
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
