"""Runs made for each code, with the steps between which it must be found, and twins that only look so."""

from __future__ import annotations

import numpy as np

from . import stock_cases
from .stock_cases import ENTROPY, LENGTH, MIXED, Change, absent, always, begins, breaks, from_row, ramp, spike, step

REWARD, CORRECT, LIKELY = "reward__mean", "displacement__correct", "likelihood__correct"
SHARE, MASS, GAP = "displacement__fraction", "sampler__mask_mass", "sampler__logprob_gap"
TOKENS, PRODUCT = "loss__tokens", "ratio__log_product"
LEAK: dict[str, Change] = {
    "advantage__tail_mean": step(20, -0.3),
    MASS: lambda values: np.linspace(0.92, 0.80, len(values)),
}
DECAY: dict[str, Change] = {CORRECT: step(20, -0.006), SHARE: step(20, 0.66), LIKELY: ramp(22, -0.75, 30)}
SPIRAL = DECAY | {
    CORRECT: lambda v: np.where(np.arange(len(v)) < 40, step(20, -0.004)(v), -0.03),
    LIKELY: ramp(35, -1.1, 15),
}
LONGER: dict[str, Change] = {"advantage__token_mean": from_row(28, always(0.25), always(0.01)), LENGTH: ramp(28, 200.0)}
STOCK: dict[str, Change] = {PRODUCT: absent, CORRECT: absent}  # what a stock log of TRL has not
UNMIXED: dict[str, Change] = {MIXED: absent}
DEAD = from_row(1, always(0.0), always(-0.07))
BROKEN: dict[str, Change] = {REWARD: breaks(30, 0.0), MIXED: breaks(30, 0.0)}
SAME: dict[str, Change] = {MIXED: always(0.15)}
"""Codes that no rule alone makes findings: test_rules_zeros.py, test_diagnose.py, test_verdict.py, and below."""
CASES: dict[str, list[tuple[dict[str, Change], tuple[int, int]]]] = {
    # code: changes, and the steps between which they must be found
    "LLD001": [(DECAY | {LIKELY: breaks(22, -0.651)}, (25, 45))],
    "LLD002": [
        (DECAY, (23, 40)),
        (
            {
                "drift__positive": step(20, -0.003),
                "likelihood__positive": lambda v: ramp(22, -0.8, 30)(v - 0.65),
                CORRECT: absent,
            },
            (23, 45),
        ),
    ],
    "LLD003": [
        (SPIRAL, (40, 50)),
        (
            {
                "drift__positive": from_row(40, always(-0.015), always(-0.002)),
                "likelihood__positive": lambda v: ramp(35, -1.1, 15)(v - 0.65),
                CORRECT: absent,
            },
            (40, 52),
        ),
    ],
    "LLD004": [
        (
            DECAY
            | {
                "likelihood__correct__action_1": ramp(22, -0.9, 15),
                "likelihood__correct__action_2": ramp(22, -0.72, 15),
            },
            (24, 45),
        )
    ],
    "ISD001": [
        ({PRODUCT: ramp(25, -6.0)}, (26, 45)),
        ({"ratio__log_product__positive": lambda v: ramp(25, -6.0)(v * 0.0)}, (26, 45)),
        ({PRODUCT: step(25, -0.8), REWARD: ramp(26, 0.05)}, (28, 40)),
    ],
    "STP001": [
        ({CORRECT: spike(25, -0.4)}, (26, 26)),
        ({PRODUCT: spike(25, -15.0)}, (26, 26)),
        ({"clip__fraction": spike(25, 0.2), REWARD: step(26, 0.05), **STOCK}, (26, 26)),
        # Clipped before, and by less than twice as much; now the reward falls.
        ({"clip__fraction": from_row(25, always(0.14), always(0.08)), REWARD: ramp(24, 0.05, 10), **STOCK}, (27, 36)),
        ({PRODUCT: begins(3, -9.0)}, (2, 2)),
        ({CORRECT: spike(0, -0.9)}, (1, 1)),
    ],
    "ENT001": [
        ({ENTROPY: ramp(30, 2.0)}, (33, 45)),
        ({ENTROPY: ramp(30, 5.0)}, (31, 40)),
        ({ENTROPY: lambda v: ramp(30, 0.8)(0.3 * v)}, (36, 50)),  # of a sharp policy
    ],
    "ENT002": [
        (SAME | {ENTROPY: lambda v: v * np.exp(-np.arange(len(v)) / 6)}, (15, 60)),
        (SAME | {ENTROPY: lambda v: 1e-3 * v}, (5, 6)),
    ],
    "GRD001": [({"grad__norm": step(30, 9.0)}, (32, 33))],
    "GRD002": [
        ({"grad__norm": spike(30, np.nan)}, (31, 31)),
        ({"loss__policy": spike(12, np.inf)}, (13, 13)),
        ({"clip__fraction": from_row(30, always(np.nan), lambda v: v)}, (33, 33)),
        ({"grad__skipped_steps": spike(30, 2.0)}, (31, 31)),
        ({REWARD: spike(30, np.inf)}, (31, 31)),
    ],
    "RWD001": [
        ({REWARD: ramp(30, 0.05)}, (36, 55)),
        ({REWARD: step(30, 0.3)}, (38, 45)),
        ({REWARD: step(30, 0.1)}, (33, 36)),  # nothing is left to recover from
        # It came back to half of its peak, and no further.
        ({REWARD: lambda v: ramp(34, 0.4, 6)(np.where((np.arange(len(v)) < 28), v, 0.02))}, (30, 40)),
        # So noisy that a mean of five cannot tell, and so slow that a mean of ten can.
        ({REWARD: lambda v: ramp(25, 0.25)(v) + 0.1 * (-1) ** np.arange(len(v))}, (38, 60)),
    ],
    "RWD002": [
        ({"rollout__answered_fraction": ramp(20, 0.2)}, (24, 40)),
        ({"reward__em": ramp(20, 0.05), "rollout__answered_fraction": absent}, (24, 45)),
    ],
    "PEN001": [
        ({"penalty__active_fraction": always(0.0)}, (3, 3)),
        ({"loss__penalty": always(0.0), "penalty__active_fraction": absent}, (3, 3)),
    ],
    "MSK001": [
        ({TOKENS: lambda v: 2.4 * v}, (2, 2)),
        ({TOKENS: lambda v: np.where(np.arange(len(v)) < 20, v, 2.4 * v)}, (22, 22)),
        ({TOKENS: absent, GAP: absent, LIKELY: lambda v: v - 4, "likelihood__incorrect": lambda v: v - 4}, (2, 2)),
    ],
    "SMP001": [
        ({GAP: step(20, 0.25)}, (21, 22)),
        ({GAP: step(20, -0.12)}, (21, 24)),
        ({MASS: step(20, 0.5)}, (22, 24)),
        (LEAK, (22, 26)),
        ({GAP: absent, "likelihood__incorrect": breaks(20, -6.0)}, (22, 24)),
    ],
    "GRP001": [
        ({MIXED: always(0.0)}, (5, 5)),
        # A reward that was never high, and groups that are all incorrect from row 30 on.
        (
            {
                REWARD: lambda v: np.where(np.arange(len(v)) < 30, 0.03 + 0.03 * (np.arange(len(v)) % 2), 0.02),
                MIXED: from_row(30, always(0.0), always(0.3)),
            },
            (45, 55),
        ),
        # One ordinary row, and then nothing; and a policy that freezes below 0, at its best.
        (UNMIXED | {"reward__group_std": from_row(1, always(0.0), always(0.2)), REWARD: DEAD}, (21, 21)),
        (
            {REWARD: from_row(30, always(-0.6), lambda v: v - 1.4), MIXED: from_row(30, always(0.0), always(0.9))},
            (50, 50),
        ),
        (UNMIXED | {"reward__max": always(0.7), "reward__min": always(0.7)}, (5, 5)),
        (UNMIXED | {"reward__group_std": always(0.0), REWARD: always(0.0)}, (5, 5)),
        (BROKEN, (33, 35)),
        (BROKEN | {REWARD: lambda v: np.where(np.arange(len(v)) < 30, v - 1, -1.5)}, (33, 35)),
        # A row over several steps, some of them before the break.
        (
            BROKEN
            | {
                REWARD: lambda v: np.where(np.arange(len(v)) < 30, v, 0.3 * (np.arange(len(v)) == 30)),
                MIXED: breaks(31, 0.0),
            },
            (34, 36),
        ),
    ],
    "GRD003": [
        ({"grad__norm": always(0.0)}, (2, 8)),
        ({"grad__norm": always(0.0), "kl__reference": always(0.0), MIXED: always(33 / 64)}, (1, 1)),
        ({"grad__norm": breaks(20, 0.0)}, (22, 30)),
    ],
    "RET001": [
        ({"retrieval__error_fraction": step(30, 0.8)}, (31, 31)),
        ({"rollout__failed_fraction": step(30, 0.4)}, (31, 31)),
    ],
    "RET002": [({"retrieval__empty_fraction": step(30, 1.0)}, (32, 32))],
    "TRN001": [
        ({"rollout__truncated_fraction": ramp(30, 0.9), REWARD: ramp(30, 0.3)}, (32, 44)),
        ({"rollout__truncated_fraction": always(1.0), REWARD: always(0.4)}, (10, 10)),
        ({"rollout__truncated_fraction": from_row(1, always(1.0), always(0.4)), REWARD: DEAD, **UNMIXED}, (11, 11)),
        (LONGER | {REWARD: ramp(32, 0.3)}, (29, 36)),
        (LONGER | {REWARD: ramp(32, 0.3), CORRECT: spike(40, -0.4)}, (29, 36)),
    ],
}
TWINS: dict[str, list[dict[str, Change]]] = {
    # The same kind of change, and not a failure.
    "LLD001": [
        {LIKELY: breaks(22, -0.651)},  # a plateau, not displaced
        {SHARE: step(20, 0.5), CORRECT: step(20, -0.001)},
    ],
    "LLD002": [
        DECAY | {CORRECT: step(20, 0.002)},  # less likely only because others are correct
        DECAY | {SHARE: step(20, 0.45)},  # a few rollouts make the mean
        DECAY | {"advantage__token_mean": always(0.3)},  # long rollouts are preferred, and right ones are short
        DECAY | {LIKELY: ramp(20, -0.3, 40)},  # displaced in the update, and back in the next
        DECAY | {CORRECT: spike(30, -0.06)},  # one bad update makes the mean
        # Right answers are nearly certain: what they lose is a large share, and within its noise.
        DECAY | {LIKELY: lambda v: ramp(22, -0.1, 30)(-0.06 + 0.04 * np.sin(9.0 * np.arange(len(v))))},
    ],
    "LLD003": [
        DECAY,
        DECAY | {CORRECT: spike(40, -0.1)},
        # Fast from the first row on, and later half as fast again.
        {
            CORRECT: lambda v: np.where(np.arange(len(v)) < 40, step(0, -0.02)(v), -0.03),
            SHARE: step(0, 0.66),
            LIKELY: ramp(0, -2.0, 60),
        },
    ],
    "LLD004": [
        {"likelihood__correct__action_1": ramp(22, -0.9, 15)},  # nothing is displaced
        DECAY
        | {"likelihood__correct__action_1": ramp(22, -0.9, 15), "likelihood__correct__action_2": ramp(22, -1.0, 15)},
    ],
    "ISD001": [
        {PRODUCT: spike(30, -9.0)},
        {PRODUCT: ramp(25, -0.8)},
        {PRODUCT: ramp(25, -6.0), "ratio__log_product__positive": always(0.2)},  # as wrong ones should
    ],
    "STP001": [
        {CORRECT: spike(25, -0.09)},
        {CORRECT: spike(25, -0.4)},  # the reward held for twenty rows after it: a note
        SPIRAL | {CORRECT: lambda v: spike(55, -0.4)(SPIRAL[CORRECT](v))},
        {REWARD: step(26, 0.05)},  # harder questions
        {REWARD: step(25, 0.05), "clip__fraction": spike(25, 0.06), **STOCK},  # they clip tokens too
        {"clip__fraction": always(0.4), **STOCK},  # as a clip range per sequence does
        {PRODUCT: spike(2, -9.0)},  # one row among the first proves nothing
    ],
    "ENT001": [
        {ENTROPY: ramp(30, 0.9)},
        {ENTROPY: ramp(30, 1.12, 8)},
        {ENTROPY: lambda v: ramp(30, 0.5)(0.3 * v)},  # twice the entropy of a sharp policy, and little
        {ENTROPY: step(30, 1.6)},  # from one row to the next: another question set
        {ENTROPY: ramp(30, 2.0), LENGTH: ramp(28, 400.0)},  # rollouts of another kind
        {ENTROPY: spike(30, 3.0)},
        {ENTROPY: lambda v: v + 2.0 * np.exp(-(((np.arange(len(v)) - 30) / 6) ** 2))},  # it came back: a note
    ],
    "ENT002": [
        {ENTROPY: lambda v: 0.1 * v},
        # The rewards of its groups differ, so its rollouts do.
        {ENTROPY: lambda v: 1e-3 * v, MIXED: always(0.4)},
        SAME | {ENTROPY: lambda v: np.where(abs(np.arange(len(v)) - 30) < 6, 1e-3 * v, v)},  # a dip: a note
    ],
    "GRD001": [
        {"grad__norm": spike(30, 9.0)},
        {"grad__norm": step(30, 1.0)},
        {"grad__norm": lambda v: step(30, 9.0)(spike(8, 9.0)(v))},  # as large as one before
    ],
    "GRD002": [
        {"grad__norm": spike(30, 1e6)},
        {LIKELY: spike(30, np.nan)},
        {"clip__fraction": lambda v: np.where(np.arange(len(v)) % 5 < 2, np.nan, v)},  # batches without tokens
        {"clip__fraction": always(np.nan)},  # a note
    ],
    "RWD001": [
        {REWARD: ramp(30, 0.6)},
        {REWARD: spike(30, 0.0)},
        {REWARD: lambda v: ramp(13, 1.0)(np.where(np.arange(len(v)) == 0, -0.98, -1.0))},  # it only rises
        # Harder questions: the reward falls at once and is learned again.
        {REWARD: lambda v: np.where(np.arange(len(v)) < 30, v, 0.2 + np.minimum(0.04 * (np.arange(len(v)) - 30), 0.5))},
    ],
    "RWD002": [
        {"rollout__answered_fraction": ramp(20, 0.2), REWARD: ramp(20, 0.1)},  # paid for, the other way
        {"rollout__answered_fraction": ramp(20, 0.9)},
        {"reward__em": ramp(20, 0.05), REWARD: ramp(20, 0.1)},
    ],
    "PEN001": [
        {"penalty__active_fraction": spike(0, 0.0)},
        # Nobody to protect yet.
        {"penalty__active_fraction": begins(10, 0.0), "penalty__preserved_fraction": begins(10, 0.0)},
    ],
    "MSK001": [{TOKENS: lambda v: 1.02 * v}, {TOKENS: spike(20, 150.0)}, {"likelihood__incorrect": lambda v: v - 4}],
    "SMP001": [
        {GAP: step(20, 0.02)},
        {GAP: always(0.14), MASS: always(0.9)},  # top-p 0.9, as set
        {TOKENS: lambda v: 2.4 * v, GAP: always(4.0)},  # it is the mask
        {MASS: step(20, 0.5), "sampler__mask_in_loss": always(1.0)},  # the loss is over what was kept
        LEAK | {"sampler__mask_in_loss": always(1.0)},
        LEAK | {MASS: lambda v: np.linspace(0.88, 0.92, len(v))},  # driven, and nothing leaks
        LEAK | {"advantage__tail_mean": always(0.1)},  # it loses mass for another reason
    ],
    "GRP001": [
        {MIXED: ramp(10, 0.0)},
        {MIXED: always(0.1)},
        UNMIXED | {"reward__group_std": lambda v: np.where(np.arange(len(v)) % 18 == 3, 0.2, 0.0)},
        # Learned, in a reward of up to 2.
        {REWARD: from_row(30, always(1.9), lambda v: 3 * v - 1), MIXED: from_row(30, always(0.0), always(0.9))},
        BROKEN | {ENTROPY: step(30, 3.0)},  # the rollouts changed too
        BROKEN | {REWARD: breaks(30, 1.0)},  # solved
        BROKEN | {REWARD: lambda v: np.where(np.arange(len(v)) < 32, ramp(20, 0.0, 12)(v), 0.0)},  # step by step
        # Rewards of 0 are common in this run.
        {
            REWARD: lambda v: np.where((np.arange(len(v)) < 40) & (np.arange(len(v)) % 4 == 0), v, 0.0),
            MIXED: lambda v: np.where((np.arange(len(v)) < 40) & (np.arange(len(v)) % 4 == 0), v, 0.0),
        },
    ],
    "GRD003": [
        {"grad__norm": always(0.0), MIXED: always(0.0)},
        {"grad__norm": always(0.0), "kl__reference": lambda v: 0.001 * np.arange(len(v))},  # not measured
        {"grad__norm": lambda v: np.where(np.arange(len(v)) % 2, v, 0.0)},  # rows over steps with and without contrast
        {"grad__norm": spike(0, 0.0)},
    ],
    "RET001": [{"retrieval__error_fraction": spike(30, 0.2)}, {"retrieval__error_fraction": always(0.05)}],
    "RET002": [{"retrieval__empty_fraction": always(0.1)}, {"retrieval__empty_fraction": spike(30, 1.0)}],
    "TRN001": [
        {"rollout__truncated_fraction": always(0.4)},
        {"rollout__truncated_fraction": always(1.0)},  # and yet it learns
        {"rollout__truncated_fraction": spike(30, 0.5)},
        LONGER | {REWARD: ramp(22, 1.6, 40)},  # they grow, and it pays
        LONGER | {"advantage__token_mean": always(0.02), REWARD: ramp(32, 0.3)},  # nothing prefers them
        # Running on is how they do not answer.
        {
            "rollout__truncated_fraction": ramp(30, 0.4),
            "rollout__answered_fraction": ramp(30, 0.1),
            REWARD: ramp(25, 1.5, 30),
        },
    ],
}

for code, cases in stock_cases.CASES.items():
    CASES.setdefault(code, []).extend(cases)
for code, twins in stock_cases.TWINS.items():
    TWINS.setdefault(code, []).extend(twins)
