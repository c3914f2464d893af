"""A penalty and a reward part of the user's own, in the local trainer: named by import path, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.recipe import Config
from holdfast.train.run import resume, train

from .one_update import a_batch, run
from .whole_runs import comparable

Recipe = Callable[..., Config]

REWARDS = """
def brevity(trajectory, golden_answers):
    return 1.0 / (1 + len(trajectory.turns))

def broken(trajectory, golden_answers):
    return 1.0 if trajectory.example_id == "an example" else None
"""


@pytest.fixture(scope="module", autouse=True)
def code(tmp_path_factory: pytest.TempPathFactory, lld_class: str) -> object:
    folder = tmp_path_factory.mktemp("code")
    (folder / "user_code_for_train.py").write_text(lld_class + REWARDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


OWN = {"loss.penalty.name": "custom", "loss.penalty.path": "user_code_for_train:Lld"}


def test_it_is_what_the_same_formula_of_the_package_is(make_model: Callable[..., object], recipe: Recipe) -> None:
    """LLD, written again: every metric of an update and every weight is equal."""
    mine = recipe({**OWN, "loss.penalty.coef": 0.7, "loss.penalty.settings": {"least": 0.001}}).loss
    ours = recipe({"loss.penalty.gate": "token", "loss.penalty.coef": 0.7, "loss.penalty.threshold": 0.001}).loss
    plan = [[[0, 3, 2], [1]], [[4, 6], [5]]]
    results = [run(make_model(), a_batch(), plan, loss, lr=0.02) for loss in (mine, ours)]
    assert results[0][0] == results[1][0] and results[0][0]["penalty/active_fraction"] > 0
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[1][1])


def test_a_run_with_both_resumes_and_is_the_same(recipe: Recipe, tmp_path: Path) -> None:
    config = recipe({**OWN, "reward.custom": {"user_code_for_train:brevity": 0.5}, "checkpoint.every": 1})
    train(config, tmp_path / "whole")
    train(config, tmp_path / "again")
    for leftover in ("results.json", "checkpoints/step-000002"):
        target = tmp_path / "again" / leftover
        __import__("shutil").rmtree(target) if target.is_dir() else target.unlink()
    resume(tmp_path / "again")
    assert comparable(tmp_path / "whole") == comparable(tmp_path / "again")
    row = json.loads((tmp_path / "whole" / "trajectories.jsonl").read_text().splitlines()[0])
    parts = row["reward_parts"]
    assert parts["user_code_for_train:brevity"] == pytest.approx(1 / (1 + len(row["turns"])))
    rest = parts["em"] + parts["f1"] + 0.5 * parts["format"]
    assert row["reward"] == pytest.approx(rest + 0.5 * parts["user_code_for_train:brevity"])
    rows = comparable(tmp_path / "whole")
    assert all("loss/penalty" in row for row in rows if row["step"]) and "penalty/answer_weight" not in rows[-1]


def test_a_part_that_stops_returning_numbers_is_named(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reward part 'user_code_for_train:broken' must return a finite number"):
        train(recipe({"reward.custom": {"user_code_for_train:broken": 1.0}}), tmp_path / "run")
