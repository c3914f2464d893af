"""`benchmarks/laboratory_claims.py` lists the papers' claims with the verdicts of the kept runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import laboratory_claims
from holdfast.lab.experiments import find
from holdfast.lab.values import Word
from laboratory_runs import KEPT


def test_the_page_is_what_the_kept_runs_say() -> None:
    made = laboratory_claims.whole_page()
    assert made == (laboratory_claims.DOCS / "claims.md").read_text(), "python benchmarks/laboratory_claims.py"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A repository that keeps one experiment."""
    shutil.copytree(KEPT / "per-sample", tmp_path / "per-sample")
    return tmp_path


def test_every_claim_of_a_paper_is_there_once_with_its_verdict_or_without(few: Path) -> None:
    found = list(laboratory_claims.answers(few))
    with_verdict = {one.experiment for one in found if one.verdict}
    assert with_verdict == {"per-sample"}
    asked = [one.claim for one in found if one.experiment == "per-sample"]
    assert asked == [claim for claim in find("per-sample").claims if claim.paper != "control"]
    assert {one.verdict.word for one in found if one.verdict} <= set(Word)

    page = laboratory_claims.page(found)
    fell = "Late in training, more than half of the samples lose likelihood in an update."
    collapses = "Plain GRPO on a search agent rises, then collapses."
    assert page.count(f"| {fell} |") == 1 and "(per-sample.md)" in page
    assert page.count(f"* {collapses}") == 1 and "`death-spiral`, `organisms`" in page and "(organisms.md)" not in page
