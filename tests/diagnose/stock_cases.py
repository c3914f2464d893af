"""Ways to change a series of a log, and cases and twins of the codes that the logs of stock trainers show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Change = Callable[[np.ndarray], Any]


def ramp(start: int, to: float, length: int = 20) -> Change:
    """From its value at a row to another, in a straight line, and there it stays."""

    def change(values: np.ndarray) -> np.ndarray:
        t = np.clip((np.arange(len(values)) - start) / length, 0, 1)
        return values + t * (to - values[start])

    return change


def step(start: int, to: float) -> Change:
    """Another value from a row on."""

    def change(values: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(values)) >= start, to + 0.02 * (values - values.mean()), values)

    return change


def spike(at: int, to: float) -> Change:
    """Another value at one row."""
    return lambda values: np.where(np.arange(len(values)) == at, to, values)


def always(value: float) -> Change:
    return lambda values: np.full(len(values), value)


def absent(values: np.ndarray) -> list[None]:
    """It is not logged."""
    return [None] * len(values)


def breaks(start: int, to: float) -> Change:
    """Exactly this value from a row on."""
    return lambda values: np.where(np.arange(len(values)) < start, values, to)


def begins(start: int, at: float) -> Change:
    """Exactly this value up to a row."""
    return lambda values: np.where(np.arange(len(values)) < start, at, values)


def noisy(level: float, spread: float, seed: int = 7) -> Change:
    """A level with noise of its own."""
    return lambda values: level + spread * np.random.default_rng(seed).normal(size=len(values))


def then(first: Change, second: Change) -> Change:
    return lambda values: second(first(values))


def from_row(start: int, late: Change, early: Change) -> Change:
    return lambda values: np.where(np.arange(len(values)) < start, early(values), late(values))


KL, GAP = "kl__reference", "sampler__logprob_abs_gap"
CUT, MIXED = "rollout__truncated_fraction", "rollout__mixed_group_fraction"
RIGHT, FORMAT = "rewards__is_right__mean", "rewards__well_formatted__mean"
HACKED: dict[str, Change] = {
    RIGHT: then(noisy(0.5, 0.02), ramp(20, 0.0)),
    FORMAT: then(noisy(0.2, 0.02), ramp(20, 1.0)),
    "reward__mean": then(noisy(0.7, 0.03), ramp(20, 1.0)),
    "reward__em": absent,
    "rollout__answered_fraction": absent,
}
OUTWEIGHED = HACKED | {FORMAT: always(2.0), "reward__mean": then(noisy(2.5, 0.02), ramp(20, 2.0))}
"""Four fifths of the reward stay when nothing else is left."""
UNOBSERVED: dict[str, Change] = {"displacement__correct": absent, "ratio__log_product": absent}
BROKEN = UNOBSERVED | {"reward__mean": step(25, 0.05), "entropy__mean": step(25, 2.5)}
BROKEN_AT_FIRST = UNOBSERVED | {
    "reward__mean": from_row(1, noisy(0.02, 0.002), noisy(0.6, 0.0)),
    "entropy__mean": from_row(1, noisy(2.0, 0.05), noisy(0.8, 0.0)),
}


ELSEWHERE: dict[str, Any] = {"host": "verl"}
"""Another engine samples."""
CALLS, TURNS, CALLS_FAIL = "rollout__searches", "rollout__turns", "rollout__failed_call_fraction"
LENGTH, ENTROPY = "rollout__length", "entropy__mean"
AGE, CLIP, ESS = "rollout__staleness", "clip__fraction", "sampler__ess"
RATIO, SIGNED = "sampler__importance_ratio", "sampler__logprob_gap"
FLAT = {"reward__mean": noisy(0.5, 0.02)}
HARD: dict[str, Change] = {"reward__mean": noisy(0.1, 0.01), "reward__em": noisy(0.1, 0.01)}
RESULTS_VANISH: dict[str, Change] = {TURNS: noisy(3.0, 0.1), LENGTH: from_row(30, noisy(150, 5), noisy(400, 5))}
IDENTICAL: dict[str, Change] = {ENTROPY: breaks(22, 0.00002), LENGTH: noisy(100, 2)}


CASES: dict[str, list[tuple[dict[str, Change], tuple[int, int]]]] = {
    "KLD001": [
        ({KL: then(noisy(0.05, 0.01), ramp(20, 3.0)), "reward__mean": noisy(0.6, 0.02)}, (27, 36)),
        # It runs away while the reward falls, and stays below 1.
        ({KL: then(noisy(0.02, 0.004), ramp(20, 0.9)), "reward__mean": ramp(24, 0.0)}, (28, 40)),
    ],
    "GRP001": [(HARD | {MIXED: noisy(0.12, 0.02)}, (30, 40))],
    "ENT001": [({ENTROPY: then(noisy(0.8, 0.01), ramp(20, 2.0, 20))}, (22, 45))],
    "ENT002": [
        (IDENTICAL | {MIXED: noisy(0.6, 0.02)}, (25, 50)),
        (IDENTICAL | {ENTROPY: breaks(22, 0.00014), MIXED: noisy(0.9, 0.02)}, (25, 50)),
    ],
    "SMP002": [
        (ELSEWHERE | {RATIO: then(noisy(0.98, 0.01), ramp(20, 0.1))}, (31, 36)),
        ({GAP: from_row(30, noisy(0.08, 0.01), noisy(0.008, 0.001))}, (32, 32)),
        ({"sampler__prob_abs_gap": from_row(30, noisy(0.03, 0.002), noisy(0.003, 0.001))}, (32, 32)),
        ({"sampler__mismatch_kl": from_row(30, noisy(0.05, 0.002), noisy(0.001, 0.0002))}, (32, 32)),
    ],
    "ENT003": [
        ({"entropy__mean": lambda v: v + 4.8}, (1, 1)),
        ({"entropy__mean": step(30, 7.0)}, (32, 32)),  # from one row to the next, which ENT001 leaves alone
    ],
    "RWD003": [(HACKED, (24, 40)), (OUTWEIGHED, (34, 45))],
    "STP001": [(BROKEN, (26, 29)), (BROKEN_AT_FIRST, (3, 3))],
    "SMP001": [
        ({GAP: noisy(0.3, 0.02)}, (1, 1)),
        ({"sampler__prob_abs_gap": noisy(0.1, 0.01)}, (1, 1)),
        ({"sampler__mismatch_kl": noisy(0.3, 0.02)}, (1, 1)),
    ],
    "TOL001": [
        (FLAT | {CALLS: then(noisy(1.4, 0.1), ramp(25, 0.0, 8))}, (33, 42)),
        (FLAT | {TURNS: then(noisy(3.0, 0.1), ramp(25, 1.0, 8))}, (33, 42)),
    ],
    "TOL002": [
        ({CALLS_FAIL: from_row(30, noisy(0.95, 0.01), noisy(0.05, 0.01))}, (31, 34)),
        ({CALLS_FAIL: noisy(0.97, 0.005)}, (10, 10)),
        (RESULTS_VANISH | {"reward__mean": from_row(30, noisy(0.1, 0.01), noisy(0.6, 0.01))}, (32, 33)),
    ],
    "LRN001": [
        ({"lr": always(0.0), CLIP: always(0.0)}, (5, 5)),
        ({"lr": from_row(30, always(0.0), always(1e-6)), CLIP: breaks(31, 0.0)}, (35, 35)),
    ],
    "SMP003": [
        (ELSEWHERE | {GAP: lambda v: 0.004 + 0.003 * np.arange(len(v))}, (8, 20)),
        (ELSEWHERE | {SIGNED: lambda v: 0.0002 + (0.01 * np.arange(len(v))) ** 2}, (8, 22)),
    ],
    "SMP004": [
        ({ESS: then(noisy(0.95, 0.01), ramp(20, 0.2)), "reward__mean": ramp(28, 0.2)}, (30, 50)),
        ({ESS: noisy(0.3, 0.02), "reward__mean": ramp(28, 0.2)}, (30, 50)),
    ],
    "OFP001": [
        ({AGE: then(noisy(1.0, 0.05), ramp(25, 8.0)), "reward__mean": ramp(28, 0.2)}, (30, 50)),
        ({CLIP: ramp(25, 0.05), "reward__mean": ramp(28, 0.45), **UNOBSERVED}, (30, 54)),
    ],
    "TRN001": [
        # All are cut off, so all have the same reward.
        ({CUT: always(1.0), "reward__mean": always(0.0), MIXED: always(0.0), "reward__em": always(0.0)}, (3, 3)),
        ({CUT: noisy(0.8, 0.01), "reward__mean": noisy(0.2, 0.02)}, (20, 20)),
        ({CUT: noisy(0.6, 0.02), "reward__mean": noisy(0.35, 0.03)}, (30, 30)),  # half, and nothing is learned
    ],
}
TWINS: dict[str, list[dict[str, Change]]] = {
    "KLD001": [
        {KL: then(noisy(0.01, 0.002), ramp(0, 0.3, 60))},  # a run that learns
        {KL: then(noisy(0.05, 0.01), spike(30, 400.0))},  # one absurd token
        {KL: then(noisy(0.05, 0.01), ramp(2, 3.0, 40)), "reward__mean": ramp(0, 1.0, 30)},  # it learns from nothing
        {KL: noisy(1.5, 0.05), "reward__mean": noisy(0.6, 0.02)},  # the reference is not the start
        {KL: noisy(0.1, 0.02), "reward__mean": ramp(24, 0.0)},  # the reward falls, and not by leaving the reference
    ],
    "GRP001": [
        {MIXED: noisy(0.12, 0.02), "reward__mean": then(noisy(0.1, 0.01), ramp(0, 0.4, 60))},  # it learns from them
        HARD | {MIXED: noisy(0.4, 0.02)},
    ],
    "ENT001": [
        # It dips, and comes back to less than it was.
        {ENTROPY: then(noisy(2.0, 0.01), then(ramp(5, 0.8, 10), ramp(25, 1.8, 15)))},
        {ENTROPY: then(noisy(0.8, 0.01), ramp(20, 0.95, 20))},
    ],
    "ENT002": [
        IDENTICAL | {MIXED: always(0.0), "reward__mean": noisy(0.98, 0.005)},  # solved: a note
        IDENTICAL | {MIXED: always(0.0), "reward__mean": noisy(98.0, 0.5)},
        IDENTICAL
        | {ENTROPY: ramp(20, 0.00014, 5), MIXED: noisy(0.5, 0.02)},  # large groups of such rollouts may differ
    ],
    "SMP002": [
        ELSEWHERE | {RATIO: noisy(0.4, 0.02)},  # as it began: long rollouts
        ELSEWHERE | {RATIO: then(noisy(0.98, 0.01), ramp(20, 0.3)), "rollout__length": ramp(18, 300.0)},
        {GAP: from_row(30, noisy(0.02, 0.001), noisy(0.006, 0.001))},  # three times as much of little
        {GAP: then(noisy(0.008, 0.001), spike(30, 0.3))},
        {GAP: noisy(0.045, 0.004)},  # as it began
        {GAP: ramp(30, 0.05, 8), "entropy__mean": ramp(28, 6.0, 8)},  # in step with entropy
    ],
    "ENT003": [
        {"entropy__mean": lambda v: v + 3.0},  # 4.2, the logarithm of 64
        {"entropy__mean": spike(30, 9.0)},
        {"entropy__mean": lambda v: 6.0 * np.exp(-np.arange(len(v)) / 8)},  # it learned to write since
    ],
    "STP001": [
        BROKEN | {"entropy__mean": noisy(0.8, 0.02)},  # harder questions
        BROKEN | {"entropy__mean": ramp(10, 2.5, 20)},  # the entropy rose first and slowly
        BROKEN | {"reward__mean": noisy(0.7, 0.03)},
        BROKEN_AT_FIRST | {"entropy__mean": noisy(0.8, 0.02)},
        {**UNOBSERVED, "reward__mean": spike(0, 0.9), "entropy__mean": spike(0, 0.3)},
    ],
    "SMP001": [{GAP: noisy(0.03, 0.002)}, {"sampler__prob_abs_gap": noisy(0.01, 0.002)}],
    "TOL001": [
        FLAT | {CALLS: then(noisy(1.4, 0.1), ramp(25, 0.5, 8))},  # fewer
        FLAT | {CALLS: always(0.0)},
        {CALLS: then(noisy(1.4, 0.1), ramp(25, 0.0, 8)), "reward__mean": ramp(28, 1.5, 30)},  # it pays: a note
    ],
    "TOL002": [
        {CALLS_FAIL: lambda v: 0.7 * np.exp(-np.arange(len(v)) / 20)},  # it learns to write calls
        {CALLS_FAIL: then(noisy(0.05, 0.01), spike(30, 1.0))},
        RESULTS_VANISH | {"reward__mean": noisy(0.6, 0.01)},  # and it costs nothing
        RESULTS_VANISH
        | {
            "reward__mean": from_row(30, noisy(0.1, 0.01), noisy(0.6, 0.01)),
            TURNS: from_row(30, always(1.0), always(3.0)),
        },
    ],
    "LRN001": [
        {"lr": always(0.0)},  # tokens are clipped
        {"lr": always(0.0), CLIP: always(0.0), KL: lambda v: 0.001 * np.arange(len(v))},
        {"lr": lambda v: 1e-6 * np.minimum(1, np.arange(len(v)) / 10)},  # a warm-up
        {"lr": lambda v: 1e-6 * (1 - np.arange(len(v)) / (len(v) - 1))},  # a schedule
        {"lr": lambda v: np.where(np.arange(len(v)) < 8, 0.0, 1e-6)},  # it began late: a note
    ],
    "SMP004": [
        {ESS: noisy(0.95, 0.01), "reward__mean": ramp(28, 0.2)},
        {ESS: noisy(0.3, 0.02)},  # of whole, long rollouts: a note
        {ESS: then(noisy(0.95, 0.01), spike(30, 0.05)), "reward__mean": ramp(28, 0.2)},
    ],
    "SMP003": [
        ELSEWHERE | {GAP: from_row(40, noisy(0.08, 0.01), noisy(0.008, 0.001))},  # not from the start
        ELSEWHERE | {GAP: lambda v: 0.008 + 0.0003 * np.arange(len(v))},  # within rounding
    ],
    "OFP001": [
        {AGE: then(noisy(1.0, 0.05), ramp(25, 8.0))},  # and no harm is done
        {AGE: noisy(2.0, 0.1), "reward__mean": ramp(28, 0.2)},
        {CLIP: always(0.05), "reward__mean": ramp(28, 0.5), **UNOBSERVED},  # as it began
        {CLIP: ramp(25, 0.05), **UNOBSERVED},
        # It clipped as much when the reward was best, and the end is noisy.
        {CLIP: ramp(2, 0.05, 30), "reward__mean": then(ramp(2, 0.8, 48), ramp(50, 0.5, 5)), **UNOBSERVED},
    ],
    "TRN001": [
        {CUT: noisy(0.8, 0.01), "reward__mean": noisy(0.7, 0.03)},  # those that are cut off earn as well
        {CUT: noisy(0.8, 0.01), "reward__mean": then(noisy(0.1, 0.005), ramp(0, 0.24, 50))},  # and it learns
        {CUT: noisy(0.6, 0.02), "reward__mean": ramp(0, 0.9, 60)},  # a note
    ],
    "RWD003": [
        HACKED | {"reward__mean": then(noisy(0.7, 0.03), ramp(20, 0.2))},  # the reward shows it
        HACKED | {RIGHT: noisy(0.5, 0.02)},
        HACKED | {FORMAT: noisy(0.2, 0.02)},  # nothing took its place
        OUTWEIGHED
        | {FORMAT: always(0.1), "reward__mean": then(noisy(0.6, 0.02), ramp(20, 0.1))},  # the reward shows it
        HACKED | {RIGHT: HACKED[FORMAT], FORMAT: HACKED[RIGHT]},  # form gives way: a note
        {RIGHT: noisy(0.5, 0.12), FORMAT: noisy(0.3, 0.12)},
    ],
}
