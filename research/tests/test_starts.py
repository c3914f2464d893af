"""The starts that come with holdfast can be made again: another policy on another processor, with the same scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.recipes import find
from holdfast.recipe import load
from holdfast.train.start import warm_start_only
from holdfast.train.start_cache import SHIPPED
from holdfast_research.starts import differences, measure


@pytest.mark.long  # three minutes each
@pytest.mark.parametrize("recipe", ["quickstart", "flaky"])
def test_a_start_made_again_arrives_at_the_same_scores(recipe: str, tmp_path: Path) -> None:
    model = warm_start_only(load(find(recipe), ["--run.threads=1"]), tmp_path / "start")
    assert differences(recipe, measure(recipe, model)) == []


def test_other_scores_are_told_apart() -> None:
    shipped = measure("quickstart", SHIPPED / "quickstart" / "model")
    assert differences("quickstart", shipped) == []
    assert [line.split(":")[0] for line in differences("quickstart", shipped | {"em": shipped["em"] + 0.2})] == ["em"]
