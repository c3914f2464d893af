"""The verdict: each of its five words, each reason of a run that does not learn, and twins that have another."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, headline
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules._parts.reward import functions_of
from holdfast.diagnose.rules.rule import Hit

from .conftest import log_of

ROWS = 60


def noisy(level: Any, spread: float = 0.02, seed: int = 0, rows: int = ROWS) -> Any:
    return (level + spread * np.random.default_rng(seed).normal(size=rows)).tolist()


FLAT = noisy(0.3)
RISES = noisy(np.linspace(0.2, 0.7, ROWS))
REWARD, K = "reward/mean", "optimizer_steps_per_rollout"


def diagnosed(host: str = "trl", **series: Any) -> Diagnosis:
    """Of series whose names have `__` for a slash."""
    return diagnose(log_of({name.replace("__", "/"): values for name, values in series.items()}, host=host))


def why(diagnosis: Diagnosis) -> list[str]:
    return [reason.code for reason in diagnosis.verdict.reasons]


def found(diagnosis: Diagnosis) -> dict[str, int]:
    return {finding.code: finding.step for finding in diagnosis.findings}


# ---- five words


@pytest.mark.parametrize(
    ("rewards", "word"),
    [
        (RISES, "learns"),
        (FLAT, "flat"),
        ([*noisy(0.8, rows=40), *noisy(0.1, rows=20)], "fell"),
        ([*noisy(0.8, rows=20), *noisy(0.1, rows=20), *noisy(0.8, rows=20)], "fell"),
        ([*noisy(0.3, rows=20), *noisy(0.05, rows=20), *noisy(0.8, rows=20)], "learns"),  # a dip on the way up
        (FLAT[:20], "cannot tell"),
        ([0.3, 0.4], "cannot tell"),
    ],
)
def test_the_word_by_the_reward(rewards: list[float], word: str) -> None:
    diagnosis = diagnosed(reward__mean=rewards)
    assert diagnosis.verdict.word == word
    assert headline(log_of({REWARD: rewards}), diagnosis).startswith(f"{word.capitalize()}. ")


def test_evaluations_that_rise_are_learning_whatever_the_reward_functions_do() -> None:
    """Such a log has no mean reward, so nothing says that only the form is learned."""
    functions = {"rewards__answer__mean": noisy(0.1), "rewards__format__mean": RISES}
    assert diagnosed(eval__em=RISES, **functions).verdict.word == "learns"


def test_without_a_reward_it_says_what_to_log() -> None:
    verdict = diagnosed(host="unknown", grad__norm=noisy(1.0), my_score=noisy(0.5)).verdict
    assert verdict.word == "cannot tell" and "--name reward=METRIC" in verdict.log and "my_score" in verdict.log
    timed = diagnosed(host="unknown", my_score=noisy(0.5), wall_time_sec=noisy(90.0), critic_loss=noisy(0.1)).verdict
    assert timed.log.endswith("reward=METRIC: my_score.")
    assert diagnosed(grad__norm=noisy(1.0)).verdict.log == "Log the mean reward of each batch of rollouts."


def test_a_rise_that_is_only_likely_is_not_called_flat() -> None:
    verdict = diagnosed(reward__mean=noisy(np.linspace(0.3, 0.39, ROWS), 0.08, seed=3)).verdict
    assert (
        verdict.word == "cannot tell" and "may be rising" in verdict.text and "such rows would be enough" in verdict.log
    )


def test_a_reward_that_is_lower_at_the_end_is_not_said_to_rise() -> None:
    verdict = diagnosed(reward__mean=noisy(np.linspace(0.02, -0.02, ROWS), 0.15, seed=4)).verdict
    assert verdict.word == "cannot tell" and "may be rising or falling: it changed by -" in verdict.text


@pytest.mark.parametrize("word", ["flat", "broken"])
def test_flat_and_broken_always_have_a_reason_and_one_thing_to_change(word: str) -> None:
    series: dict[str, Any] = (
        {"reward__mean": [0.0] * ROWS, "grad__norm": [0.0] * ROWS} if word == "broken" else {"reward__mean": FLAT}
    )
    verdict = diagnosed(**series).verdict
    assert verdict.word == word and verdict.reasons and verdict.change == verdict.reasons[0].remedy != ""


# ---- reasons: series of a flat run, the first reason, and the step at which it began


FUNCTIONS = {"rewards__answer__mean": noisy(0.1), "rewards__format__mean": noisy(0.2)}
REASONS: dict[str, tuple[dict[str, Any], str, int]] = {
    "rewards are 0 and there is no gradient": (
        {"reward__mean": [0.0] * 20, "grad__norm": [0.0] * 20},
        "GRP001",
        1,
    ),
    "rewards are equal and there is no gradient": (
        {"reward__mean": [0.4] * 20, "grad__norm": [0.0] * 20},
        "GRP001",
        1,
    ),
    "nearly all rows have reward 0": (
        {"reward__mean": [0.25 if k % 9 == 4 else 0.0 for k in range(90)]},
        "GRP001",
        1,
    ),
    "no group differs, and the mean does": (
        {"reward__mean": FLAT, "rollout__mixed_group_fraction": [0.0] * ROWS},
        "GRP001",
        1,
    ),
    "most groups are equal": (
        {"reward__mean": FLAT, "rollout__mixed_group_fraction": noisy(0.35)},
        "GRP001",
        1,
    ),
    "contrast was lost in most groups": (
        {"reward__mean": FLAT, "rollout__mixed_group_fraction": [*noisy(0.9, rows=20), *noisy(0.3, rows=40)]},
        "GRP001",
        21,
    ),
    "rollouts are cut": (
        {"reward__mean": FLAT, "rollout__truncated_fraction": noisy(0.6)},
        "TRN001",
        1,
    ),
    "more rollouts are cut": (
        {"reward__mean": noisy(0.6), "rollout__truncated_fraction": [*[0.01, 0.02] * 15, *noisy(0.4, rows=30)]},
        "TRN001",
        31,
    ),
    "the tool is never called": ({"reward__mean": FLAT, "rollout__searches": [0.0] * ROWS}, "TOL001", 1),
    "the tool is hardly ever called": ({"reward__mean": FLAT, "rollout__searches": noisy(0.03, 0.005)}, "TOL001", 1),
    "turns have no form": ({"reward__mean": FLAT, "rollout__invalid_fraction": noisy(0.6)}, "TOL002", 1),
    "few rollouts answer": ({"reward__mean": FLAT, "rollout__answered_fraction": noisy(0.4)}, "RWD002", 1),
    "the tool is no longer called": (
        {"reward__mean": FLAT, "rollout__searches": [*noisy(2.0, rows=30), *[0.01, 0.02] * 15]},
        "TOL001",
        31,
    ),
    "updates change nothing": (
        {"reward__mean": FLAT, "kl__reference": noisy(0.0, 1e-5), "clip__fraction": [0.0] * ROWS},
        "LRN001",
        1,
    ),
    "the learning rate is 0": ({"reward__mean": FLAT, "lr": [0.0] * ROWS}, "LRN001", 1),
    "the first updates leap away": (
        {"reward__mean": FLAT, "kl__reference": [0.0, 0.1, *noisy(3.0, 0.1, rows=58)]},
        "STP001",
        3,
    ),
    "the policy drifts": (
        {"reward__mean": noisy(0.3, 0.05), "kl__reference": noisy(np.linspace(0.1, 0.9, ROWS), 0.03)},
        "KLD001",
        18,
    ),
    "a measured value stands still": (
        {"reward__mean": FLAT, "accuracy": [*noisy(0.5, rows=30), *[0.45] * 30]},
        "STL001",
        31,
    ),
    "only the format is learned": (
        {"reward__mean": noisy(np.linspace(0.3, 0.7, ROWS)), **FUNCTIONS}
        | {"rewards__format__mean": noisy(np.linspace(0.2, 0.6, ROWS))},
        "RWD004",
        1,
    ),
    "it is near its ceiling": ({"reward__mean": noisy(0.93)}, "RWD004", 1),
    "nothing shows": ({"reward__mean": FLAT, "rollout__mixed_group_fraction": noisy(0.8)}, "RWD004", 1),
}


@pytest.mark.parametrize("name", REASONS)
def test_a_run_that_does_not_learn_is_told_why(name: str) -> None:
    series, code, began = REASONS[name]
    diagnosis = diagnosed(**series)
    assert diagnosis.verdict.word in ("flat", "broken"), diagnosis.verdict
    assert why(diagnosis)[0] == code, diagnosis.verdict
    if code != "RWD004":
        steps = {one.code: one.step for one in (*diagnosis.findings, *diagnosis.notes)}
        assert abs(steps[code] - began) <= 2, "its step is where it began"


@pytest.mark.parametrize("name", [name for name, (_, code, _) in REASONS.items() if code not in ("RWD004", "STP001")])
def test_the_same_is_no_finding_of_the_verdict_in_a_run_that_learns(name: str) -> None:
    """Rewards that are all equal are none of a run that learns, and neither is a learning rate of 0."""
    series = REASONS[name][0]
    rows = len(series["reward__mean"])
    diagnosis = diagnosed(**series | {"reward__mean": noisy(np.linspace(0.2, 0.7, rows), rows=rows)})
    assert diagnosis.verdict.word in ("learns", "cannot tell") and not diagnosis.verdict.reasons
    assert not any(finding.by_verdict for finding in diagnosis.findings)


NOISE = noisy(0.3, 0.3)


def test_where_noise_hides_a_rise_it_says_how_many_rows_would_tell() -> None:
    verdict = diagnosed(reward__mean=NOISE).verdict
    assert verdict.word == "cannot tell" and "would be lost in the noise" in verdict.text
    rows = int(re.findall(r"About ([\d,]+) such rows", verdict.log)[0].replace(",", ""))
    assert diagnosed(reward__mean=noisy(0.3, 0.3, rows=rows)).verdict.word == "flat", "so many do"


def test_a_lucky_stretch_does_not_widen_the_range_by_which_a_reward_is_flat() -> None:
    """A rise by 0.14 is possible: less than a quarter of the best five rows, and more than a quarter of the best 40."""
    noise = 0.22 * np.random.default_rng(2).normal(size=200)
    rewards = np.clip(np.linspace(0.4, 0.46, 200) + noise, 0, 1)
    assert np.convolve(rewards, np.full(5, 0.2), "valid").max() > 0.56 and rewards.min() == 0
    assert diagnosed(reward__mean=rewards.tolist()).verdict.word == "cannot tell"


def test_in_a_noisy_run_what_has_held_since_the_start_is_a_note() -> None:
    """It may be sound, and too short or too noisy to show that it learns."""
    diagnosis = diagnosed(reward__mean=NOISE, rollout__mixed_group_fraction=noisy(0.35))
    assert diagnosis.verdict.word == "cannot tell" and not diagnosis.findings
    assert {note.code for note in diagnosis.notes} == {"GRP001"}


def test_a_noisy_run_is_flat_where_a_finding_explains_it() -> None:
    """All rollouts are cut in every row, or the tool is left at some step: noise hides neither."""
    cut = diagnosed(reward__mean=NOISE, rollout__truncated_fraction=[1.0] * ROWS)
    assert cut.verdict.word == "flat" and why(cut)[0] == "TRN001"
    left = diagnosed(reward__mean=NOISE, rollout__searches=[*noisy(2.0, rows=30), *[0.01, 0.02] * 15])
    assert left.verdict.word == "flat" and why(left)[0] == "TOL001"


def test_a_finding_says_what_to_change_whatever_the_verdict() -> None:
    diagnosis = diagnosed(reward__mean=[0.3, 0.4], grad__norm=[0.5, float("nan")])
    assert diagnosis.verdict.word == "cannot tell"
    assert diagnosis.verdict.change == diagnosis.findings[0].remedy != ""


def test_what_a_normalisation_left_of_the_reward_is_not_flat() -> None:
    diagnosis = diagnosed(reward__mean=noisy(0.0, 1e-7))
    assert diagnosis.verdict.word == "cannot tell" and not diagnosis.notes


def test_what_the_log_lacks_to_say_why_is_asked_for() -> None:
    assert "the learning rate" in diagnosed(reward__mean=FLAT).verdict.log
    assert "the learning rate" not in diagnosed(reward__mean=FLAT, lr=[1e-6] * ROWS).verdict.log


def test_a_few_groups_without_a_reward_are_chance_and_a_few_batches_are_not() -> None:
    """A row of TRL may be one group of four."""
    first: dict[str, Any] = {"reward__mean": [0.0] * 12, "grad__norm": [0.0] * 12}
    assert diagnosed(**first).verdict.word == "cannot tell" and not diagnosed(**first).findings
    assert diagnosed(host="verl", **first).verdict.word == "broken"


# ---- twins


@pytest.mark.parametrize(
    "series",
    [
        {"kl__reference": noisy(0.01, 0.001)},  # the policy moves
        {"kl__reference": [0.0] * ROWS},  # not measured
        {"accuracy": [0.45] * ROWS},  # a setting looks like that
        {"lr": [*np.linspace(1e-6, 1e-7, 30), *[1e-7] * 30]},  # a schedule
        {"errors": [*noisy(0.2, 0.05, rows=30), *[0.0] * 30]},  # a share of faults that is gone
        {"rollout__searches": noisy(1.0)},
        {"rollout__truncated_fraction": noisy(0.2)},
    ],
)
def test_twins_are_no_findings(series: dict[str, Any]) -> None:
    diagnosis = diagnosed(reward__mean=FLAT, rollout__mixed_group_fraction=noisy(0.8), **series)
    assert diagnosis.verdict.word == "flat" and not diagnosis.findings


# ---- a cause is not hidden by its symptom


def test_a_sampler_that_lost_its_weights_comes_before_the_step_it_looks_like() -> None:
    breaks: dict[str, Any] = {
        "reward__mean": [*noisy(0.6, rows=30), *noisy(0.02, 0.005, rows=30)],
        "entropy__mean": [*noisy(0.8, rows=30), *noisy(2.5, rows=30)],
    }
    assert "STP001" in found(diagnosed(host="verl", **breaks))
    gap = [*noisy(0.01, 0.001, rows=30), *noisy(2.0, 0.1, rows=30)]
    diagnosis = diagnosed(host="verl", sampler__logprob_abs_gap=gap, **breaks)
    assert diagnosis.findings[0].code == "SMP001" and diagnosis.findings[0].step == 31
    assert "STP001" not in found(diagnosis), "a smaller learning rate would not help"
    later = [*noisy(0.01, 0.001, rows=45), *noisy(2.0, 0.1, rows=15)]
    assert diagnosed(host="verl", sampler__logprob_abs_gap=later, **breaks).findings[0].code == "STP001"


def test_a_learning_rate_of_0_is_not_divided() -> None:
    breaks: dict[str, Any] = {
        "reward__mean": [*noisy(0.6, rows=30), *noisy(0.02, 0.005, rows=30)],
        "entropy__mean": [*noisy(0.8, rows=30), *noisy(2.5, rows=30)],
    }
    assert "STP001" not in found(diagnosed(lr=[0.0] * ROWS, **breaks))


def test_parts_that_add_up_to_the_reward_are_seen_whatever_their_names() -> None:
    score, bonus = (
        noisy(np.linspace(0.04, 0.028, 140), 0.002, rows=140),
        noisy(np.linspace(0.03, 0.15, 140), 0.01, rows=140),
    )
    total = (np.array(score) + bonus).tolist()
    hacked = diagnosed(host="unknown", reward__mean=total, ndcg=score, cold_bonus=bonus)
    assert found(hacked).keys() == {"RWD003"} and "ndcg fell from" in hacked.findings[0].summary
    other = diagnosed(host="unknown", reward__mean=total, ndcg=score, cold_bonus=noisy(0.1, rows=140))
    assert not found(other), "they do not add up"


def test_one_odd_row_is_no_low_that_another_function_has_risen_from() -> None:
    """It stands in the best five rows of the function that falls."""
    parts = {
        "rewards__variety__mean": [0.5] * 30 + [0.3] * 30,
        "rewards__steady__mean": [0.2] * 27 + [-0.2] + [0.2] * 32,
        "rewards__other__mean": noisy(2.0),
    }
    (hacked,) = diagnosed(reward__mean=np.sum(list(parts.values()), axis=0).tolist(), **parts).findings
    assert hacked.code == "RWD003" and "variety fell from 0.5 to 0.3." in hacked.summary


def test_parts_with_weights_add_up_too_and_chance_does_not() -> None:
    rng = np.random.default_rng(3)
    score = np.array(noisy(np.linspace(0.4, 0.28, 140), 0.02, rows=140))
    bonus = np.array(noisy(np.linspace(0.3, 1.5, 140), 0.1, rows=140))
    total = 0.7 * score + 0.2 * bonus
    beside = {f"other {k}": rng.random(140).tolist() for k in range(6)} | {"twice": (2 * total).tolist()}
    hacked = diagnosed(host="unknown", reward__mean=total.tolist(), ndcg=score.tolist(), speed=bonus.tolist(), **beside)
    assert found(hacked).keys() == {"RWD003"} and "ndcg fell from" in hacked.findings[0].summary
    seldom = np.where(np.arange(140) % 47 == 0, total, 0.0)  # three rows, which any three series fit
    log = log_of(
        {REWARD: seldom.tolist()} | {name: (np.array(v) * (seldom > 0)).tolist() for name, v in beside.items()}
    )
    assert functions_of(log) == ()
    negative = log_of({REWARD: (score - 0.2 * bonus).tolist(), "ndcg": score.tolist(), "cost": bonus.tolist()})
    assert functions_of(negative) == (), "a cost is no part that is earned"


def test_evaluations_show_that_the_tool_is_left() -> None:
    steps = np.arange(1, 61)
    calls = Series(np.array([10, 20, 30, 40, 50]), np.array([5.0, 4.9, 5.0, 4.9, 0.07]))
    log = log_of({REWARD: RISES}, host="unknown")
    with_calls = Log(
        format="jsonl", host="unknown", name="made", series={**log.series, "eval/searches": calls}, steps=steps
    )
    assert found(diagnose(with_calls)) == {"TOL001": 50}


@pytest.mark.parametrize(
    ("host", "settings", "said"),
    [
        ("trl", {}, "If the sampler is truncated, first sample"),
        ("trl", {"top_p": 1.0, "top_k": None}, ""),
        ("trl", {"top_p": 0.9}, "The sampler is truncated: first sample"),
        ("trl", {"top_p": 1.0, "top_k": 50}, "The sampler is truncated: first sample"),
        ("verl", {"actor_rollout_ref.rollout.top_p": 1, "actor_rollout_ref.rollout.top_k": -1}, ""),
        ("holdfast", {"sampling.top_p": "0.95"}, "The sampler is truncated: first sample"),
    ],
)
def test_advice_knows_whether_the_sampler_is_truncated(host: str, settings: dict[str, object], said: str) -> None:
    log = replace(log_of({"ratio/log_product": noisy(-4.0), REWARD: noisy(0.5)}, host=host), settings=settings)
    remedy = RULES["ISD001"].remedy_in
    assert remedy is not None
    text = remedy(log, Hit(step=1, summary="", evidence={}, series=()), ())[host]
    assert ("truncated" in text) == bool(said) and said in text and "penalty" in text
    measured = replace(log, series={**log.series, "sampler/mask_mass": log_of({"m": [1.0] * 5}).series["m"]})
    assert "truncated" not in remedy(measured, Hit(step=1, summary="", evidence={}, series=()), ())[host]


def test_a_fall_at_a_resume_is_told_as_one(tmp_path: Path) -> None:
    def read(*rewards: tuple[int, list[float]]) -> Diagnosis:
        rows = [{"step": first + k, "reward/mean": r} for first, part in rewards for k, r in enumerate(part)]
        path = tmp_path / "log.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return diagnose(read_log(path))

    resumed = read((1, noisy(0.7, rows=60)), (51, noisy(0.1, rows=30)))
    assert resumed.verdict.word == "fell" and "The run was resumed at step 51." in resumed.verdict.text
    assert resumed.verdict.change.startswith("The run was resumed at step 51, where the reward began to fall.")
    long_after = read((1, noisy(0.7, rows=40)), (31, [*noisy(0.7, rows=30), *noisy(0.1, rows=30)]))
    assert long_after.verdict.word == "fell" and "resumed" not in long_after.verdict.text + long_after.verdict.change


# ---- the step, and from when on it is certain


def test_a_fall_has_the_step_where_it_began_and_a_later_one_where_it_is_certain() -> None:
    (finding,) = diagnosed(reward__mean=[*noisy(0.8, rows=40), *noisy(0.3, rows=20)]).findings
    assert finding.code == "RWD001" and finding.step == 41 < finding.certain


def test_a_fall_that_came_back_late_is_a_finding_and_a_short_one_is_not() -> None:
    def of(rows: int) -> Diagnosis:
        low = noisy(0.1, rows=rows)
        return diagnosed(reward__mean=[*noisy(0.8, rows=100), *low, *noisy(0.75, rows=60)])

    assert found(of(60)).keys() == {"RWD001"} and "recovered by itself" in of(60).findings[0].remedy
    assert not of(20).findings and of(20).verdict.word == "fell"


def test_a_fall_at_once_that_came_back_and_left_the_rollouts_as_they_were_is_one_of_the_questions() -> None:
    rewards = [*noisy(0.8, rows=100), *noisy(0.1, rows=60), *noisy(0.75, rows=60)]
    same = diagnosed(reward__mean=rewards, entropy__mean=noisy(0.8, rows=220))
    assert same.verdict.word == "cannot tell" and "fell near step 101" in same.verdict.text and not same.findings
    entropy = [*noisy(0.8, rows=100), *noisy(1.6, rows=60), *noisy(0.8, rows=60)]
    assert diagnosed(reward__mean=rewards, entropy__mean=entropy).verdict.word == "fell"


def test_a_log_without_a_whole_rollout_batch_says_so() -> None:
    """Two of the four optimizer steps of the first one."""
    first = {name: Series(np.array([1]), np.array([value])) for name, value in ((REWARD, 0.3), (K, 4.0))}
    log = log_of({"ratio/max": [1.0, 1.1]}, host="trl")
    verdict = diagnose(replace(log, series={**log.series, **first})).verdict
    assert verdict.text == "No rollout batch is complete yet (2 rows, steps 1 to 2)."
