"""The starts that come with holdfast belong to today's recipes, and are what runs of these begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.recipes import find
from holdfast.recipe import Config, load
from holdfast.train.checkpoint import find_damage
from holdfast.train.loading import load_questions, load_retrievers
from holdfast.train.start import starting_policy
from holdfast.train.start_cache import SHIPPED, settings_hash, shipped_start, start_folder

RECIPES = ("quickstart", "flaky")
LARGEST = 1_200_000


def recipe(name: str, *changes: str) -> Config:
    return load(find(name), changes)


def start_of(config: Config) -> Path:
    folder = shipped_start(config)
    assert folder is not None
    return folder


def test_each_start_has_a_recipe() -> None:
    assert sorted(path.name for path in SHIPPED.iterdir()) == sorted(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_a_start_is_whole_small_and_says_what_made_it(name: str) -> None:
    folder = start_of(recipe(name))
    assert folder.name == name and find_damage(folder) is None
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= LARGEST
    state = json.loads((folder / "state.json").read_text())
    assert state["settings"] == settings_hash(recipe(name)) and state["command"] == f"holdfast warm-start {name}"
    assert state["made_by"]["holdfast"] and 0 <= state["scores"]["em_greedy"] <= 1


def test_collapse_starts_like_flaky() -> None:
    assert start_of(recipe("collapse")).name == "flaky"


@pytest.mark.parametrize(
    "change",
    [
        "--world.seed=1",
        "--warm_start.steps=10",
        "--warm_start.seed=3",
        "--warm_start.batches=mixed",
        "--world.model.hidden=32",
    ],
)
def test_other_settings_have_a_start_of_their_own(change: str) -> None:
    assert shipped_start(recipe("flaky", change)) is None


def test_what_a_start_does_not_depend_on_changes_nothing() -> None:
    changed = recipe("flaky", "--run.seed=5", "--train.lr=1e-3", "--loss.penalty.name=sapo", "--sampling.top_p=1")
    assert start_of(changed) == start_of(recipe("flaky"))


def test_a_run_begins_with_it_and_fills_no_cache(told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    config = recipe("flaky")
    policy = starting_policy(config, load_questions(config), load_retrievers(config).train, told)
    assert any("comes with holdfast" in note for note in told.notes)
    assert sum(p.numel() for p in policy.model.parameters()) > 200_000
    assert not start_folder(config).exists()
