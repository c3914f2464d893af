"""Every shipped experiment is whole: arms that load, controls, claims about arms it has, figures one can read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from holdfast.base.glossary import glossary_entry
from holdfast.cli.recipes import find as find_recipe
from holdfast.recipe import load
from holdfast_research.experiments import EXPERIMENTS
from holdfast_research.jobs import slug
from holdfast_research.methods import Settings, words
from holdfast_research.plan import Plan
from holdfast_research.values import Arm, Experiment

ALL = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=list(EXPERIMENTS))


class Asked(dict[str, Any]):
    """Runs of no arm, that remembers which arms it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return default


def variants(arm: Arm) -> list[Settings]:
    """The settings of an arm at each coefficient of its sweep."""
    sweep = [{}] if arm.sweep is None else [arm.sweep.at(i) for i in range(len(arm.sweep.values))]
    return [{**arm.settings, **coefficient} for coefficient in sweep]


@ALL
def test_every_arm_and_coefficient_is_a_recipe_and_they_differ(experiment: Experiment) -> None:
    Plan(experiment=experiment, arms=experiment.arms, seeds=(11,), settings={}, sweep=True, short=True).check()
    path = find_recipe(experiment.recipe)
    names = defaultdict(list)
    for arm in experiment.arms:
        for settings in variants(arm):
            names[load(path, words({**experiment.settings, **settings})).model_dump_json()].append(arm.name)
    assert {len(same) for same in names.values()} == {1}, names.values()
    assert len({slug(arm.name) for arm in experiment.arms}) == len(experiment.arms)


@ALL
def test_plain_grpo_and_the_same_with_a_reliable_search_are_always_there(experiment: Experiment) -> None:
    controls = [arm for arm in experiment.arms if arm.control]
    assert controls
    path = find_recipe(experiment.recipe)
    recipe = load(path)
    configs = [load(path, words(variants(arm)[0])) for arm in controls]
    assert all(config.loss.penalty.name == "none" for config in configs)
    assert any(config.faults.search_failure_rate == 0 and config.train == recipe.train for config in configs)


@ALL
def test_claims_and_figures_name_their_source_their_arms_and_metrics_that_exist(experiment: Experiment) -> None:
    assert experiment.claims
    for claim in experiment.claims:
        assert claim.paper in ("control", "LLDS, arXiv 2512.04220", "SAPO, arXiv 2603.10069")
        assert claim.where.strip()
        assert claim.says.endswith(".")
        assert claim.asks.strip() and not claim.asks.endswith(".")
        asked = Asked()
        claim.test(asked)
        assert asked.names and asked.names <= {arm.name for arm in experiment.arms}
    for figure in experiment.figures:
        assert set(figure.arms) <= {arm.name for arm in experiment.arms}
        assert 2 <= len(figure.arms) <= 6  # as many as there are colours
        assert glossary_entry(figure.metric)
