"""`holdfast_research.pages.claims` lists the papers' claims with the verdicts of the kept runs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.collapse import curve_of, fell
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


def test_what_no_claim_asks_stands_beside_the_verdicts() -> None:
    """Invalid turns come back under the penalties, and not under an untruncated sampler."""
    rows = [line.split(" | ") for line in claims.further() if line.startswith("| ")]
    invalid = {row[0].removeprefix("| "): [float(cell) for cell in row[2:5]] for row in rows[1:7]}
    assert invalid["SAPO"] == [0.03, 0.10, 0.29] and invalid["LLDS action"] == [0.02, 0.05, 0.29]
    assert invalid["GRPO"] == [0.03, 0.51, 0.31] and invalid["GRPO, untruncated sampler"][-1] == 0.08


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
    assert page.count(f"| {displaced} |") == 1 and "(per-sample.md)" in page
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


@pytest.mark.parametrize(
    ("said", "falsely"),
    [
        ("[influence](influence.md): **not shown**", "[influence](influence.md): **shown**"),
        ("[second-search](second-search.md): **cannot tell**", "[second-search](second-search.md): **not shown**"),
        ("[testbeds](testbeds.md): **partly**", "[testbeds](testbeds.md): **shown**"),
        ("5 of 5 (", "4 of 5 ("),
        ("[influence](influence.md)", "[hearsay](hearsay.md)"),
    ],
)
def test_a_false_verdict_is_a_contradiction(said: str, falsely: str) -> None:
    assert said in PAGE and contradictions(PAGE.replace(said, falsely, 1))


def test_the_verdicts_on_single_steps_are_those_of_the_reading() -> None:
    """Counted in the lines of influence.json, without the code that makes the page."""
    at, before, unlikely, foreseen, cosines = [], [], 0, 0, []
    for run in json.loads((READINGS / "influence.json").read_text(encoding="utf-8"))["runs"]:
        fall = fell(curve_of(list(run["rewards"].values()), [int(step) for step in run["rewards"]]))
        assert fall is not None
        for checkpoint in (c for c in run["checkpoints"] if c["step"] <= fall.step):
            changes: dict[str, list[float]] = {}
            for question, _, action, _, predicted, gradient, optimizer in map(str.split, checkpoint["units"]):
                if action == "0":
                    changes.setdefault(question, []).append(float(optimizer))
                    if checkpoint["step"] > fall.peak_step and float(gradient) < 0:
                        unlikely, foreseen = unlikely + 1, foreseen + (float(predicted) < 0)
            fallen = [sum(those) < 0 for those in changes.values()]
            (at if checkpoint["step"] > fall.peak_step else before).append(fallen)
            pairs: list[dict[str, Any]] = checkpoint["similarity"]
            cosines += [pair["incorrect_correct"] for pair in pairs if pair["action"] == 1]
    said = {row: word for row, name, word, _ in verdicts(PAGE) if name == "influence"}
    assert list(said.values()) == ["not shown", "shown", "shown", "not shown"]
    assert max(sum(fallen) / len(fallen) for fallen in [*at, *before]) <= 0.5 < min(cosines)
    counts = [f"{sum(map(sum, phase))} of {sum(map(len, phase))}" for phase in (at, before)]
    because = " ".join(answer.verdict.because for answer in claims.answers_of_reading() if answer.verdict)
    assert f"(in all {counts[0]} from the peak to the fall, {counts[1]} before)" in because
    assert f"(in all {foreseen} of {unlikely})" in because
