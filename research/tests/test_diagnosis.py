"""The library of recorded runs, and the measurement of the rules on a small part of it, and on the single-turn sets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast_research import readings
from holdfast_research.null_model import (
    Verdict,
    autocorrelated,
    drawn,
    log_of,
    rate,
    runs_of,
    table,
    too_many,
    verdicts,
)
from holdfast_research.pages import diagnosis
from holdfast_research.pages import single_turn as page
from holdfast_research.recordings import library
from holdfast_research.recordings.library import PACKED, Recording, folder_of, read_manifest

RECORDINGS = library.read_manifest()
NAMED = {r.name: r for r in RECORDINGS}


def test_every_log_is_there_and_every_cause_has_codes() -> None:
    assert set(library.read_collection(library.FOLDER / library.PACKED)) == set(NAMED)
    for r in RECORDINGS:
        assert r.healthy or r.cause in diagnosis.RIGHT
        assert set(r.also) <= set(diagnosis.RIGHT)


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
        name="x", testbed=testbed, host="trl", cause=cause, stock=False, healthy=healthy, fell=not healthy, lead=lead,
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


# ---- readings


def test_wilson() -> None:
    # 8 of 10 at z = 1.96: (0.8 + 0.19208) / 1.38416 = 0.71674 in the middle, 0.22658 to each side.
    low, high = readings.wilson(8, 10)
    assert low == pytest.approx(0.4902, abs=1e-3) and high == pytest.approx(0.9433, abs=1e-3)
    assert readings.wilson(0, 0) == (0.0, 1.0)


def test_a_reading_says_how_and_when_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "READINGS", tmp_path)
    assert readings.kept("one") is None
    readings.keep("one", "python -m x", {"counts": {"a": 1}})
    reading = readings.kept("one")
    assert reading is not None and reading["counts"] == {"a": 1} and reading["command"] == "python -m x"
    assert reading["rules"].rstrip("+").isalnum() and reading["date"].startswith("20")


# ---- single-turn sets


def test_a_log_of_every_step_is_joined_as_trl_joins_it() -> None:
    rows = [{"step": i, "loss": float(i), "learning_rate": i / 10, "reward": i % 2 or None} for i in range(1, 10)]
    joined = page.relogged([*rows, {"step": 9, "train_runtime": 1.0}], 4)
    assert [row["step"] for row in joined] == [4, 8]
    assert joined[0] == {"step": 4, "loss": 2.5, "learning_rate": 0.4, "reward": 1.0}


def a_recording(folder: Path, name: str, cause: str, rows: list[dict[str, Any]], **more: Any) -> Recording:
    settings = {"logging_steps": 1, "engine": False}
    row = {"testbed": "t", "host": "trl", "split": "practice", "seed": 1, "steps": len(rows), "how": "", "recipe": "t"}
    recording = Recording(name=name, cause=cause, settings=settings, **row, **more)
    log = {"trainer_state.json": json.dumps({"log_history": rows, "global_step": len(rows)})}
    library.write_collection(folder / PACKED, {**library.read_collection(folder / PACKED), name: log})
    return recording


def test_a_set_is_judged_in_every_view(tmp_path: Path) -> None:
    calm = [
        {"step": i, "loss": 0.01, "grad_norm": 1.0, "reward": 0.5 + 0.01 * (i % 3), "reward_std": 0.4, "entropy": 0.5}
        for i in range(1, 81)
    ]
    broken = [row | ({"loss": float("nan"), "grad_norm": float("nan")} if row["step"] > 40 else {}) for row in calm]
    healthy = a_recording(tmp_path, "calm", "healthy-plain", calm)
    faulty = a_recording(tmp_path, "nan", "non-finite", broken, start=40)
    leak = a_recording(tmp_path, "leak", "masked-leak", calm)
    verdicts = page.all_views([healthy, faulty, leak], tmp_path)
    assert [v.view for v in verdicts[:4]] == ["observed", "stock", "every 4", "every 10"]
    stock = page.numbers(page.by_view(verdicts)["stock"])
    assert stock["healthy with a finding"] == page.Share(0, 1)
    assert stock["found by the end"] == page.Share(1, 2)
    assert stock["right cause first"] == page.Share(1, 2)
    assert stock["right cause first, where the log can tell"] == page.Share(1, 1)
    text = page.table(verdicts)
    assert "non-finite" in text and "GRD002 1" in text
    assert "!! leak" in page.each(verdicts)


def test_logs_of_the_local_trainer_are_judged_whole_and_with_a_row_in_ten_and_what_is_said_is_published() -> None:
    folder = folder_of("real-model")
    recordings = read_manifest(folder)
    assert len(recordings) == 8 and all(recording.healthy for recording in recordings)
    assert set(library.read_collection(folder / PACKED)) == {recording.name for recording in recordings}
    views = page.views(recordings[0], folder)
    assert len(views["whole"].steps) == 24 and views["every 10"].steps.tolist() == [10, 20]
    assert views["whole"].settings["train.group_size"] == 6
    kept = readings.kept("real-model")
    assert kept is not None
    verdicts = page.all_views(recordings, folder)
    assert len(verdicts) == 16
    for v in verdicts:
        assert kept["runs"][v.name][v.view] == page.said(v.findings, v.notes), "make accuracy"


# ---- the null model draws what it says, and the rules say nothing of a healthy run. The command counts in more runs

AT_MOST = 0.05
"""Findings per run in the few runs of a test. The cells of the command have `CELL_AT_MOST`."""


def test_a_run_is_drawn_again_by_its_seed() -> None:
    one, same, other = (log_of(drawn(100, 8, seed)) for seed in (1, 1, 2))
    rewards = [log.series["reward/mean"].values for log in (one, same, other)]
    assert np.array_equal(rewards[0], rewards[1]) and not np.array_equal(rewards[0], rewards[2])
    assert all(len(part) == 100 for name, part in one.series.items() if not name.startswith("eval/"))


def test_rewards_are_means_of_so_many() -> None:
    for seed in range(3):
        correct = log_of(drawn(60, 8, seed)).series["rewards/correct/mean"].values * 8
        assert np.allclose(correct, correct.round()) and correct.std() > 0


def test_noise_has_its_memory() -> None:
    memory = 0.9
    noise = autocorrelated(np.random.default_rng(0), 20_000, memory)
    assert noise.std() == pytest.approx(1, abs=0.1)
    assert np.corrcoef(noise[1:], noise[:-1])[0, 1] == pytest.approx(memory, abs=0.05)


@pytest.mark.parametrize(
    ("rows", "completions", "runs"),
    [((20, 100, 300), (8, 64), 8), pytest.param((20, 100, 300, 1000), (8, 64, 512), 12, marks=pytest.mark.long)],
)
def test_healthy_runs_have_no_findings(rows: tuple[int, ...], completions: tuple[int, ...], runs: int) -> None:
    found = list(verdicts(rows, completions, runs))
    assert len(found) == len(rows) * (len(completions) + 3) * runs
    assert rate(found) <= AT_MOST, [v for v in found if v.codes]
    assert not [v for v in found if "RWD004" in v.reasons and v.run.shape == "rising"], "it learns"


def test_cells_above_the_limit_are_named() -> None:
    silent, loud = (
        Verdict(run=drawn(20, size, 1), codes=codes, steps=()) for size, codes in ((8, ()), (64, ("RWD001",)))
    )
    assert too_many([silent, loud]) == ["20 rows, 64 completions: 1.000"]
    assert "| RWD001 | 0.500 |" in table([silent, loud])
    assert runs_of(20, 200) == 200 and runs_of(10_000, 200) == 60
