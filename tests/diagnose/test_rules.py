"""Every code on a run made for it, and on a perturbed twin that looks the same and does not fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.diagnose.codes import CODES
from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules import RULES

from . import stock_cases
from .changes import Change, always, ramp, spike, step

MakeLog = Callable[..., Log]
SEEDS = range(5)


def codes(log: Log) -> dict[str, int]:
    """Code -> step."""
    return {finding.code: finding.step for finding in diagnose(log).findings}


LEAK: dict[str, Change] = {
    "advantage__tail_mean": step(20, -0.3),
    "sampler__mask_mass": lambda values: np.linspace(0.92, 0.80, len(values)),
}
DECAY: dict[str, Change] = {
    "displacement__correct": step(20, -0.006),
    "displacement__fraction": step(20, 0.66),
    "likelihood__correct": ramp(22, -0.75, 30),
}
SPIRAL = DECAY | {
    "displacement__correct": lambda v: np.where(np.arange(len(v)) < 40, step(20, -0.004)(v), -0.03),
    "likelihood__correct": ramp(35, -1.1, 15),
}
LONGER: dict[str, Change] = {
    "advantage__token_mean": lambda v: np.where(np.arange(len(v)) < 28, 0.01, 0.25),
    "rollout__length": ramp(28, 200.0),
}
STOCK: dict[str, Change] = {  # what a stock log of TRL has not
    "ratio__log_product": lambda v: [None] * len(v),
    "displacement__correct": lambda v: [None] * len(v),
}
UNMIXED: dict[str, Change] = {"rollout__mixed_group_fraction": lambda v: [None] * len(v)}
BROKEN: dict[str, Change] = {
    "reward__mean": lambda v: np.where(np.arange(len(v)) < 30, v, 0.0),
    "rollout__mixed_group_fraction": lambda v: np.where(np.arange(len(v)) < 30, v, 0.0),
}
SAME: dict[str, Change] = {"rollout__mixed_group_fraction": always(0.15)}
NOTES = {"ZER001", "OBS001", "RWD004"}
"""Codes that are never findings: test_rules_zeros.py, test_observe.py, test_rules_reported.py."""
CASES: dict[str, list[tuple[dict[str, Change], tuple[int, int]]]] = {
    # code: changes, and the steps between which they must be found
    "LLD001": [
        (DECAY | {"likelihood__correct": lambda v: np.where(np.arange(len(v)) < 22, v, -0.651)}, (25, 45)),
    ],
    "LLD002": [
        (DECAY, (23, 40)),
        (
            {
                "drift__positive": step(20, -0.003),
                "likelihood__positive": lambda v: ramp(22, -0.8, 30)(v - 0.65),
                "displacement__correct": lambda v: [None] * len(v),
            },
            (23, 45),
        ),
    ],
    "LLD003": [
        (SPIRAL, (40, 50)),
        (
            {
                "drift__positive": lambda v: np.where(np.arange(len(v)) < 40, -0.002, -0.015),
                "likelihood__positive": lambda v: ramp(35, -1.1, 15)(v - 0.65),
                "displacement__correct": lambda v: [None] * len(v),
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
        ({"ratio__log_product": ramp(25, -6.0)}, (26, 45)),
        ({"ratio__log_product__positive": lambda v: ramp(25, -6.0)(v * 0.0)}, (26, 45)),
        ({"ratio__log_product": step(25, -0.8), "reward__mean": ramp(26, 0.05)}, (28, 40)),
    ],
    "STP001": [
        ({"displacement__correct": spike(25, -0.4)}, (26, 26)),
        ({"ratio__log_product": spike(25, -15.0)}, (26, 26)),
        (
            {
                "clip__fraction": spike(25, 0.2),
                "reward__mean": step(26, 0.05),
                **STOCK,
            },
            (26, 26),
        ),
        # Clipped before, and by less than twice as much; now the reward falls.
        (
            {
                "clip__fraction": lambda v: np.where(np.arange(len(v)) < 25, 0.08, 0.14),
                "reward__mean": ramp(24, 0.05, 10),
                **STOCK,
            },
            (27, 36),
        ),
        ({"ratio__log_product": lambda v: np.where(np.arange(len(v)) < 3, -9.0, v)}, (2, 2)),
        ({"displacement__correct": spike(0, -0.9)}, (1, 1)),
    ],
    "ENT001": [
        ({"entropy__mean": ramp(30, 2.0)}, (33, 45)),
        ({"entropy__mean": ramp(30, 5.0)}, (31, 40)),
        ({"entropy__mean": lambda v: ramp(30, 0.8)(0.3 * v)}, (36, 50)),  # of a sharp policy
    ],
    "ENT002": [
        (SAME | {"entropy__mean": lambda v: v * np.exp(-np.arange(len(v)) / 6)}, (15, 60)),
        (SAME | {"entropy__mean": lambda v: 1e-3 * v}, (5, 6)),
    ],
    "GRD001": [({"grad__norm": step(30, 9.0)}, (32, 33))],
    "GRD002": [
        ({"grad__norm": spike(30, np.nan)}, (31, 31)),
        ({"loss__policy": spike(12, np.inf)}, (13, 13)),
        ({"grad__skipped_steps": spike(30, 2.0)}, (31, 31)),
        ({"reward__mean": spike(30, np.inf)}, (31, 31)),
    ],
    "RWD001": [
        ({"reward__mean": ramp(30, 0.05)}, (36, 55)),
        ({"reward__mean": step(30, 0.3)}, (38, 45)),
        ({"reward__mean": step(30, 0.1)}, (33, 36)),  # nothing is left to recover from
        # It came back to half of its peak, and no further.
        ({"reward__mean": lambda v: ramp(34, 0.4, 6)(np.where((np.arange(len(v)) < 28), v, 0.02))}, (30, 40)),
        # So noisy that a mean of five cannot tell, and so slow that a mean of ten can.
        ({"reward__mean": lambda v: ramp(25, 0.25)(v) + 0.1 * (-1) ** np.arange(len(v))}, (38, 60)),
    ],
    "RWD002": [
        ({"rollout__answered_fraction": ramp(20, 0.2)}, (24, 40)),
        ({"reward__em": ramp(20, 0.05), "rollout__answered_fraction": lambda v: [None] * len(v)}, (24, 45)),
    ],
    "PEN001": [
        ({"penalty__active_fraction": always(0.0)}, (3, 3)),
        ({"loss__penalty": always(0.0), "penalty__active_fraction": lambda v: [None] * len(v)}, (3, 3)),
    ],
    "MSK001": [
        ({"loss__tokens": lambda v: 2.4 * v}, (2, 2)),
        ({"loss__tokens": lambda v: np.where(np.arange(len(v)) < 20, v, 2.4 * v)}, (22, 22)),
        (
            {
                "loss__tokens": lambda v: [None] * len(v),
                "sampler__logprob_gap": lambda v: [None] * len(v),
                "likelihood__correct": lambda v: v - 4,
                "likelihood__incorrect": lambda v: v - 4,
            },
            (2, 2),
        ),
    ],
    "SMP001": [
        ({"sampler__logprob_gap": step(20, 0.25)}, (21, 22)),
        ({"sampler__logprob_gap": step(20, -0.12)}, (21, 24)),
        ({"sampler__mask_mass": step(20, 0.5)}, (22, 24)),
        (LEAK, (22, 26)),
        (
            {
                "sampler__logprob_gap": lambda v: [None] * len(v),
                "likelihood__incorrect": lambda v: np.where(np.arange(len(v)) < 20, v, -6.0),
            },
            (22, 24),
        ),
    ],
    "GRP001": [
        ({"rollout__mixed_group_fraction": always(0.0)}, (5, 5)),
        # A reward that was never high, and groups that are all incorrect from row 30 on.
        (
            {
                "reward__mean": lambda v: np.where(np.arange(len(v)) < 30, 0.03 + 0.03 * (np.arange(len(v)) % 2), 0.02),
                "rollout__mixed_group_fraction": lambda v: np.where(np.arange(len(v)) < 30, 0.3, 0.0),
            },
            (45, 55),
        ),
        (UNMIXED | {"reward__max": always(0.7), "reward__min": always(0.7)}, (5, 5)),
        (UNMIXED | {"reward__group_std": always(0.0), "reward__mean": always(0.0)}, (5, 5)),
        (BROKEN, (33, 35)),
        (BROKEN | {"reward__mean": lambda v: np.where(np.arange(len(v)) < 30, v - 1, -1.5)}, (33, 35)),
        # A row over several steps, some of them before the break.
        (
            BROKEN
            | {
                "reward__mean": lambda v: np.where(np.arange(len(v)) < 30, v, 0.3 * (np.arange(len(v)) == 30)),
                "rollout__mixed_group_fraction": lambda v: np.where(np.arange(len(v)) < 31, v, 0.0),
            },
            (34, 36),
        ),
    ],
    "GRD003": [
        ({"grad__norm": always(0.0)}, (2, 8)),
        (
            {"grad__norm": always(0.0), "kl__reference": always(0.0), "rollout__mixed_group_fraction": always(33 / 64)},
            (1, 1),
        ),
        ({"grad__norm": lambda v: np.where(np.arange(len(v)) < 20, v, 0.0)}, (22, 30)),
    ],
    "RET001": [
        ({"retrieval__error_fraction": step(30, 0.8)}, (31, 31)),
        ({"rollout__failed_fraction": step(30, 0.4)}, (31, 31)),
    ],
    "RET002": [({"retrieval__empty_fraction": step(30, 1.0)}, (32, 32))],
    "TRN001": [
        ({"rollout__truncated_fraction": ramp(30, 0.9), "reward__mean": ramp(30, 0.3)}, (32, 44)),
        ({"rollout__truncated_fraction": always(1.0), "reward__mean": always(0.4)}, (10, 10)),
        (LONGER | {"reward__mean": ramp(32, 0.3)}, (29, 36)),
        (LONGER | {"reward__mean": ramp(32, 0.3), "displacement__correct": spike(40, -0.4)}, (29, 36)),
    ],
}
TWINS: dict[str, list[dict[str, Change]]] = {
    # The same kind of change, and not a failure.
    "LLD001": [
        {"likelihood__correct": lambda v: np.where(np.arange(len(v)) < 22, v, -0.651)},  # a plateau, not displaced
        {"displacement__fraction": step(20, 0.5), "displacement__correct": step(20, -0.001)},
    ],
    "LLD002": [
        DECAY | {"displacement__correct": step(20, 0.002)},  # less likely only because others are correct
        DECAY | {"displacement__fraction": step(20, 0.45)},  # a few rollouts make the mean
        DECAY | {"advantage__token_mean": always(0.3)},  # long rollouts are preferred, and right ones are short
        DECAY | {"likelihood__correct": ramp(20, -0.3, 40)},  # displaced in the update, and back in the next
        DECAY | {"displacement__correct": spike(30, -0.06)},  # one bad update makes the mean
        # Right answers are nearly certain: what they lose is a large share, and within its noise.
        DECAY | {"likelihood__correct": lambda v: ramp(22, -0.1, 30)(-0.06 + 0.04 * np.sin(9.0 * np.arange(len(v))))},
    ],
    "LLD003": [DECAY, DECAY | {"displacement__correct": spike(40, -0.1)}],
    "LLD004": [
        {"likelihood__correct__action_1": ramp(22, -0.9, 15)},  # nothing is displaced
        DECAY
        | {"likelihood__correct__action_1": ramp(22, -0.9, 15), "likelihood__correct__action_2": ramp(22, -1.0, 15)},
    ],
    "ISD001": [
        {"ratio__log_product": spike(30, -9.0)},
        {"ratio__log_product": ramp(25, -0.8)},
        {"ratio__log_product": ramp(25, -6.0), "ratio__log_product__positive": always(0.2)},  # as wrong ones should
    ],
    "STP001": [
        {"displacement__correct": spike(25, -0.09)},
        {"displacement__correct": spike(25, -0.4)},  # the reward held for twenty rows after it: a note
        SPIRAL | {"displacement__correct": lambda v: spike(55, -0.4)(SPIRAL["displacement__correct"](v))},
        {"reward__mean": step(26, 0.05)},  # harder questions
        {"reward__mean": step(25, 0.05), "clip__fraction": spike(25, 0.06), **STOCK},  # they clip tokens too
        {"clip__fraction": always(0.4), **STOCK},  # as a clip range per sequence does
        {"ratio__log_product": spike(2, -9.0)},  # one row among the first proves nothing
    ],
    "ENT001": [
        {"entropy__mean": ramp(30, 0.9)},
        {"entropy__mean": ramp(30, 1.12, 8)},
        {"entropy__mean": lambda v: ramp(30, 0.5)(0.3 * v)},  # twice the entropy of a sharp policy, and little
        {"entropy__mean": step(30, 1.6)},  # from one row to the next: another question set
        {"entropy__mean": ramp(30, 2.0), "rollout__length": ramp(28, 400.0)},  # rollouts of another kind
        {"entropy__mean": spike(30, 3.0)},
        {"entropy__mean": lambda v: v + 2.0 * np.exp(-(((np.arange(len(v)) - 30) / 6) ** 2))},  # it came back: a note
    ],
    "ENT002": [
        {"entropy__mean": lambda v: 0.1 * v},
        # The rewards of its groups differ, so its rollouts do.
        {"entropy__mean": lambda v: 1e-3 * v, "rollout__mixed_group_fraction": always(0.4)},
        SAME | {"entropy__mean": lambda v: np.where(abs(np.arange(len(v)) - 30) < 6, 1e-3 * v, v)},  # a dip: a note
    ],
    "GRD001": [{"grad__norm": spike(30, 9.0)}, {"grad__norm": step(30, 1.0)}],
    "GRD002": [{"grad__norm": spike(30, 1e6)}, {"likelihood__correct": spike(30, np.nan)}],
    "RWD001": [
        {"reward__mean": ramp(30, 0.6)},
        {"reward__mean": spike(30, 0.0)},
        {"reward__mean": lambda v: ramp(13, 1.0)(np.where(np.arange(len(v)) == 0, -0.98, -1.0))},  # it only rises
        # Harder questions: the reward falls at once and is learned again.
        {
            "reward__mean": lambda v: np.where(
                np.arange(len(v)) < 30, v, 0.2 + np.minimum(0.04 * (np.arange(len(v)) - 30), 0.5)
            )
        },
    ],
    "RWD002": [
        {"rollout__answered_fraction": ramp(20, 0.2), "reward__mean": ramp(20, 0.1)},  # paid for, the other way
        {"rollout__answered_fraction": ramp(20, 0.9)},
        {"reward__em": ramp(20, 0.05), "reward__mean": ramp(20, 0.1)},
    ],
    "PEN001": [
        {"penalty__active_fraction": spike(0, 0.0)},
        # Nobody to protect yet.
        {
            "penalty__active_fraction": lambda v: np.where(np.arange(len(v)) < 10, 0.0, v),
            "penalty__preserved_fraction": lambda v: np.where(np.arange(len(v)) < 10, 0.0, v),
        },
    ],
    "MSK001": [
        {"loss__tokens": lambda v: 1.02 * v},
        {"loss__tokens": spike(20, 150.0)},
        {"likelihood__incorrect": lambda v: v - 4},
    ],
    "SMP001": [
        {"sampler__logprob_gap": step(20, 0.02)},
        {"sampler__logprob_gap": always(0.14), "sampler__mask_mass": always(0.9)},  # top-p 0.9, as set
        {"loss__tokens": lambda v: 2.4 * v, "sampler__logprob_gap": always(4.0)},  # it is the mask
        {"sampler__mask_mass": step(20, 0.5), "sampler__mask_in_loss": always(1.0)},  # the loss is over what was kept
        LEAK | {"sampler__mask_in_loss": always(1.0)},
        LEAK | {"sampler__mask_mass": lambda v: np.linspace(0.88, 0.92, len(v))},  # driven, and nothing leaks
        LEAK | {"advantage__tail_mean": always(0.1)},  # it loses mass for another reason
    ],
    "GRP001": [
        {"rollout__mixed_group_fraction": ramp(10, 0.0)},
        {"rollout__mixed_group_fraction": always(0.1)},
        UNMIXED | {"reward__group_std": lambda v: np.where(np.arange(len(v)) == 3, 0.2, 0.0)},
        BROKEN | {"entropy__mean": step(30, 3.0)},  # the rollouts changed too
        BROKEN | {"reward__mean": lambda v: np.where(np.arange(len(v)) < 30, v, 1.0)},  # solved
        BROKEN
        | {"reward__mean": lambda v: np.where(np.arange(len(v)) < 32, ramp(20, 0.0, 12)(v), 0.0)},  # step by step
        # Rewards of 0 are common in this run.
        {
            "reward__mean": lambda v: np.where((np.arange(len(v)) < 40) & (np.arange(len(v)) % 4 == 0), v, 0.0),
            "rollout__mixed_group_fraction": lambda v: np.where(
                (np.arange(len(v)) < 40) & (np.arange(len(v)) % 4 == 0), v, 0.0
            ),
        },
    ],
    "GRD003": [
        {"grad__norm": always(0.0), "rollout__mixed_group_fraction": always(0.0)},
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
        LONGER | {"reward__mean": ramp(22, 1.6, 40)},  # they grow, and it pays
        LONGER | {"advantage__token_mean": always(0.02), "reward__mean": ramp(32, 0.3)},  # nothing prefers them
        # Running on is how they do not answer.
        {
            "rollout__truncated_fraction": ramp(30, 0.4),
            "rollout__answered_fraction": ramp(30, 0.1),
            "reward__mean": ramp(25, 1.5, 30),
        },
    ],
}

for code, cases in stock_cases.CASES.items():
    CASES.setdefault(code, []).extend(cases)
for code, twins in stock_cases.TWINS.items():
    TWINS.setdefault(code, []).extend(twins)

# A decay begins as a stagnation, and everything worse as a decay.
FORERUNNERS = {(worse, "LLD001") for worse in ("LLD002", "LLD003", "LLD004")} | {
    (worse, "LLD002") for worse in ("LLD003", "LLD004")
}


def test_there_is_a_case_and_a_twin_for_every_code() -> None:
    assert set(CASES) == set(TWINS) == set(CODES) - NOTES == set(RULES) - NOTES


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_well_has_no_findings(make_log: MakeLog, seed: int) -> None:
    assert codes(make_log(seed=seed)) == {}
    assert codes(make_log(seed=seed, rows=400)) == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("code", "number"), [(code, i) for code, cases in CASES.items() for i in range(len(cases))])
def test_it_is_found(make_log: MakeLog, code: str, number: int, seed: int) -> None:
    """By then. What did no harm is a note later on."""
    changes, (earliest, latest) = CASES[code][number]
    found = codes(make_log(seed=seed, **changes).until(latest))
    assert code in found, found
    assert earliest <= found[code] <= latest, found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("code", "number"), [(code, i) for code, twins in TWINS.items() for i in range(len(twins))])
def test_its_twin_is_left_alone(make_log: MakeLog, code: str, number: int, seed: int) -> None:
    assert code not in codes(make_log(seed=seed, **TWINS[code][number]))


def test_a_reward_function_that_breaks_is_no_collapse(make_log: MakeLog) -> None:
    """The weights are sound: nobody is to go back to an earlier checkpoint."""
    (finding,) = diagnose(make_log(**BROKEN)).findings
    assert finding.code == "GRP001" and "since step 31" in finding.summary and "weights are sound" in finding.remedy
    assert "RWD001" in codes(make_log(**BROKEN | {"entropy__mean": step(30, 3.0)}))


@pytest.mark.parametrize("change", [{"rollout__truncated_fraction": 1.0}, {"rollout__answered_fraction": 0.0}])
def test_an_agent_that_stops_answering_does_not_look_like_a_broken_reward(
    make_log: MakeLog, change: dict[str, float]
) -> None:
    """A pretrained model under plain GRPO searched to its limit from one step on, at the entropy it had."""
    (name, level) = *change, *change.values()
    found = codes(make_log(**BROKEN | {name: step(30, level)}))
    assert "RWD001" in found and "GRP001" not in found


@pytest.mark.parametrize(("code", "number"), [(code, i) for code, cases in CASES.items() for i in range(len(cases))])
def test_the_cause_comes_first(make_log: MakeLog, code: str, number: int) -> None:
    """A failure made here has one cause; whatever else its series show comes with it or later."""
    changes, (_, latest) = CASES[code][number]
    first, *_ = diagnose(make_log(**changes).until(latest)).findings
    assert first.code == code or (code, first.code) in FORERUNNERS
