"""Seeds, arms and sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.recipes import find as find_recipe
from holdfast.errors import ConfigError
from holdfast.penalties import SAPO, NoPenalty
from holdfast_research.experiments import find
from holdfast_research.experiments.arms import GRPO, LLDS_ACTION, SAPO_ARM
from holdfast_research.plan import (
    FIRST_SEED,
    TUNING_SEEDS,
    Plan,
    arms_of,
    choose,
    finished,
    for_method,
    load_plan,
    planned_arms,
    refuse_settings_of_none,
    report_jobs,
    sweep_jobs,
)

RECIPE = find_recipe("flaky")
EXPERIMENT = find("death-spiral")
PLAN = Plan("death-spiral", ("GRPO",), (11, 12), ("--train.steps", "3"), sweep=True, short=False, command="holdfast")
WriteRun = Callable[..., Path]


def names(texts: list[str]) -> list[str]:
    return [arm.name for arm in arms_of(EXPERIMENT, texts)]


def test_a_setting_of_a_penalty_is_for_the_arms_that_have_it() -> None:
    """`holdfast reproduce run death-spiral --loss.penalty.coef 0.5`, which has arms without a penalty."""
    plan = replace(PLAN, settings=("--train.steps", "3", "--loss.penalty.coef=0.5", "--loss.penalty.gate", "token"))
    runs = {name: fixed.overrides for name, fixed in (("none", GRPO), ("sapo", SAPO_ARM), ("llds", LLDS_ACTION))}
    made = {name: for_method(plan.settings, overrides, RECIPE) for name, overrides in runs.items()}
    assert made == {
        "none": ("--train.steps", "3"),
        "sapo": ("--train.steps", "3", "--loss.penalty.coef=0.5"),
        "llds": plan.settings,
    }
    jobs = report_jobs(plan, EXPERIMENT.arms, choose(plan, EXPERIMENT.arms, {}), RECIPE, Path("out"))
    penalties = {job.arm: job.config.loss.penalty for job in jobs}  # no recipe is refused
    assert penalties["GRPO"] == NoPenalty() and penalties["SAPO"] == SAPO(coef=1.0, normalizer="preserved")


def test_a_setting_that_no_arm_has_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"--loss.penalty.tau 0.9: no run has a penalty with this setting, which is of sapo"
    ):
        refuse_settings_of_none(("--loss.penalty.tau", "0.9"), [GRPO.overrides, LLDS_ACTION.overrides], RECIPE)
    refuse_settings_of_none(("--loss.penalty.tau", "0.9"), [GRPO.overrides, SAPO_ARM.overrides], RECIPE)


def test_controls_stay_whatever_arms_are_asked_for() -> None:
    cures = ["GRPO, untruncated sampler", "GRPO, sampling mask kept"]
    controls = ["GRPO", "GRPO, reliable search", *cures, "GRPO, smaller step"]
    assert names(["sapo"]) == [*controls, "SAPO"]
    assert names([]) == [arm.name for arm in EXPERIMENT.arms]
    assert names(["action"]) == [*controls, "LLDS action", "GSPO + LLDS action", "GSPO, clip 0.2, LLDS action"]


def test_the_name_of_one_arm_is_that_arm_alone() -> None:
    controls = [arm.name for arm in EXPERIMENT.arms if arm.control]
    assert names(["llds action"]) == [*controls, "LLDS action"]
    assert names(["llds action", "gspo"]) == [*controls, "LLDS action", "GSPO"]


def test_an_arm_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="no arm of death-spiral has that in its name; there are GRPO, "):
        names(["sapo", "ppo"])


def test_an_arm_that_is_gone_is_named() -> None:
    with pytest.raises(ConfigError, match=r"death-spiral has no arm 'PPO' any more; .*new --out"):
        planned_arms(replace(PLAN, arms=("GRPO", "PPO")), EXPERIMENT)


def test_an_arms_settings_come_after_the_users(tmp_path: Path) -> None:
    plan = replace(PLAN, settings=("--train.lr", "1e-2", "--train.steps", "7"), sweep=False)
    smaller, free = (EXPERIMENT.arm(name) for name in ("GRPO, smaller step", "GRPO"))
    jobs = report_jobs(plan, [smaller, free], choose(plan, [smaller, free], {}), RECIPE, tmp_path)
    assert [(job.arm, job.seed) for job in jobs] == [(arm.name, seed) for seed in (11, 12) for arm in (smaller, free)]
    assert (jobs[0].config.train.lr, jobs[1].config.train.lr) == (3e-5, 1e-2)
    assert {job.config.train.steps for job in jobs} == {7}
    assert {job.config.run.seed for job in jobs} == {11, 12}
    assert {job.config.run.threads for job in jobs} == {1}


def test_a_drawn_setting_is_the_seed_of_each_run(tmp_path: Path) -> None:
    plan = replace(PLAN, drawn=("world.seed", "warm_start.seed"), sweep=False)
    configs = [job.config for job in report_jobs(plan, [EXPERIMENT.arm("GRPO")], {}, RECIPE, tmp_path)]
    assert [(c.run.seed, c.world.seed, c.warm_start.seed) for c in configs] == [(11, 11, 11), (12, 12, 12)]


def test_the_sweep_chooses_by_the_later_reward_on_seeds_that_are_not_reported(
    tmp_path: Path, write_run: WriteRun
) -> None:
    arm = EXPERIMENT.arm("LLDS action")
    sweep = sweep_jobs(PLAN, [arm, EXPERIMENT.arm("GRPO")], RECIPE, tmp_path)
    assert set(sweep) == {("LLDS action", 0), ("LLDS action", 1), ("LLDS action", 2)}
    assert {job.seed for jobs in sweep.values() for job in jobs} == set(TUNING_SEEDS)
    assert len({job.name for jobs in sweep.values() for job in jobs}) == 6
    assert not set(TUNING_SEEDS) & set(range(FIRST_SEED, FIRST_SEED + 50))

    # The second half decides: .3 / .5 / .4; the first half would have chosen the first.
    for (_, index), late in zip(sweep, (0.3, 0.5, 0.4), strict=True):
        for job, off in zip(sweep[arm.name, index], (-0.1, 0.1), strict=True):
            write_run(job.folder, [1.0 - index / 10] * 2 + [late + off] * 2)
    choice = choose(PLAN, [arm], sweep)["LLDS action"]
    assert choice.chosen == 1 and choice.value == "0.5"
    assert choice.scores == pytest.approx((0.3, 0.5, 0.4))
    job = report_jobs(PLAN, [arm], {arm.name: choice}, RECIPE, tmp_path)[0]
    assert job.config.loss.penalty.coef == 0.5
    assert job.folder == tmp_path / "runs" / "llds-action-0.5-s11"


def test_a_strength_whose_runs_failed_is_not_chosen(tmp_path: Path, write_run: WriteRun) -> None:
    arm = EXPERIMENT.arm("SAPO")
    sweep = sweep_jobs(PLAN, [arm], RECIPE, tmp_path)
    assert choose(PLAN, [arm], sweep)["SAPO"].chosen == 2  # none has run: the usual one
    write_run(sweep["SAPO", 0][0].folder, [0.9] * 4)  # its other seed failed
    for job in sweep["SAPO", 1]:
        write_run(job.folder, [0.1] * 4)
    choice = choose(PLAN, [arm], sweep)["SAPO"]
    assert (choice.chosen, choice.scores) == (1, (None, pytest.approx(0.1), None))


def test_without_a_sweep_the_files_strength_is_taken(tmp_path: Path) -> None:
    plan = replace(PLAN, sweep=False)
    assert sweep_jobs(plan, EXPERIMENT.arms, RECIPE, tmp_path) == {}
    choices = choose(plan, EXPERIMENT.arms, {})
    assert choices["GSPO"].value == "3e-4, 4e-4" and choices["GSPO"].scores is None


def test_finished_runs_are_read_and_others_left_out(tmp_path: Path, write_run: WriteRun) -> None:
    arm = EXPERIMENT.arm("GRPO")
    jobs = report_jobs(PLAN, [arm], {}, RECIPE, tmp_path)
    write_run(jobs[1].folder, [0.5, 0.6])
    assert [(run.arm, run.seed) for run in finished(jobs)["GRPO"]] == [("GRPO", 12)]


def test_a_plan_comes_back(tmp_path: Path) -> None:
    PLAN.save(tmp_path)
    assert load_plan(tmp_path) == PLAN


def test_a_plan_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no experiment"):
        load_plan(tmp_path)
    (tmp_path / "plan.json").write_text('{"experiment": "x"}')
    with pytest.raises(ConfigError, match="cannot be read"):
        load_plan(tmp_path)
