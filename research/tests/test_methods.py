"""`holdfast_research.pages.methods` has one table of all methods: who prevents the fall, and at what price."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast_research.pages import methods
from holdfast_research.pages.kept_runs import KEPT
from holdfast_research.pages.methods import COLUMNS, Method, row, section
from holdfast_research.paths import DOCS
from holdfast_research.series import RunSeries

RISE = [0.3, 0.4, 0.5, 0.6, 0.7, 0.75] + [0.8] * 24
SPIRAL = [*RISE, 0.7, 0.6, 0.5, 0.4, 0.3, *[0.2] * 25]
HELD = [*RISE, *[0.8] * 30]
CALM = {"entropy/mean": 1.0, "rollout/invalid_fraction": 0.25, "clip/fraction": 0.125}
SURGE = {"entropy/mean": [1.0] * 30 + [3.0] * 30}

MakeMethod = Callable[..., Method]


@pytest.fixture
def make(make_run: Callable[..., RunSeries]) -> MakeMethod:
    """make("LLDS", [HELD, HELD, HELD], CALM, em=0.5): a run for each reward, seeds from 11."""

    def method(name: str, rewards: list[list[float]], metrics: dict[str, object], em: float = 0.5) -> Method:
        runs = {seed: make_run(name, seed, reward, metrics, em=em) for seed, reward in enumerate(rewards, start=11)}
        return Method(name, "death-spiral", name in methods.CONTROLS, runs)

    return method


def test_the_page_is_what_the_kept_runs_say() -> None:
    assert methods.page() == (DOCS / "methods.md").read_text(), "python -m holdfast_research.pages.methods"


def test_a_row_by_hand(make: MakeMethod) -> None:
    grpo = make("GRPO", [SPIRAL, SPIRAL, HELD], SURGE)
    cells = dict(zip(COLUMNS, row(make("LLDS", [HELD, HELD, HELD, SPIRAL], CALM, em=0.625), grpo), strict=True))
    assert cells["method"] == "[LLDS](death-spiral.md)" and cells["seeds"] == "4"
    assert (cells["fell"], cells["entropy surged"]) == ("1 of 4", "0 of 4")
    assert cells["reward, last"] == "0.65 (0.20 to 0.80)"
    # Seed by seed .8 - .2, .8 - .2 and .8 - .8; GRPO has no fourth seed.
    assert cells["minus that of GRPO"] == "+0.40 (+0.00 to +0.60)"
    assert cells["test EM"] == "0.625 (0.625 to 0.625)" and cells["entropy, last"] == "1.00 (1.00 to 1.00)"
    assert cells["invalid turns, last"] == "0.25 (0.25 to 0.25)"
    assert cells["clipped tokens, last"] == "0.125 (0.125 to 0.125)"


def test_a_dash_stands_for_what_was_not_logged(make: MakeMethod) -> None:
    grpo = make("GRPO", [SPIRAL] * 3, SURGE)
    cells = dict(zip(COLUMNS, row(grpo, grpo), strict=True))
    assert cells["entropy surged"] == "3 of 3" and cells["entropy, last"] == "3.00 (3.00 to 3.00)"
    assert {cells[name] for name in ("minus that of GRPO", "invalid turns, last", "clipped tokens, last")} == {"–"}


def test_who_prevents_the_fall_stands_first_and_controls_stand_apart(make: MakeMethod) -> None:
    group = [
        make("falls", [SPIRAL] * 3, CALM),
        make("sometimes", [SPIRAL, HELD, HELD], SURGE, em=0.875),
        make("surges", [HELD] * 3, SURGE, em=0.75),
        make("calm", [HELD] * 3, CALM),
        make("calm and better", [HELD] * 3, CALM, em=0.625),
        make("GRPO", [SPIRAL] * 3, SURGE),
        make("GRPO, reliable search", [HELD] * 3, CALM),
        make("new", [HELD] * 2, CALM),
    ]
    lines = list(section(group))
    assert lines[0] == "Of 5 methods 3 fell on no seed; of those 2 had no surge of entropy either."
    controls, few = lines.index("Controls:"), lines.index("Fewer than 3 seeds, which tell little:")
    names = [line.partition("]")[0].removeprefix("| [") for line in lines[:controls] if line.startswith("| [")]
    assert names == ["GRPO", "calm and better", "calm", "surges", "sometimes", "falls"]
    assert [line.partition("]")[0] for line in lines[controls:few] if "](" in line] == ["| [GRPO, reliable search"]
    assert [line.partition("]")[0] for line in lines[few:] if "](" in line] == ["| [new"]


def test_an_experiment_with_settings_of_its_own_has_its_own_grpo(
    make: MakeMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [make("GRPO", [SPIRAL] * 3, SURGE), make("LLDS", [HELD] * 3, CALM)]
    slower = [make("GRPO", [HELD] * 3, CALM), make("LLDS, anchor", [HELD] * 3, CALM)]
    shared = '{"train.optimizer_steps_per_rollout": 1, "train.steps": 60}'
    monkeypatch.setattr(methods, "methods", lambda kept: {"{}": usual, shared: slower})
    first, second = methods.page().split("## The death spiral and its remedies")
    assert "All of these have `train.optimizer_steps_per_rollout = 1`, `train.steps = 60`." in second
    assert "+0.60 (+0.60 to +0.60)" in first and "+0.00 (+0.00 to +0.00)" in second and "+0.60" not in second
    assert first.count("[GRPO]") == second.count("[GRPO]") == 1


def test_equal_settings_are_one_method_and_other_starts_are_left_out(tmp_path: Path) -> None:
    """SAPO's τ of 1 and preserving A ≥ 0 are arms of death-spiral under other names, there with five seeds."""
    for experiment in ("coefficient", "death-spiral", "preserving", "sapo", "testbeds"):
        shutil.copytree(KEPT / experiment, tmp_path / experiment)
    groups = methods.methods(tmp_path)
    assert set(groups) == {"{}"}  # testbeds draws them with the seed
    found = {method.name: method for method in groups["{}"]}
    assert len(found) == len(groups["{}"])
    assert found["SAPO, γ = 1.0"].experiment == "death-spiral" and set(found["SAPO, γ = 1.0"].runs) == {*range(11, 16)}
    assert not {name for name in found if "τ = 1.0" in name or "rare" in name or "A ≥ 0" in name}
    assert {"LLDS, λ = 0.2", "SAPO, no condition, γ = 1.0", "KL to the reference, 0.1"} <= set(found)
    assert found["GRPO, reliable search"].control and not found["GRPO, baseline by length"].control
    # One start: the warm start's greedy score, which no seed bears on, is the same everywhere.
    runs = [run for method in found.values() for run in method.runs.values()]
    assert {run.results["before"]["em_greedy"] for run in runs} == {0.025}
