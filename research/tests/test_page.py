"""The page, from runs that never ran."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast_research import judge
from holdfast_research.jobs import Failure
from holdfast_research.page import html, write_report
from holdfast_research.pages.curves import text_of
from holdfast_research.plan import Plan
from holdfast_research.results import results_of
from holdfast_research.series import RunSeries
from holdfast_research.values import Arm, Claim, Experiment, Figure, Runs, Sweep
from research.tests.conftest import FALL, RISE

SPIRAL = [*RISE, *FALL]
GRPO = Arm("GRPO <b>", {"loss.penalty.name": "none"}, control=True)
REMEDY = Arm("remedy", {"loss.penalty.name": "llds"}, Sweep(("loss.penalty.coef",), ((0.1,), (0.2,), (0.5,))))
EXPERIMENT = Experiment(
    name="toy",
    title="A toy & its page",
    shows="what a page looks like",
    recipe="collapse",
    arms=(GRPO, REMEDY),
    minutes=1,
    notes=("Nothing ran.",),
    claims=(
        Claim(paper="P", where="Figure 1", says="It falls.", asks="falls", test=judge.falls(GRPO.name)),
        Claim(paper="P", where="Figure 2", says="It holds.", asks="holds", test=judge.holds_where("remedy", GRPO.name)),
        Claim(paper="control", where="a sane step", says="It is absent.", asks="is", test=judge.falls("absent")),
    ),
    figures=(
        Figure("reward/mean", "Reward", (GRPO.name, "remedy"), "Figure 1"),
        Figure("kl", "Nobody's", (GRPO.name, "remedy")),
    ),
)

PLAN = Plan(experiment=EXPERIMENT, arms=EXPERIMENT.arms, seeds=(11, 12, 13), settings={})


@pytest.fixture
def runs(make_run: Callable[..., RunSeries]) -> Runs:
    return {
        GRPO.name: tuple(make_run(GRPO.name, s, SPIRAL, em=0.1) for s in (11, 12, 13)),
        "remedy": tuple(make_run("remedy", s, RISE + [0.8] * 30, em=0.6) for s in (11, 12, 13)),
    }


def made_of(runs: Runs, tmp_path: Path) -> dict[str, Any]:
    failure = Failure(PLAN.jobs(tmp_path)[0], "the disk is full", tmp_path / "logs" / "a.log")
    return results_of(PLAN, runs, tmp_path, [failure])


def test_results_hold_verdicts_arms_and_where_they_come_from(runs: Runs, tmp_path: Path) -> None:
    results = made_of(runs, tmp_path)
    assert [claim["verdict"] for claim in results["claims"]] == ["shown", "shown", "cannot tell"]
    assert results["claims"][0]["numbers"]["11"]["lowest after"] == pytest.approx(0.2)
    grpo, remedy = results["arms"]
    assert grpo["control"] and all(run["collapsed"] and run["fell"] for run in grpo["runs"].values())
    assert remedy["coefficient"] == "0.2" and not any(run["fell"] for run in remedy["runs"].values())
    assert len(grpo["config_hash"]) == 12 and grpo["config_hash"] != remedy["config_hash"]
    assert grpo["runs"]["11"]["displacement"] is None  # a run that measured none: not NaN, which JSON has not
    json.dumps(results, allow_nan=False)


def test_the_page_is_one_file_that_holds_everything(runs: Runs, tmp_path: Path) -> None:
    results = made_of(runs, tmp_path)
    page = write_report(EXPERIMENT, results, runs, tmp_path / "out")
    html = page.read_text()
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert not re.findall(r"<(script|link|img)|src=|url\(http", html)
    assert {address.split("/")[2] for address in re.findall(r'https?://[^"<\s]+', html)} <= {"www.w3.org"}
    for text in (
        *("A toy &amp; its page", "GRPO &lt;b&gt;", "It falls.", "Figure 2", "Nothing ran.", "the disk is full"),
        *("holdfast reproduce run toy --seeds 3 --no-sweep", "No run has this series."),
        # A control that is shown is no point for a paper.
        *("What the papers say: ● shown 2 · ◐ partly 0", "no paper says: ● shown 0"),
    ):
        assert text in html
    assert "GRPO <b>" not in html and html.count('class="verdict"') == 3
    text = text_of(results)
    assert "| It is absent. | is | " in text and "| It holds. |" not in text and "2 shown" in text


def test_runs_that_start_from_different_policies_are_told_apart(
    runs: Runs, make_run: Callable[..., RunSeries], tmp_path: Path
) -> None:
    other = make_run("remedy", 12, RISE + [0.8] * 30)
    same = replace(other, results={**other.results, "before": {"em": 0.2, "em_greedy": 0.30000000000000004}})
    for equal in (runs, runs | {"remedy": (runs["remedy"][0], same, runs["remedy"][2])}):
        assert made_of(equal, tmp_path)["starts"] == []
    elsewhere = replace(other, results={**other.results, "before": {"em": 0.2, "em_greedy": 0.325}})
    results = made_of(runs | {"remedy": (runs["remedy"][0], elsewhere, runs["remedy"][2])}, tmp_path)
    assert sorted((row["greedy"]["em_greedy"], len(row["runs"])) for row in results["starts"]) == [(0.3, 5), (0.325, 1)]
    said = "before training, greedy test EM is 0.3000 (5 runs, GRPO <b>, seed 11 the first), 0.3250 (1 runs, "
    assert said in text_of(results) and "do not all start from one policy" in html(results, [])
