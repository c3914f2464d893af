"""The page of the papers' claims is what the kept runs say of each."""

from __future__ import annotations

import shutil
from pathlib import Path

from holdfast_research.experiments import find
from holdfast_research.pages import claims
from holdfast_research.pages.filling import filled
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.values import Status


def test_the_page_of_claims_is_what_the_kept_runs_say() -> None:
    said = claims.PAGE.read_text(encoding="utf-8")
    table = claims.page([*claims.answers(), *claims.answers_of_reading()])
    assert filled(said, {"claims": table}) == said, "python -m holdfast_research.pages.claims"


def test_every_claim_of_a_paper_is_there_once_with_its_verdict_or_without(tmp_path: Path) -> None:
    """Of a repository that keeps one experiment."""
    shutil.copytree(KEPT / "per-sample", tmp_path / "per-sample")
    found = list(claims.answers(tmp_path))
    with_verdict = {one.experiment for one in found if one.verdict}
    assert with_verdict == {"per-sample"}
    asked = [one.claim for one in found if one.experiment == "per-sample"]
    assert asked == [claim for claim in find("per-sample").claims if claim.paper != "control"]
    assert {one.verdict.word for one in found if one.verdict} <= set(Status)

    rows = claims.page(found).splitlines()
    displaced = "Late in training, more than half of the correct rollouts lose likelihood in the run's own update."
    collapses = "Plain GRPO on a search agent rises, then falls."
    (row,) = (row for row in rows if f"| {displaced} |" in row)
    assert row.endswith("| [per-sample](smaller.md#per-sample) **shown** 3/3 |")
    (row,) = (row for row in rows if f"| {collapses} |" in row)
    assert row.endswith("| not run (`death-spiral`) |")
