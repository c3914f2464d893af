from __future__ import annotations

import json
from pathlib import Path

import pytest

import penalty_cost


@pytest.mark.long
def test_every_arm_is_timed_in_every_round(run, tmp_path: Path) -> None:
    done = run("penalty_cost.py", "--shape", "tiny", "--rounds", 2, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())["tiny"]
    assert {arm: len(seconds) for arm, seconds in result["seconds"].items()} == dict.fromkeys(penalty_cost.ARMS, 2)
    assert set(result["cost_percent"]) == {*penalty_cost.ARMS} - {"none"}
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["plain", "llds-action", "llds-response", "sapo"]


def test_costs_are_of_the_same_round() -> None:
    """The first round is twice as slow as the second for both arms, as on a busy machine: the cost is 10 % in each."""
    seconds = {"none": [2.0, 1.0], "sapo": [2.2, 1.1]}
    assert penalty_cost.costs(seconds)["sapo"] == pytest.approx((10.0, 10.0, 10.0))


def test_the_quickstarts_shape_is_the_recipes() -> None:
    from holdfast.recipe import load

    recipe, shape = (
        load(Path(__file__).parents[2] / "src/holdfast/recipe/bundled" / "quickstart.toml"),
        penalty_cost.SHAPES["quickstart"],
    )
    assert (shape.questions, shape.group) == (recipe.train.questions, recipe.train.group_size)
    assert shape.updates == recipe.train.optimizer_steps_per_rollout
    assert (shape.hidden, shape.layers, shape.heads) == (
        recipe.world.model.hidden,
        recipe.world.model.layers,
        recipe.world.model.heads,
    )


def test_ten_million_parameters() -> None:
    model = penalty_cost.model_of(penalty_cost.SHAPES["10m"], seed=0)
    assert 9.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 10.5e6
