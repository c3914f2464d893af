"""The page on explanations: its tables are those of the runs, and its sentences count what they count."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast_research.experiments import find
from holdfast_research.pages import hosts
from holdfast_research.pages.arms import Method, methods
from holdfast_research.pages.claims import kept_runs
from holdfast_research.pages.curves import figures
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.pages.why import (
    PAGE,
    page,
    runs_by_name,
)
from holdfast_research.series import RunSeries

TEXT = PAGE.read_text(encoding="utf-8")
LLDS, SAPO, RATIO_ALONE = "LLDS action, λ = 1.0", "SAPO, γ = 1.0", "SAPO, ratio condition alone, γ = 1.0"


@pytest.fixture(scope="module")
def found() -> dict[str, Method]:
    return runs_by_name()


def kept(experiment: str) -> Mapping[str, tuple[RunSeries, ...]]:
    return {arm: tuple(runs) for arm, runs in kept_runs(experiment, KEPT).items()}


def of(method: Method) -> list[RunSeries]:
    return [run for _, run in sorted(method.runs.items())]


def test_the_tables_and_figures_are_those_of_the_runs(found: dict[str, Method]) -> None:
    assert page(TEXT, found) == TEXT, "python -m holdfast_research.pages.why"
    of_experiment = {
        name: svg for about in ("rivals", "real-old") for _, name, svg in figures(find(about), kept(about))
    }
    shown = re.findall(r"\(figures/(.+)\)", TEXT)
    assert len(shown) == 4
    for name in shown:
        assert of_experiment[name] == (PAGE.parent / "figures" / name).read_text(encoding="utf-8")


def test_equal_settings_are_one_method_and_other_starts_are_left_out(tmp_path: Path) -> None:
    """SAPO's τ of 1 and preserving A ≥ 0 are arms of death-spiral under other names, there with five seeds."""
    for experiment in ("coefficient", "death-spiral", "preserving", "sapo", "testbeds"):
        shutil.copytree(KEPT / experiment, tmp_path / experiment)
    groups = methods(tmp_path)
    assert set(groups) == {"{}"}  # testbeds draws them with the seed
    found = {method.name: method for method in groups["{}"]}
    assert len(found) == len(groups["{}"])
    assert found[SAPO].experiment == "death-spiral" and set(found[SAPO].runs) == {*range(11, 16)}
    assert not {name for name in found if "τ = 1.0" in name or "rare" in name or "A ≥ 0" in name}
    assert {"LLDS, λ = 0.2", "SAPO, no condition, γ = 1.0", "KL to the reference, 0.1"} <= set(found)
    # One start: the warm start's greedy score, which no seed bears on, is the same everywhere.
    assert {run.results["before"]["em_greedy"] for method in found.values() for run in of(method)} == {0.025}


def test_the_tables_of_the_three_trainers_are_those_of_the_runs() -> None:
    page = hosts.PAGE.read_text(encoding="utf-8")
    assert hosts.table(hosts.kept_runs("flaky")) in page
    assert hosts.scored_table(hosts.kept_runs("factbook")) in page
