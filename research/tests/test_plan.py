"""Seeds, arms and sweeps; and that every shipped experiment is whole: arms that load, controls, claims, figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import ConfigError
from holdfast.diagnose.log import glossary_entry
from holdfast.methods.penalties import SAPO, NoPenalty
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe
from holdfast_research.experiments import EXPERIMENTS, find
from holdfast_research.experiments.arms import GRPO, LLDS_ACTION, SAPO_ARM
from holdfast_research.jobs import slug
from holdfast_research.methods import SHORT, Settings, for_method, words
from holdfast_research.plan import TUNING_SEEDS, Plan, arms_of, load_plan
from holdfast_research.values import FIRST_SEED, Arm, Experiment

RECIPE = find_recipe("flaky")
EXPERIMENT = find("death-spiral")
PLAN = Plan(
    experiment=EXPERIMENT,
    arms=(EXPERIMENT.arm("GRPO"),),
    seeds=(11, 12),
    settings={"train.steps": 3, "world.filler_length": [1, 2]},
    sweep=True,
)
WriteRun = Callable[..., Path]


def names(texts: list[str]) -> list[str]:
    return [arm.name for arm in arms_of(EXPERIMENT, texts)]


def with_arms(*arms: str, **changes: Any) -> Plan:
    return replace(PLAN, arms=tuple(EXPERIMENT.arm(name) for name in arms), **changes)


def test_a_setting_of_a_penalty_is_for_the_arms_that_have_it(tmp_path: Path) -> None:
    """`holdfast reproduce run death-spiral --loss.penalty.coef 0.5`, which has arms without a penalty."""
    shared = {"train.steps": 3, "loss.penalty.coef": 0.5, "loss.penalty.answer_weight": 0.0}
    used = {arm.name: for_method(shared, arm.settings, RECIPE) for arm in (GRPO, SAPO_ARM, LLDS_ACTION)}
    assert used == {
        "GRPO": {"train.steps": 3, **GRPO.settings},
        "SAPO": {"train.steps": 3, "loss.penalty.coef": 0.5, **SAPO_ARM.settings},
        "LLDS action": {**shared, **LLDS_ACTION.settings},
    }
    plan = replace(PLAN, arms=EXPERIMENT.arms, settings=shared, sweep=False)
    plan.check()
    penalties = {job.arm: job.config.loss.penalty for job in plan.jobs(tmp_path)}
    assert penalties["GRPO"] == NoPenalty() and penalties["SAPO"] == SAPO(coef=1.0, normalizer="preserved")


def test_a_smoke_test_is_short_whatever_an_arm_has(tmp_path: Path) -> None:
    long = Arm("long", {"train.steps": 160, "loss.ratio": "sequence"})
    (job,) = replace(PLAN, arms=(long,), seeds=(11,), settings={}, sweep=False, short=True).jobs(tmp_path)
    assert job.config.train.steps == SHORT["train.steps"] and job.config.loss.ratio == "sequence"


def test_controls_stay_whatever_arms_are_asked_for() -> None:
    remedies = ["GRPO, untruncated sampler", "GRPO, sampling mask kept"]
    controls = ["GRPO", "GRPO, reliable search", *remedies, "GRPO, smaller step"]
    assert names(["sapo"]) == [*controls, "SAPO"]
    assert names([]) == [arm.name for arm in EXPERIMENT.arms]
    assert names(["action"]) == [*controls, "LLDS action", "GSPO + LLDS action", "GSPO, clip 0.2, LLDS action"]


def test_a_plan_comes_back_and_an_arm_that_is_gone_is_named(tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    assert load_plan(tmp_path) == PLAN
    replace(PLAN, arms=(Arm("PPO"),)).save(tmp_path)
    with pytest.raises(ConfigError, match=r"death-spiral has no arm 'PPO' any more; .*new --out"):
        load_plan(tmp_path)


def test_an_arms_settings_come_after_the_users(tmp_path: Path) -> None:
    arms = ("GRPO, smaller step", "GRPO")
    jobs = with_arms(*arms, settings={"train.lr": 1e-2, "train.steps": 7}, sweep=False).jobs(tmp_path)
    assert [(job.arm, job.seed) for job in jobs] == [(arm, seed) for seed in (11, 12) for arm in arms]
    assert (jobs[0].config.train.lr, jobs[1].config.train.lr) == (3e-5, 1e-2)
    assert {job.config.train.steps for job in jobs} == {7}
    assert {job.config.run.seed for job in jobs} == {11, 12}
    assert {job.config.run.threads for job in jobs} == {1}


def test_a_drawn_setting_is_the_seed_of_each_run(tmp_path: Path) -> None:
    drawn = replace(EXPERIMENT, drawn=("world.seed", "warm_start.seed"))
    configs = [job.config for job in replace(PLAN, experiment=drawn, sweep=False).jobs(tmp_path)]
    assert [(c.run.seed, c.world.seed, c.warm_start.seed) for c in configs] == [(11, 11, 11), (12, 12, 12)]


def test_the_sweep_chooses_by_the_later_reward_on_seeds_that_are_not_reported(
    tmp_path: Path, write_run: WriteRun
) -> None:
    plan = with_arms("LLDS action", "GRPO")
    arm, sweep = plan.arms[0], plan.sweep_jobs(tmp_path)
    assert set(sweep) == {("LLDS action", 0), ("LLDS action", 1), ("LLDS action", 2)}
    assert {job.seed for jobs in sweep.values() for job in jobs} == set(TUNING_SEEDS)
    assert len({job.name for jobs in sweep.values() for job in jobs}) == 6
    assert not set(TUNING_SEEDS) & set(range(FIRST_SEED, FIRST_SEED + 50))
    without = replace(plan, sweep=False)
    assert without.sweep_jobs(tmp_path) == {} and without.choices(tmp_path)["LLDS action"].scores is None

    # The second half decides: .3 / .5 / .4; the first half would have chosen the first.
    for (_, index), late in zip(sweep, (0.3, 0.5, 0.4), strict=True):
        for job, off in zip(sweep[arm.name, index], (-0.1, 0.1), strict=True):
            write_run(job.folder, [1.0 - index / 10] * 2 + [late + off] * 2)
    choice = plan.choices(tmp_path)["LLDS action"]
    assert choice.chosen == 1 and choice.label == "0.5"
    assert choice.scores == pytest.approx((0.3, 0.5, 0.4))
    job = plan.jobs(tmp_path)[0]
    assert job.config.loss.penalty.coef == 0.5
    assert job.folder == tmp_path / "runs" / "llds-action-0.5-s11"


def test_a_coefficient_whose_runs_failed_is_not_chosen(tmp_path: Path, write_run: WriteRun) -> None:
    plan = with_arms("SAPO")
    sweep = plan.sweep_jobs(tmp_path)
    assert plan.choices(tmp_path)["SAPO"].chosen == 2  # none has run: the usual one
    write_run(sweep["SAPO", 0][0].folder, [0.9] * 4)  # its other seed failed
    for job in sweep["SAPO", 1]:
        write_run(job.folder, [0.1] * 4)
    choice = plan.choices(tmp_path)["SAPO"]
    assert (choice.chosen, choice.scores) == (1, (None, pytest.approx(0.1), None))


def test_the_command_of_a_plan_makes_the_same_plan() -> None:
    plan = with_arms(*[arm.name for arm in EXPERIMENT.arms if arm.control], "LLDS action", sweep=False)
    assert plan.command == (
        "holdfast reproduce run death-spiral --seeds 2 --arms 'LLDS action' --no-sweep --train.steps 3 "
        "--world.filler_length '[1, 2]'"
    )
    assert arms_of(EXPERIMENT, ["LLDS action"]) == plan.arms
    assert replace(PLAN, arms=EXPERIMENT.arms, settings={}).command == "holdfast reproduce run death-spiral --seeds 2"


# ---- every shipped experiment is whole


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
