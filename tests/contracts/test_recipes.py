"""Every recipe loads, and opens with the command that runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from holdfast.cli.command import split
from holdfast.recipe import Config, load

ROOT = Path(__file__).parents[2]
MACHINES = {"--gpus", "--nodes"}
RECIPES = sorted([*(ROOT / "src/holdfast/recipe/bundled").rglob("*.toml"), *(ROOT / "examples").glob("*.toml")])


def command_in(text: str) -> list[str]:
    """Words of the first `holdfast …` line in the comment a recipe opens with; empty when there is none."""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        words = line.removeprefix("#").strip().strip("`")
        if words.partition(" ")[0] == "holdfast":
            return shlex.split(words, comments=True)
    return []


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_a_recipe_loads_and_says_how_to_run_it(path: Path) -> None:
    assert isinstance(load(path), Config)
    words = command_in(path.read_text(encoding="utf-8"))
    starts = (["holdfast", "train"], ["holdfast", "launch", "trl"], ["holdfast", "launch", "verl"])
    start = next((start for start in starts if words[: len(start)] == start), None)
    assert start, "its first comment must hold the exact command that runs it, or makes the files that do"
    rest = words[len(start) :]
    if path.stem != "quickstart":  # which `holdfast train` runs unless told otherwise
        name = path.stem if "bundled" in path.parts else str(path.relative_to(ROOT))
        assert rest[:1] == [name], f"the command must name {name}"
        rest = rest[1:]
    settings, others = split(rest, MACHINES)
    load(path, settings)  # the overrides it shows, if any, are real settings
    assert not others or (start[1] == "launch" and set(others[::2]) <= MACHINES), f"{others} are no settings"
