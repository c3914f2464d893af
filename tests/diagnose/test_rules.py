"""Every code on a run made for it, and on a perturbed twin that looks the same and does not fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast.diagnose.rules import RULES
from holdfast.diagnose.rules.isd001 import TO_SAMPLER

from .cases import BROKEN, CASES, PRODUCT, REWARD, TWINS
from .conftest import log_of
from .stock_cases import ENTROPY, LENGTH, MIXED, Change, always, noisy, ramp, spike, step, then

MakeLog = Callable[..., Log]
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))]


def codes(log: Log) -> dict[str, int]:
    """Code -> step, without what is a finding only because the reward is flat."""
    return {finding.code: finding.certain for finding in diagnose(log).findings if not finding.by_verdict}


# A decay begins as a stagnation, and everything worse as a decay.
FORERUNNERS = {(worse, "LLD001") for worse in ("LLD002", "LLD003", "LLD004")} | {
    (worse, "LLD002") for worse in ("LLD003", "LLD004")
}


def test_every_code_has_a_run_made_for_it_and_a_twin() -> None:
    """Here, or in a file of its own: docs/contributing/add-a-rule.md. Notes have tests below."""
    elsewhere = {path.stem[-6:].upper() for path in Path(__file__).parent.glob("test_*[0-9][0-9][0-9].py")}
    alarms = {code for code, rule in RULES.items() if any(check.level == "finding" for check in rule.checks)}
    assert set(CASES) == set(TWINS) == alarms - elsewhere


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_is_well_has_no_findings(make_log: MakeLog, seed: int) -> None:
    assert codes(make_log(seed=seed)) == {}
    assert codes(make_log(seed=seed, rows=400)) == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("code", "number"), [(code, i) for code, cases in CASES.items() for i in range(len(cases))])
def test_it_is_found(make_log: MakeLog, code: str, number: int, seed: int) -> None:
    """By then; what did no harm is a note later on. It has one cause, which comes first."""
    changes, (earliest, latest) = CASES[code][number]
    found = codes(make_log(seed=seed, **changes).until(latest))
    assert code in found, found
    assert earliest <= found[code] <= latest, found
    first = next(iter(found))
    assert seed > 0 or first == code or (code, first) in FORERUNNERS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("code", "number"), [(code, i) for code, twins in TWINS.items() for i in range(len(twins))])
def test_its_twin_is_left_alone(make_log: MakeLog, code: str, number: int, seed: int) -> None:
    assert code not in codes(make_log(seed=seed, **TWINS[code][number]))


@pytest.mark.parametrize("name", TO_SAMPLER)
def test_ratios_to_the_sampler_sink_with_age(make_log: MakeLog, name: str) -> None:
    log = make_log(**{PRODUCT: ramp(25, -6.0)})
    other = {"loss.old_policy": "recomputed"}.get(name, False)
    for value, found in ((TO_SAMPLER[name], False), (other, True)):
        assert ("ISD001" in codes(replace(log, settings={name: value}))) == found


def test_a_reward_function_that_breaks_is_no_collapse(make_log: MakeLog) -> None:
    """The weights are intact: nobody is to go back to an earlier checkpoint."""
    (finding,) = diagnose(make_log(**BROKEN)).findings
    assert finding.code == "GRP001" and "since step 31" in finding.summary and "weights are intact" in finding.remedy
    assert "RWD001" in codes(make_log(**BROKEN | {ENTROPY: step(30, 3.0)}))


@pytest.mark.parametrize("change", [{"rollout__truncated_fraction": 1.0}, {"rollout__answered_fraction": 0.0}])
def test_an_agent_that_stops_answering_does_not_look_like_a_broken_reward(
    make_log: MakeLog, change: dict[str, float]
) -> None:
    """A pretrained model under plain GRPO searched to its limit from one step on, at the entropy it had."""
    (name, level) = *change, *change.values()
    found = codes(make_log(**BROKEN | {name: step(30, level)}))
    assert "RWD001" in found and "GRP001" not in found


@pytest.mark.parametrize(("rewards", "is_found"), [([1.0, 0.5, 0.0, 0.0], False), ([0.8125, 0.6875, 0.0, 0.0], True)])
def test_two_rollouts_a_row_that_were_lucky_at_first_broke_nothing(rewards: list[float], is_found: bool) -> None:
    """Three of four correct and then none of four is chance; 24 of 32 and then none of 32 is none."""
    log = log_of({"reward/mean": rewards, "entropy/mean": [0.8, 0.8, 2.0, 2.1]}, host="trl")
    assert ("STP001" in codes(log)) == is_found


def test_what_passed_and_left_the_reward_down_stays_a_finding(make_log: MakeLog) -> None:
    back: dict[str, Change] = {ENTROPY: lambda v: v + 2.0 * np.exp(-(((np.arange(len(v)) - 30) / 6) ** 2))}
    assert "ENT001" in codes(make_log(**back, **{REWARD: ramp(28, 0.1, 10)})) and "ENT001" not in codes(
        make_log(**back)
    )


@pytest.mark.parametrize(
    ("code", "name", "bad", "well"),
    [
        ("ENT002", ENTROPY, 1e-9, 1.0),
        ("TRN001", "rollout__truncated_fraction", 1.0, 0.0),
    ],
)
def test_one_normal_row_ends_no_finding(make_log: MakeLog, code: str, name: str, bad: float, well: float) -> None:
    """A mean of five rows may be normal for as long as the row is among them."""

    def found(rows: int) -> bool:
        changes = {
            REWARD: noisy(0.3, 0.02),
            MIXED: always(0.1),
            name: lambda v: np.where(np.arange(len(v)) < 50, bad, well),
        }
        return code in codes(make_log(rows=70, **changes).until(50 + rows))

    assert found(0) and found(1) and not found(20)


def test_a_reward_that_comes_back_ends_a_surge_of_entropy(make_log: MakeLog) -> None:
    surge: dict[str, Change] = {ENTROPY: ramp(20, 2.0)}
    falls, returns = ramp(25, 0.1, 8), ramp(40, 0.75, 5)
    assert "ENT001" in codes(make_log(**surge, **{REWARD: falls}))
    back = diagnose(make_log(**surge, **{REWARD: lambda v: returns(falls(v))}))
    assert "ENT001" in {note.code for note in back.notes}


def test_a_kl_that_is_nan_in_every_row_is_a_note(make_log: MakeLog) -> None:
    (note,) = (note for note in diagnose(make_log(kl__reference=[np.nan] * 60)).notes if note.code == "GRD002")
    assert note.certain == 3 and note.series == ("kl/reference",)


@pytest.mark.parametrize(
    ("to", "reward", "noted"),
    [
        (600.0, noisy(0.5, 0.05), True),
        (170.0, noisy(0.5, 0.05), False),  # by less than twice
        (600.0, then(noisy(0.2, 0.05), ramp(10, 0.7)), False),  # it pays
    ],
)
def test_rollouts_that_grow_for_nothing_are_a_note(make_log: MakeLog, to: float, reward: Change, noted: bool) -> None:
    log = make_log(**{LENGTH: then(noisy(100, 5), ramp(20, to)), REWARD: reward})
    assert ("TRN002" in {note.code for note in diagnose(log).notes}) == noted


@pytest.mark.parametrize(
    ("name", "values", "noted"),
    [
        ("is_right", always(0.0), True),
        ("is_right", spike(40, 0.1), False),
        ("overlong_penalty", always(0.0), False),
    ],
)
def test_a_reward_function_that_is_always_0_is_a_note(
    make_log: MakeLog, name: str, values: Change, noted: bool
) -> None:
    functions = {f"rewards__{name}__mean": then(always(0.0), values), "rewards__form__mean": noisy(0.5, 0.1)}
    assert ("RWD005" in {note.code for note in diagnose(make_log(**functions)).notes}) == noted


def test_a_reward_that_never_rose_is_a_note(make_log: MakeLog) -> None:
    flat = {REWARD: noisy(0.3, 0.03, seed=0)}
    reported = diagnose(make_log(**flat, rows=80))
    assert "RWD004" in {one.code for one in (*reported.findings, *reported.notes)}
    assert "RWD004" not in {note.code for note in diagnose(make_log(rows=80)).notes}
