"""Logs made by hand, and a real browser where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tests.browser import Browser, find_browser

from holdfast.diagnose.finding import CannotTell, Diagnosis, Finding, Verdict
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.collapse import Course, Fall
from holdfast.diagnose.report import ReportedRun, SampleChanges, SampledRollout, SampledTurn


@pytest.fixture
def make_log() -> Callable[..., Log]:
    """make_log({"reward/mean": [0.1, ...]}, first=1, every=1): every series at the same steps."""

    def make(
        series: Mapping[str, Sequence[float]], *, name: str = "a run", first: int = 1, every: int = 1, **more: Any
    ) -> Log:
        made = {
            key: Series(first + every * np.arange(len(values)), np.asarray(values, dtype=np.float64))
            for key, values in series.items()
        }
        steps = np.array(sorted({int(step) for one in made.values() for step in one.steps}), dtype=np.int64)
        return Log(**{"format": "holdfast", "host": "holdfast", "name": name, "series": made, "steps": steps} | more)

    return make


@pytest.fixture
def make_finding() -> Callable[..., Finding]:
    def make(code: str, step: int, *series: str, **more: Any) -> Finding:
        texts = {"summary": f"What {code} says.", "evidence": {}, "remedy": f"What {code} asks for."}
        return Finding(**{"code": code, "step": step, "certain": step, "series": series} | texts | more)

    return make


@pytest.fixture
def collapse(make_log: Callable[..., Log], make_finding: Callable[..., Finding]) -> ReportedRun:
    """A run of 60 steps with everything a report can show: it rises, decays and collapses."""
    t = np.arange(60)
    reward = np.where(t < 20, 0.3 + 0.025 * t, 0.8) * np.where(t < 40, 1.0, np.maximum(0.05, 1 - (t - 40) / 10))
    series = {
        "reward/mean": reward,
        "reward/em": reward,
        "displacement/correct": 0.01 - 0.0005 * t,
        "displacement/incorrect": -0.001 * t,
        "displacement/fraction": t / 60,
        "likelihood/correct": -1 + 0.01 * np.minimum(t, 20) - 0.02 * np.maximum(0, t - 25),
        "likelihood/incorrect": -1.2 - 0.01 * t,
        "likelihood/correct/action_1": -1 - 0.001 * t,
        "likelihood/correct/action_2": -1.1 - 0.001 * t,
        "entropy/mean": 1 + 0.05 * np.maximum(0, t - 35),
        "rollout/length": np.full(60, 70.0),
        "rollout/searches": np.full(60, 1.5),
        "ratio/max": np.exp(t / 10),
        "clip/fraction": t / 1000,
        "grad/norm": np.where(t == 50, np.nan, np.exp(t / 12)),
        "retrieval/error_fraction": np.zeros(60),
        "rollout/truncated_fraction": t / 100,
    }
    found = (
        make_finding("LLD002", 24, "displacement/correct", lead=21, evidence={"displacement/correct": -0.002}),
        make_finding("LLD003", 39, "displacement/correct", "grad/norm", lead=6),
        make_finding("ISD001", 39, "ratio/max", lead=6),
        make_finding("ENT001", 40, "entropy/mean", lead=5),
        make_finding("RWD001", 41, "reward/mean", lead=4),
    )
    diagnosis = Diagnosis(
        verdict=Verdict(word="fell", text="The reward fell near step 40.", change="What LLD002 asks for."),
        findings=found,
        cannot_tell=(CannotTell(code="SMP001", missing=("sampler/logprob_gap",), remedy="Log it."),),
        course=Course(
            *2 * [Fall(peak_step=24, step=45, peak=0.8, level=0.4, lost=0.5, rows=5, began=40, measure="peak")],
            word="collapsed",
        ),
        facts={
            "rows": 60,
            "rewards": 60,
            "rows in a mean": 5,
            "first step": 1,
            "last step": 60,
            "first reward": 0.3,
            "peak reward": 0.8,
            "last reward": 0.04,
            "lost at the end": 0.9,
            "down at the end": 1.0,
            "rose": 1.0,
        },
    )
    rollouts = tuple(
        SampledRollout(
            step=step,
            question=f"Question {step}-{k}?",
            golden_answers=("Mora",),
            turns=(
                SampledTurn(
                    text="<search> lake </search>",
                    observation="Doc 1: a lake",
                    query="lake",
                    hits=("doc-1", "doc-2"),
                    tokens=(("<search>", -0.5), (" lake", 0.2), (" </search>", 0.0), ("", -0.1)),
                ),
                SampledTurn(text="<answer> Mora </answer>"),
            ),
            answer="Mora",
            correct=k == 0,
            reward=float(k == 0),
        )
        for step in range(1, 61)
        for k in range(2)
    )
    changes = tuple(
        SampleChanges(step=step, correct=tuple(0.01 * i - 0.001 * step for i in range(-8, 8)), incorrect=(-0.1,))
        for step in range(1, 61)
    )
    log = make_log(series, name="collapse", settings={"train": {"lr": 6e-4}, "loss.penalty.name": "none"})
    return ReportedRun(log=log, diagnosis=diagnosis, rollouts=rollouts, changes=changes)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no Chromium is installed")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()
