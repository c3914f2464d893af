"""Facts about the end of a run: what was wasted, where to go back to, and where entropy is going."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import headline
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.outlook import FLOOR_STEP, GOOD, NO_RATE, SAVED, SHARE, TIME_SHARE, in_words, reaches

FELL, NO_CONTRAST = "fell for good", "no contrast since"


def log_of(host: str = "holdfast", settings: dict[str, object] | None = None, **series: Any) -> Log:
    arrays = {name.replace("__", "/"): np.asarray(values, float) for name, values in series.items()}
    steps = np.arange(1, 1 + max(map(len, arrays.values())))
    named = {name: Series(steps[: len(values)], values) for name, values in arrays.items()}
    return Log(format="jsonl", host=host, name="run", series=named, steps=steps, settings=settings or {})


COLLAPSE = [0.2 + 0.01 * k for k in range(40)] + [0.6 - 0.05 * k for k in range(12)] + [0.02] * 48


# ---- what was not learned


@pytest.mark.parametrize(
    ("scores", "falls"),
    [
        ([0.5, 0.54, 0.53, 0.5, 0.44, 0.4], True),
        ([0.5, 0.54, 0.53, 0.54, 0.52, 0.51], False),
        ([0.3, 0.5, 0.35, 0.5, 0.4, 0.3], False),  # it always scattered like that
        ([0.5, 0.54, 0.3, 0.3], False),  # too few
    ],
)
def test_a_held_out_score_that_falls_while_the_reward_rises_is_on_the_first_screen(
    scores: list[float], falls: bool
) -> None:
    rises = log_of(reward__mean=np.linspace(0.2, 0.8, 60) + 0.02 * np.sin(np.arange(60)))
    steps = np.linspace(10, 60, len(scores)).astype(np.int64)
    log = replace(rises, series={**rises.series, "eval/em": Series(steps, np.asarray(scores))})
    diagnosis = diagnose(log)
    assert diagnosis.verdict.word == "learns" and ("held-out score eval/em fell" in in_words(diagnosis.facts)) is falls
    flat = replace(
        log, series={**log.series, "reward/mean": log_of(reward__mean=[0.5, 0.6] * 30).series["reward/mean"]}
    )
    assert "held-out" not in in_words(diagnose(flat).facts), "then the verdict says more"


# ---- what was wasted


def test_the_share_after_a_fall_for_good_and_of_the_time_where_it_is_logged() -> None:
    """Steps after the collapse take three times as long, so more of the time was wasted than of the steps."""
    facts = diagnose(log_of(reward__mean=COLLAPSE)).facts
    assert 40 < facts[FELL] < 60
    assert facts[SHARE] == pytest.approx((100 - facts[FELL]) / 100)
    assert (
        TIME_SHARE not in facts and "the reward collapsed" in in_words(facts) and "of its time" not in in_words(facts)
    )
    times = [10.0] * 60 + [30.0] * 40
    facts = diagnose(log_of(reward__mean=COLLAPSE, time__step_s=times)).facts
    fell = int(facts[FELL])
    assert facts[TIME_SHARE] == pytest.approx(sum(times[fell:]) / sum(times))
    assert facts[TIME_SHARE] > facts[SHARE] and f"({facts[TIME_SHARE]:.0%} of its time)" in in_words(facts)


def test_nothing_is_wasted_by_a_run_that_came_back_or_held() -> None:
    back = [0.6] * 40 + [0.1] * 15 + [0.1 + 0.05 * k for k in range(10)] + [0.6] * 40
    for rewards in (back, [0.2 + 0.005 * k for k in range(100)]):
        facts = diagnose(log_of(reward__mean=rewards)).facts
        assert not {FELL, SHARE, GOOD} & set(facts) and in_words(facts) == ""


def test_a_learning_rate_of_zero() -> None:
    rewards = [0.2 + 0.005 * k for k in range(100)]
    facts = diagnose(log_of(reward__mean=rewards, lr=[1e-6] * 70 + [0.0] * 30)).facts
    assert facts[NO_RATE] == 71 and facts[SHARE] == pytest.approx(0.29)
    assert "the learning rate became 0 at step 71" in in_words(facts)
    schedule = diagnose(log_of(reward__mean=rewards, lr=[1e-6 * (99 - k) for k in range(100)])).facts
    assert schedule[NO_RATE] == 100 and in_words(schedule) == ""
    assert NO_RATE not in diagnose(log_of(reward__mean=rewards, lr=[1e-6] * 40 + [0.0] * 30 + [1e-6] * 30)).facts


# ---- where to go back to


@pytest.mark.parametrize(
    ("host", "settings", "saved"),
    [
        ("holdfast", {"checkpoint.every": 10}, 40),
        ("trl", {"save_steps": 15}, 30),
        ("verl", {"trainer.save_freq": 50}, 0),
        ("trl", {"save_steps": 15, "save_strategy": "epoch"}, None),
        ("trl", {"save_steps": 0.1}, None),
    ],
)
def test_the_last_good_checkpoint(host: str, settings: dict[str, object], saved: int | None) -> None:
    facts = diagnose(log_of(host, settings, reward__mean=COLLAPSE)).facts
    assert 40 <= facts[GOOD] <= 44  # the running mean is highest a few rows after the last rise
    assert facts.get(SAVED) == saved
    said = in_words(facts)
    if saved:
        assert f"Last good checkpoint: step {saved}." in said
    else:
        assert f"Last good step: {facts[GOOD]:.0f}" in said and ("before the first checkpoint" in said) is (saved == 0)


def test_good_is_before_the_first_finding_if_the_reward_was_high_there() -> None:
    """The retriever fails at step 35, where the reward is at 90 % of its peak, and at step 5, at a third."""
    late, early = [0.0] * 34 + [0.9] * 66, [0.0] * 4 + [0.9] * 96
    at = [
        diagnose(log_of(reward__mean=COLLAPSE, retrieval__error_fraction=share)).facts[GOOD] for share in (late, early)
    ]
    assert at[0] == 35 and at[1] >= 40


# ---- entropy


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_known_curve_is_projected(noise: float) -> None:
    """exp(-0.04 s) is 0.02 at ln 50 / 0.04 = 97.8, and 1 - 0.01 s is 0.1 at 90."""
    steps = np.arange(1, 61)
    factor = 1 + noise * np.random.default_rng(0).normal(size=60)
    exponential, straight = (
        reaches(steps, np.exp(-0.04 * steps) * factor, 0.02),
        reaches(steps, (1 - 0.01 * steps) * factor, 0.1),
    )
    assert exponential == pytest.approx(math.log(50) / 0.04, rel=0.02 + noise)
    assert straight == pytest.approx(90, rel=0.02 + 5 * noise)


def test_no_trend_no_projection() -> None:
    steps, draw = np.arange(1, 61), np.random.default_rng(1)
    assert reaches(steps, 0.5 + 0.01 * draw.normal(size=60), 0.02) is None
    assert reaches(steps, 0.5 + 0.001 * steps, 0.02) is None
    assert reaches(steps, np.exp(-0.1 * steps), 0.02) is None  # it is there already
    # 0.4 + 0.6 exp(-s / 20) never reaches 0.1. Its mean pace would take 40 steps more, its late pace hundreds.
    late = reaches(steps, 0.4 + 0.6 * np.exp(-steps / 20), 0.1)
    assert late is not None and late > 200


def test_entropy_is_told_only_within_the_length_of_the_run() -> None:
    steps = np.arange(1, 101)
    rewards = 0.2 + 0.005 * steps
    soon = diagnose(log_of(reward__mean=rewards, entropy__mean=np.exp(-0.025 * steps))).facts
    assert soon[FLOOR_STEP] == pytest.approx(math.log(50) / 0.025, rel=0.03)  # 0.02 nats
    assert f"entropy will reach 0.02 nats, where ENT002 applies, at about step {soon[FLOOR_STEP]:.0f}." in in_words(
        soon
    )
    assert FLOOR_STEP not in diagnose(log_of(reward__mean=rewards, entropy__mean=np.exp(-0.01 * steps))).facts
    # 0.1 nats a rollout are 0.05 a token if a rollout has two, and ln 20 / 0.025 = 120.
    short = log_of(reward__mean=rewards, entropy__mean=np.exp(-0.025 * steps), rollout__length=[2.0] * 100)
    assert diagnose(short).facts[FLOOR_STEP] == pytest.approx(math.log(20) / 0.025, rel=0.03)


def test_a_reward_that_is_0_but_for_rounding_is_not_judged() -> None:
    rest = {"raw_score": [0.5] * 40}
    log = log_of(reward__mean=[1e-7 * (-1) ** k for k in range(40)], **rest)
    assert "shows nothing" in headline(log, diagnose(log)) and "raw_score" in headline(log, diagnose(log))
    log = log_of(reward__mean=[0.0] * 40, **rest)
    assert "shows nothing" not in headline(log, diagnose(log))


def test_contrasts_that_are_rare_all_along_are_not_lost_at_a_step() -> None:
    """GRP001 says so only once it can know; the run was no better before."""
    hard = [0.1 + 0.01 * (k % 3) for k in range(60)]
    rare = log_of(reward__mean=hard, rollout__mixed_group_fraction=[0.1 + 0.02 * (k % 2) for k in range(60)])
    facts = diagnose(rare).facts
    assert [f.code for f in diagnose(rare).findings] == ["GRP001"] and NO_CONTRAST not in facts
    never = log_of(reward__mean=[0.0] * 60, rollout__mixed_group_fraction=[0.0] * 60)
    assert NO_CONTRAST not in diagnose(never).facts, "nothing was lost at a step"
    late = np.arange(10, 31)
    series = {name: Series(late, np.zeros(21)) for name in ("reward/mean", "rollout/mixed_group_fraction")}
    begun = replace(never, series=series | {"grad/norm": Series(np.arange(1, 31), np.ones(30))}, steps=np.arange(1, 31))
    (finding,) = diagnose(begun).findings
    assert finding.step == 10 and NO_CONTRAST not in diagnose(begun).facts, "there is no reward before step 10"
