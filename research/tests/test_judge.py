"""Verdicts on series made by hand, each beside a twin that must get another."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast_research import judge, signs
from holdfast_research.series import RunSeries
from holdfast_research.values import Runs, Status
from research.tests.conftest import FALL, RISE

MakeRun = Callable[..., RunSeries]
HOLD = RISE + [0.8] * 30
SPIRAL = [*RISE, *FALL]  # drops at step 34
LATE = [*RISE, *[0.8] * 10, 0.7, 0.6, 0.5, 0.4, 0.3, *[0.2] * 15]  # at step 44
SHALLOW = [*RISE, *[0.65] * 30]
N = len(SPIRAL)
SHORT_FALL = [*[0.5] * 8, *[0.0] * 16]
DRIFT = {"drift/positive/thought": -0.1, "drift/positive/answer": -0.05}


def ramp(start: float, first: int, slope: float) -> list[float]:
    """`start` until step `first`, then `slope` more each step."""
    return [start + slope * max(step - first, 0) for step in range(1, N + 1)]


def seeds(make_run: MakeRun, arm: str, reward: Sequence[float], metrics: Any = None, em: float = 0.5) -> Runs:
    return {arm: tuple(make_run(arm, seed, reward, metrics, em) for seed in (1, 2, 3))}


def word(test: judge.Test, *runs: Runs) -> Status:
    together: dict[str, Any] = {}
    for some in runs:
        together |= some
    return test(together).word


SHOWN, NOT_SHOWN, CANNOT_TELL = Status.SHOWN, Status.NOT_SHOWN, Status.CANNOT_TELL
FIRST, SECOND = "likelihood/correct/action_1", "likelihood/correct/action_2"
LIKELY, LESS_LIKELY = "likelihood/correct", "likelihood/incorrect"
CORRECT, INCORRECT = "displacement/correct", "displacement/incorrect"
ENTROPY, LENGTH, MATCH = "entropy/mean", "rollout/length", "rollout/first_action_match_fraction"

# test, metrics, reward, verdict; each test has at least one that it must not show
ONE_ARM = [
    (judge.falls("A"), {}, SHALLOW, NOT_SHOWN),
    (judge.falls("A"), {}, SHORT_FALL, SHOWN),  # a short run that fell has fallen
    (judge.falls("A"), {}, HOLD[:24], CANNOT_TELL),
    (judge.stays_down("A"), {}, SPIRAL, SHOWN),
    (judge.stays_down("A"), {}, [*SPIRAL, *[0.8] * 10], NOT_SHOWN),  # it came back
    (judge.holds("A"), {}, HOLD, SHOWN),
    (judge.holds("A"), {}, SHALLOW, NOT_SHOWN),  # no collapse, and no hold either
    (judge.holds("A"), {}, [0.0] * 60, NOT_SHOWN),  # it never learned, so it held nothing
    (signs.displaced_before_drop("A"), {CORRECT: ramp(0.01, 20, -0.01)}, SPIRAL, SHOWN),
    (signs.displaced_before_drop("A"), {CORRECT: ramp(0.01, 40, -0.01)}, SPIRAL, NOT_SHOWN),
    (signs.displaced_before_drop("A"), {}, SPIRAL, CANNOT_TELL),  # never logged is not never below
    (signs.never_displaced("A"), {CORRECT: 0.01}, HOLD, SHOWN),
    (signs.never_displaced("A"), {CORRECT: ramp(0.01, 50, -0.01)}, HOLD, NOT_SHOWN),
    (signs.likelihood_decays_first("A"), {LIKELY: ramp(-0.5, 15, -0.01)}, SPIRAL, SHOWN),
    (signs.likelihood_decays_first("A"), {LIKELY: ramp(-0.5, 15, -1e-4)}, SPIRAL, NOT_SHOWN),
    # It decays 7 steps before the drop, but the reward has long stopped rising:
    (signs.likelihood_decays_first("A"), {LIKELY: [-0.01 * abs(k - 25) for k in range(1, N + 1)]}, SPIRAL, NOT_SHOWN),
    (signs.queries_drift_more("A"), {**DRIFT, "drift/positive/query": -0.2}, SPIRAL, SHOWN),
    (signs.queries_drift_more("A"), {**DRIFT, "drift/positive/query": ramp(0.0, 34, -0.2)}, SPIRAL, NOT_SHOWN),
    (signs.displacement_deepens("A"), {CORRECT: ramp(0.01, 20, -0.01)}, SPIRAL, SHOWN),
    (signs.displacement_deepens("A"), {CORRECT: ramp(-0.5, 10, 0.01)}, SPIRAL, NOT_SHOWN),
    (signs.incorrect_not_raised("A"), {CORRECT: -0.1, INCORRECT: -0.2}, SPIRAL, SHOWN),
    (signs.incorrect_not_raised("A"), {CORRECT: -0.1, INCORRECT: 0.1}, SPIRAL, NOT_SHOWN),
    (signs.incorrect_not_raised("A"), {CORRECT: 0.1, INCORRECT: 0.1}, SPIRAL, CANNOT_TELL),
    (signs.incorrect_below_correct("A"), {LIKELY: -0.5, LESS_LIKELY: -0.6}, HOLD, SHOWN),
    # Only after the drop:
    (signs.incorrect_below_correct("A"), {LIKELY: -1, LESS_LIKELY: ramp(0, 33, -2)}, SPIRAL, NOT_SHOWN),
    (signs.entropy_surges_alone("A", LENGTH), {ENTROPY: ramp(1, 20, 0.1), LENGTH: ramp(50, 40, 5)}, SPIRAL, SHOWN),
    (signs.entropy_surges_alone("A", LENGTH), {ENTROPY: ramp(1, 20, 0.1), LENGTH: ramp(50, 15, 5)}, SPIRAL, NOT_SHOWN),
    (signs.entropy_before_drop("A"), {ENTROPY: ramp(1, 20, 0.1)}, SPIRAL, SHOWN),
    (signs.entropy_before_drop("A"), {ENTROPY: ramp(1, 33, 0.1)}, SPIRAL, NOT_SHOWN),
    (signs.gradient_calm_at_drop("A"), {"grad/norm": 0.3}, SPIRAL, SHOWN),
    (signs.gradient_calm_at_drop("A"), {"grad/norm": ramp(0.3, 28, 1.0)}, SPIRAL, NOT_SHOWN),
    (signs.gradient_surges("A"), {"grad/norm": ramp(0.3, 40, 1)}, SPIRAL, SHOWN),
    (signs.gradient_surges("A"), {"grad/norm": [*[0.3] * 39, 1.0, *[0.3] * 20]}, SPIRAL, NOT_SHOWN),  # one step
    (signs.ratio_drifts_before_drop("A"), {"ratio/log_product": ramp(0, 20, -0.2)}, SPIRAL, SHOWN),
    (signs.ratio_drifts_before_drop("A"), {"ratio/log_product": ramp(0, 20, -0.02)}, SPIRAL, NOT_SHOWN),
    (signs.ratio_never_drifts("A"), {"ratio/log_product": ramp(0, 20, -0.01)}, HOLD, SHOWN),
    (signs.ratio_never_drifts("A"), {"ratio/log_product": ramp(0, 50, -0.5)}, HOLD, NOT_SHOWN),
    (signs.first_action_crosses("A"), {FIRST: ramp(-0.2, 30, -0.1), SECOND: -0.3}, SPIRAL, SHOWN),
    (signs.first_action_crosses("A"), {FIRST: ramp(-0.4, 30, -0.1), SECOND: -0.3}, SPIRAL, NOT_SHOWN),
    (signs.first_action_crosses("A"), {FIRST: ramp(-0.2, 34, -0.1), SECOND: -0.3}, SPIRAL, NOT_SHOWN),  # after the drop
    (signs.first_action_crosses("A"), {FIRST: ramp(-0.2, 30, -0.1), SECOND: -0.3}, HOLD, CANNOT_TELL),
    (signs.first_action_crosses_by_the_end("A"), {FIRST: ramp(-0.2, 30, -0.1), SECOND: -0.3}, HOLD, SHOWN),
    (signs.first_action_decays_faster("A"), {FIRST: ramp(-1, 30, -0.1), SECOND: ramp(-1, 30, -0.05)}, SPIRAL, SHOWN),
    # Only after the drop:
    (signs.first_action_decays_faster("A"), {FIRST: ramp(-1, 40, -1), SECOND: ramp(-1, 30, -0.1)}, SPIRAL, NOT_SHOWN),
    (signs.first_action_match_rises("A"), {MATCH: ramp(0.3, 10, 0.01)}, SPIRAL, SHOWN),
    # Up, and down again by the drop:
    (signs.first_action_match_rises("A"), {MATCH: [0.3, *[0.6] * 20, *[0.2] * 40]}, SPIRAL, NOT_SHOWN),
    (signs.first_action_match_rises("A"), {MATCH: ramp(0.3, 10, 0.01)}, HOLD, CANNOT_TELL),
    (signs.first_action_match_rises_by_the_end("A"), {MATCH: ramp(0.3, 10, 0.01)}, HOLD, SHOWN),
    (signs.most_displaced("A"), {"displacement/fraction": ramp(0.2, 10, 0.03)}, SPIRAL, SHOWN),
    (signs.most_displaced("A"), {"displacement/fraction": ramp(0.2, 33, 0.03)}, SPIRAL, NOT_SHOWN),
    (signs.never_most_displaced("A"), {"displacement/fraction": 0.4}, HOLD, SHOWN),
    (signs.never_most_displaced("A"), {"displacement/fraction": ramp(0.2, 33, 0.03)}, HOLD, NOT_SHOWN),
    (signs.searches_end_below("A", 1.2), {"rollout/searches": 1.1}, HOLD, SHOWN),
    (signs.searches_end_below("A", 1.2), {"rollout/searches": 1.3}, HOLD, NOT_SHOWN),
    (signs.searches_end_below("A", 1.2), {"rollout/searches": 1.1}, SPIRAL, CANNOT_TELL),
]


@pytest.mark.parametrize(("test", "metrics", "reward", "expected"), ONE_ARM)
def test_one_arm(make_run: MakeRun, test: judge.Test, metrics: Any, reward: list[float], expected: Status) -> None:
    assert word(test, seeds(make_run, "A", reward, metrics)) is expected


TWO_ARMS = [
    (judge.holds_where("A", "B"), HOLD, SPIRAL, SHOWN),
    (judge.holds_where("A", "B"), HOLD, HOLD, CANNOT_TELL),  # nothing to remedy
    (judge.prevents_where("A", "B"), SHALLOW, SPIRAL, SHOWN),  # it lost some, and did not collapse
    (judge.holds_where("A", "B"), SHALLOW, SPIRAL, NOT_SHOWN),
    (judge.prevents_where("A", "B"), HOLD, HOLD, CANNOT_TELL),
    (judge.prevents_where("A", "B"), HOLD[:40], SHORT_FALL, SHOWN),
    (judge.prevents_where("A", "B"), HOLD[:39], SHORT_FALL, CANNOT_TELL),  # it may have fallen at the next step
    (judge.delays("A", "B"), LATE, SPIRAL, SHOWN),
    (judge.delays("A", "B"), HOLD, SPIRAL, SHOWN),
    (judge.delays("A", "B"), SPIRAL, SPIRAL, NOT_SHOWN),
    (judge.falls_after_delay("A", "B"), LATE, SPIRAL, SHOWN),
    (judge.falls_after_delay("A", "B"), HOLD, SPIRAL, NOT_SHOWN),
    (judge.falls_after_delay("A", "B"), [*HOLD[:45], *[0.6] * 15], SPIRAL, NOT_SHOWN),  # a dip is no fall
    (judge.falls_after_delay("A", "B"), SPIRAL, LATE, NOT_SHOWN),
    (judge.peaks_higher("A", "B"), [*RISE, *[0.9] * 30], SPIRAL, SHOWN),
    (judge.peaks_higher("A", "B"), SPIRAL, [*RISE, *[0.9] * 30], NOT_SHOWN),
    (judge.peaks_higher("A", "B"), HOLD, SPIRAL, CANNOT_TELL),  # the same peak
    (judge.peaks_higher("A", "B"), [*SPIRAL, *[0.9] * 20], SPIRAL, CANNOT_TELL),  # higher when B is over
]


@pytest.mark.parametrize(("test", "ours", "other", "expected"), TWO_ARMS)
def test_two_arms(make_run: MakeRun, test: judge.Test, ours: list[float], other: list[float], expected: Status) -> None:
    assert word(test, seeds(make_run, "A", ours), seeds(make_run, "B", other)) is expected


BACK = signs.brings_back_searches("A", "B", 2.0, 1.2)


@pytest.mark.parametrize(
    ("ours", "other", "expected"),
    [(2.1, 1.0, SHOWN), (1.9, 1.0, NOT_SHOWN), (2.1, 1.5, CANNOT_TELL)],  # nothing to bring back
)
def test_searches_of_two_arms(make_run: MakeRun, ours: float, other: float, expected: Status) -> None:
    runs = [seeds(make_run, arm, HOLD, {"rollout/searches": n}) for arm, n in (("A", ours), ("B", other))]
    assert word(BACK, *runs) is expected


def test_searches_are_not_asked_of_a_run_that_falls(make_run: MakeRun) -> None:
    runs = [
        seeds(make_run, arm, reward, {"rollout/searches": n})
        for arm, reward, n in (("A", HOLD, 2.1), ("B", SPIRAL, 1.0))
    ]
    assert word(BACK, *runs) is CANNOT_TELL


def test_a_control_in_a_run_that_holds_leaves_out_what_fell(make_run: MakeRun) -> None:
    calm, moved = {"displacement/correct": 0.01}, {"displacement/correct": -0.01}
    test = judge.where_it_held("A", signs.never_displaced("A"))
    three = seeds(make_run, "A", HOLD, calm)["A"]
    verdict = test({"A": (*three, make_run("A", 4, SPIRAL, moved))})
    assert verdict.word is SHOWN and verdict.because.endswith("on 3 of 3 seeds (0.44 to 1.00); on 1 it fell")
    assert test({"A": three}) == signs.never_displaced("A")({"A": three})
    nothing = test(seeds(make_run, "A", SPIRAL, calm))
    assert nothing.word is CANNOT_TELL and "A fell on every seed" in nothing.because
    assert test({}).because == judge.NOBODY


def test_a_habit_is_asked_only_where_there_is_something_to_learn(make_run: MakeRun) -> None:
    """A run whose reward never rose stays at one search because of that."""
    once = {"rollout/searches": 1.0}
    test = judge.where_it_learned("A", signs.searches_end_below("B", 1.2))
    assert word(test, seeds(make_run, "A", HOLD), seeds(make_run, "B", [0.2] * N, once)) is SHOWN
    for idle in ([0.2] * N, SHALLOW):
        nothing = test({**seeds(make_run, "A", idle), **seeds(make_run, "B", HOLD, once)})
        assert nothing.word is CANNOT_TELL and nothing.because == "A rose by 0.12 and held on 0 of 3 seeds"
    learned = (*seeds(make_run, "A", HOLD)["A"], make_run("A", 4, [0.2] * N))
    some = test({"A": learned, "B": tuple(make_run("B", seed, HOLD, once) for seed in (1, 2, 3, 4))})
    assert some.word is SHOWN and some.because.endswith("on 3 of 3 seeds (0.44 to 1.00); on 1 A did not learn")
    assert test({}).because == judge.NOBODY


@pytest.mark.parametrize(("em", "expected"), [(0.6, SHOWN), (0.4, NOT_SHOWN), (0.56, CANNOT_TELL), (0.44, CANNOT_TELL)])
def test_ends_higher(make_run: MakeRun, em: float, expected: Status) -> None:
    ours, other = seeds(make_run, "A", HOLD, em=em), seeds(make_run, "B", HOLD, em=0.5)
    assert word(judge.ends_higher("A", "B"), ours, other) is expected
    unmeasured = judge.ends_higher("A", "B", judge.DISPLACEMENT)({**ours, **other})
    assert unmeasured.word is CANNOT_TELL and unmeasured.because == judge.NOBODY, "not: they ended close"
    assert word(judge.peaks_higher("A", "B"), seeds(make_run, "A", HOLD[:3]), other) is CANNOT_TELL, "nor at that time"


@pytest.mark.parametrize(("em", "expected"), [(0.6, SHOWN), (0.44, SHOWN), (0.4, NOT_SHOWN), (math.nan, CANNOT_TELL)])
def test_ends_no_lower_whatever_the_reward_does(make_run: MakeRun, em: float, expected: Status) -> None:
    for reward in (HOLD, SPIRAL):
        ours, other = seeds(make_run, "A", reward, em=em), seeds(make_run, "B", HOLD, em=0.5)
        assert word(judge.ends_no_lower("A", "B"), ours, other) is expected


def test_what_counts_as_a_difference_depends_on_the_number_of_questions(make_run: MakeRun) -> None:
    """Of 20,000 pairs of tests of one model, which is right in half of the answers, 95 % are nearer than the noise."""
    draw = np.random.default_rng(7)
    for answers in (100, 400):
        first, second = draw.binomial(answers, 0.5, (2, 20_000)) / answers
        near = float((abs(first - second) <= judge.noise(answers)).mean())
        assert near == pytest.approx(0.95, abs=0.012)  # in steps of 1 / answers
    few = {arm: tuple(asking(run, 100) for run in runs) for arm, runs in seeds(make_run, "A", HOLD, em=0.6).items()}
    other = seeds(make_run, "B", HOLD, em=0.5)
    assert word(judge.ends_higher("A", "B"), few, other) is CANNOT_TELL  # .1 of 100 questions, .139 by chance


def asking(run: RunSeries, questions: int) -> RunSeries:
    return replace(run, results={**run.results, "questions": questions})


def test_seeds_are_paired_and_others_left_out(make_run: MakeRun) -> None:
    ours = tuple(make_run("A", seed, HOLD, em=0.9) for seed in (1, 2, 3))
    others = tuple(make_run("B", seed, HOLD, em=0.1) for seed in (2, 3, 4))
    verdict = judge.ends_higher("A", "B")({"A": ours, "B": others})
    assert set(verdict.numbers) == {"2", "3"}
    assert verdict.word is CANNOT_TELL


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([True, True, True, None], SHOWN),
        ([True, True, False, False], Status.PARTLY),
        ([True, False, False], NOT_SHOWN),
        ([True, True, None], CANNOT_TELL),
        ([], CANNOT_TELL),
    ],
)
def test_the_tally(answers: list[bool | None], expected: Status) -> None:
    verdict = judge.tally({seed: (answer, {}) for seed, answer in enumerate(answers)}, "so it was", "nobody knows")
    assert verdict.word is expected
    assert ("nobody knows" in verdict.because) is (None in answers)


def test_the_numbers_of_every_seed_are_kept(make_run: MakeRun) -> None:
    metrics = {"displacement/correct": ramp(0.01, 20, -0.01)}
    verdict = signs.displaced_before_drop("A")(seeds(make_run, "A", SPIRAL, metrics))
    # Step 23: (.01 + .01 + 0 - .01 - .02) / 5 < 0. Step 34: (.8 + .7 + .6 + .5 + .4) / 5 = .6 < .8 × .8.
    assert verdict.numbers["1"] == {"displacement < 0": 23, "reward drop": 34}
    assert verdict.because == "correct rollouts were displaced before the reward dropped on 3 of 3 seeds (0.44 to 1.00)"
