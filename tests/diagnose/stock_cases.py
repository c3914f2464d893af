"""Cases and twins of the codes that the logs of stock trainers show."""

from __future__ import annotations

import numpy as np

from .changes import Change, always, ramp, spike, step


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
    "reward__em": lambda v: [None] * len(v),
    "rollout__answered_fraction": lambda v: [None] * len(v),
}
UNOBSERVED: dict[str, Change] = {
    "displacement__correct": lambda values: [None] * len(values),
    "ratio__log_product": lambda values: [None] * len(values),
}
BROKEN = UNOBSERVED | {"reward__mean": step(25, 0.05), "entropy__mean": step(25, 2.5)}
BROKEN_AT_FIRST = UNOBSERVED | {
    "reward__mean": from_row(1, noisy(0.02, 0.002), noisy(0.6, 0.0)),
    "entropy__mean": from_row(1, noisy(2.0, 0.05), noisy(0.8, 0.0)),
}

CASES: dict[str, list[tuple[dict[str, Change], tuple[int, int]]]] = {
    "KLD001": [
        ({KL: then(noisy(0.05, 0.01), ramp(20, 3.0)), "reward__mean": noisy(0.6, 0.02)}, (27, 36)),
        # It runs away while the reward falls, and stays below 1.
        ({KL: then(noisy(0.02, 0.004), ramp(20, 0.9)), "reward__mean": ramp(24, 0.0)}, (28, 40)),
    ],
    "SMP002": [
        ({GAP: from_row(30, noisy(0.08, 0.01), noisy(0.008, 0.001))}, (32, 32)),
        ({"sampler__prob_abs_gap": from_row(30, noisy(0.03, 0.002), noisy(0.003, 0.001))}, (32, 32)),
        ({"sampler__mismatch_kl": from_row(30, noisy(0.05, 0.002), noisy(0.001, 0.0002))}, (32, 32)),
    ],
    "ENT003": [
        ({"entropy__mean": lambda v: v + 4.8}, (1, 1)),
        ({"entropy__mean": step(30, 7.0)}, (32, 32)),  # from one row to the next, which ENT001 leaves alone
    ],
    "RWD003": [(HACKED, (24, 40))],
    "STP001": [(BROKEN, (26, 29)), (BROKEN_AT_FIRST, (3, 3))],
    "SMP001": [
        ({GAP: noisy(0.3, 0.02)}, (1, 1)),
        ({"sampler__prob_abs_gap": noisy(0.1, 0.01)}, (1, 1)),
        ({"sampler__mismatch_kl": noisy(0.3, 0.02)}, (1, 1)),
    ],
    "TRN001": [
        # All are cut off, so all have the same reward.
        ({CUT: always(1.0), "reward__mean": always(0.0), MIXED: always(0.0), "reward__em": always(0.0)}, (3, 3)),
        ({CUT: noisy(0.8, 0.01), "reward__mean": noisy(0.2, 0.02)}, (20, 20)),
    ],
}
TWINS: dict[str, list[dict[str, Change]]] = {
    "KLD001": [
        {KL: then(noisy(0.01, 0.002), ramp(0, 0.3, 60))},  # a run that learns
        {KL: then(noisy(0.05, 0.01), spike(30, 400.0))},  # one absurd token
        {KL: then(noisy(0.05, 0.01), ramp(2, 3.0, 40)), "reward__mean": ramp(0, 1.0, 30)},  # it learns from nothing
        {KL: noisy(0.1, 0.02), "reward__mean": ramp(24, 0.0)},  # the reward falls, and not by leaving the reference
    ],
    "SMP002": [
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
    "TRN001": [
        {CUT: noisy(0.8, 0.01), "reward__mean": noisy(0.7, 0.03)},  # those that are cut off earn as well
        {CUT: noisy(0.8, 0.01), "reward__mean": then(noisy(0.1, 0.005), ramp(0, 0.24, 50))},  # and it learns
        {CUT: noisy(0.6, 0.02), "reward__mean": noisy(0.35, 0.03)},  # a note
    ],
    "RWD003": [
        HACKED | {"reward__mean": then(noisy(0.7, 0.03), ramp(20, 0.2))},  # the reward shows it
        HACKED | {RIGHT: noisy(0.5, 0.02)},
        HACKED | {FORMAT: noisy(0.2, 0.02)},  # nothing took its place
        HACKED | {RIGHT: HACKED[FORMAT], FORMAT: HACKED[RIGHT]},  # form gives way: a note
        {RIGHT: noisy(0.5, 0.12), FORMAT: noisy(0.3, 0.12)},
    ],
}
