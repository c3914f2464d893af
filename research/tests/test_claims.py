"""`holdfast_research.pages.claims` lists the papers' claims with the verdicts of the kept runs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast_research.experiments import EXPERIMENTS, find
from holdfast_research.pages import claims
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.paths import READINGS
from holdfast_research.plan import PLAN_FILE
from holdfast_research.values import Status

PAGE = (claims.DOCS / "claims.md").read_text(encoding="utf-8")


def test_the_page_is_what_the_kept_runs_say() -> None:
    made = claims.whole_page()
    assert made == PAGE, "python -m holdfast_research.pages.claims"


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """A repository that keeps one experiment."""
    shutil.copytree(KEPT / "per-sample", tmp_path / "per-sample")
    return tmp_path


def test_every_claim_of_a_paper_is_there_once_with_its_verdict_or_without(few: Path) -> None:
    found = list(claims.answers(few))
    with_verdict = {one.experiment for one in found if one.verdict}
    assert with_verdict == {"per-sample"}
    asked = [one.claim for one in found if one.experiment == "per-sample"]
    assert asked == [claim for claim in find("per-sample").claims if claim.paper != "control"]
    assert {one.verdict.word for one in found if one.verdict} <= set(Status)

    page = claims.page(found)
    displaced = "Late in training, more than half of the correct rollouts lose likelihood in the run's own update."
    collapses = "Plain GRPO on a search agent rises, then collapses."
    assert page.count(f"| {displaced} |") == 1 and "(smaller.md#per-sample)" in page
    assert page.count(f"* {collapses}") == 1 and "`death-spiral`, `testbeds`" in page and "(testbeds.md)" not in page


# ---- the text, read as a reader does


VERDICT = re.compile(r"\[([a-z-]+)\]\(\1\.md\): \*\*([a-z ]+)\*\*(?:, |: )(.+?)(?=<br>| \|$|$)")
COUNTS = re.compile(r"^(\d+) of (\d+) \(")
FEW = re.compile(
    r"^(only \d|none) of the 3 seeds it takes can answer; on \d|^GRPO rose by 0\.12 and held on 0 of 3 seeds$"
)


def verdicts(page: str) -> Iterator[tuple[str, str, str, str]]:
    """(the row's claim, page, word, count or reason)."""
    for line in page.splitlines():
        for name, word, because in VERDICT.findall(line):
            yield line.split(" | ")[0], name, word, because


def contradictions(page: str) -> list[str]:
    """Verdicts whose word does not follow from their counts, or that name a page without runs."""
    found = []
    for row, name, word, because in verdicts(page):
        if counts := None if FEW.match(because) else COUNTS.search(because):
            yes, of = map(int, counts.groups())
            follows = "shown" if yes == of >= 3 else "partly" if 2 * yes >= of >= 3 else "not shown"
        else:
            follows = "cannot tell" if FEW.match(because) else "no reason"
        if word != follows:
            found.append(f"{row}: {word}, but {because}")
        if name in EXPERIMENTS:
            if not (KEPT / name / PLAN_FILE).exists():
                found.append(f"{row}: {name} has no kept runs")
        elif not (READINGS / f"{name}.json").exists():
            found.append(f"{row}: no experiment and no reading is called {name}")
    return found


def test_every_verdict_follows_from_its_counts() -> None:
    assert contradictions(PAGE) == []
    assert len(list(verdicts(PAGE))) == PAGE.count(".md): **") > 70
