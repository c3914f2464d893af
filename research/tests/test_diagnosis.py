"""The library of recorded runs, and the measurement of the rules on a small part of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from holdfast.diagnose.log import Log, Series
from holdfast_research import collection
from holdfast_research.pages import diagnosis
from holdfast_research.recordings import library

RECORDINGS = library.read_manifest()
NAMED = {r.name: r for r in RECORDINGS}


def test_every_log_is_there_and_every_cause_has_codes() -> None:
    assert set(collection.read(library.FOLDER / library.PACKED)) == set(NAMED)
    for r in RECORDINGS:
        assert r.healthy or r.cause in diagnosis.RIGHT
        assert set(r.also) <= set(diagnosis.RIGHT)


def a_log(values: list[float]) -> Log:
    steps = np.arange(1, len(values) + 1)
    series = {
        name: Series(steps, np.array(values) * (k + 1)) for k, name in enumerate(("reward/mean", "lr", "a", "b", "c"))
    }
    return Log(format="holdfast", host="holdfast", name="x", series=series, steps=steps)


def test_copies_are_the_same_for_the_same_name_and_stay_causal() -> None:
    log = a_log([0.1 * i for i in range(20)])
    once, again, other = (library.copies(log, name) for name in ("one", "one", "other"))
    noisy = [c["noise"].series["reward/mean"].values for c in (once, again, other)]
    np.testing.assert_array_equal(noisy[0], noisy[1])
    assert (noisy[0] != noisy[2]).any() and (noisy[0] != log.series["reward/mean"].values).any()
    np.testing.assert_array_equal(once["noise"].series["lr"].values, log.series["lr"].values)
    assert once["half"].steps.tolist() == list(range(2, 21, 2))
    assert once["fifth"].series["a"].steps.tolist() == [5, 10, 15, 20]
    assert len(once["gaps"].series) == 4 and "reward/mean" in once["gaps"].series
    assert once["cut"].steps[-1] == 16


def test_a_collapse_is_found_long_before_half_of_the_reward_is_lost_and_a_cured_run_left_in_peace() -> None:
    fallen, cured = (
        diagnosis.judge(NAMED[name], library.load(NAMED[name]))
        for name in ("collapse-grpo-80-s1", "collapse-llds-80-s1")
    )
    assert fallen.fell and fallen.right and not fallen.early and fallen.lead is not None and fallen.lead > 5
    assert cured.healthy and not cured.alarm and not cured.fell


def test_a_finding_before_the_fault_is_early_and_not_found() -> None:
    own = NAMED["collapse-grpo-80-s1"]
    log = library.load(own)
    late = diagnosis.judge(replace(own, start=79, also=()), log)
    assert late.early and late.findings == () and late.lead is None and not late.right


def a_case(testbed: str, *, healthy: bool, findings: int, right: bool = False) -> diagnosis.Case:
    cause, lead = ("healthy-noisy", None) if healthy else ("truncation", 1.0 if findings else None)
    return diagnosis.Case(
        name="x", testbed=testbed, host="trl", cause=cause, copy="", healthy=healthy, fell=not healthy, lead=lead,
        early=False, alarm=healthy and findings > 0, findings=(("TRN001", 5),) * findings, right=right, silent=(),
    )  # fmt: skip


def test_the_factor_for_a_testbed_is_chosen_on_the_others() -> None:
    # On "a" a strict factor misses the collapse, on "b" a lenient one alarms: each gets what is best for the other.
    def cases(found_on_a: int, alarms_on_b: int) -> list[diagnosis.Case]:
        return [
            a_case("a", healthy=False, findings=found_on_a, right=found_on_a > 0),
            a_case("b", healthy=True, findings=alarms_on_b),
        ]

    out = diagnosis.left_out({0.8: cases(1, 1), 1.0: cases(1, 1), 1.25: cases(0, 0)})
    assert out["a"][0] == 1.25 and not out["a"][1][0].findings
    assert out["b"][0] == 1.0 and out["b"][1][0].alarm


def test_a_run_whose_log_cannot_tell_counts_apart() -> None:
    can = a_case("a", healthy=False, findings=1, right=False)
    cases = [can, replace(can, silent=("TRN001",))]
    told = diagnosis.numbers(cases)
    assert told["right code first, where the log can tell"].startswith("0 of 1")
    assert told["right code first, of faulty runs with a finding"].startswith("0 of 2")


def test_a_stock_log_without_the_series_of_a_code_cannot_tell() -> None:
    hot = next(r for r in RECORDINGS if r.cause == "sampler-mismatch" and r.host == "trl")
    stock = diagnosis.judge(hot, library.load(hot, stock=True))
    assert {"SMP001", "SMP002", "RET001"} <= set(stock.silent) and not {"GRD001", "RWD001"} & set(stock.silent)
