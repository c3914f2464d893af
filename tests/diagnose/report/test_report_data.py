"""Which charts a log has, how much of it a page holds, and the phases of a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.finding import Diagnosis, Finding
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.log.collapse import Course, Fall
from holdfast.diagnose.readers import read_logs
from holdfast.diagnose.readers.rollouts.conversation import MAX_CHARACTERS
from holdfast.diagnose.report import ReportedRun, SampleChanges, SampledRollout, SampledTurn
from holdfast.diagnose.report.charts import CHARTS
from holdfast.diagnose.report.data import (
    axes_of,
    curve,
    page_data,
    phases_of,
    samples_chart,
    share_of_samples,
    smoothed,
    thin,
)
from holdfast.diagnose.report.samples import MAX_ROLLOUTS, rollouts_json

from ..conftest import LOGS

NOTHING = Diagnosis(findings=())


def alone(log: Log, diagnosis: Diagnosis = NOTHING) -> ReportedRun:
    return ReportedRun(log=log, diagnosis=diagnosis)


def drawn(data: dict[str, Any]) -> dict[str, list[str]]:
    """Chart -> the series in it, row by row."""
    return {c["id"]: [t["series"] for row in c["rows"] for t in row["traces"]] for c in data["charts"]}


def test_every_chart_of_a_full_run(collapse: ReportedRun) -> None:
    data = page_data([collapse])
    assert [c["id"] for c in data["charts"]] == [
        "reward", "displacement", "samples", "likelihood", "entropy", "ratio", "gradient", "trouble",
    ]  # fmt: skip
    found = drawn(data)
    assert found["reward"] == ["reward/mean"]  # exact match is the reward here: the same line twice says nothing
    assert "likelihood/correct/action_2" in found["likelihood"]
    assert found["trouble"] == ["rollout/truncated_fraction"]  # no search ever failed
    reward = data["charts"][0]["rows"][0]["traces"][0]
    assert len(reward["raw"]["x"]) == 60 and len(reward["mean"]["x"]) == 56 and reward["mean"]["x"][0] == 5
    (norm,) = next(c for c in data["charts"] if c["id"] == "gradient")["rows"][0]["traces"]
    assert norm["raw"]["bad"] == [51]
    json.dumps(data, allow_nan=False)
    series = dict(collapse.log.series)
    series["reward/em"] = replace(series["reward/em"], values=series["reward/em"].values * 0.9)
    found = drawn(page_data([replace(collapse, log=replace(collapse.log, series=series))]))
    assert found["reward"] == ["reward/mean", "reward/em"]


@pytest.mark.parametrize("name", ["trl-observed", "verl-file.jsonl", "wandb-chart.csv", "slime.log", "tinker.jsonl"])
def test_a_log_of_any_trainer_has_a_chart_of_the_reward(name: str) -> None:
    runs = [alone(log, diagnose(log)) for log in read_logs(LOGS / name)]
    assert drawn(page_data(runs))["reward"][0] == "reward/mean"


def test_findings_are_pinned_where_their_series_are(collapse: ReportedRun) -> None:
    pins = {c["id"]: [(p["code"], p["step"]) for p in c["pins"]] for c in page_data([collapse])["charts"]}
    assert [code for code, _ in pins["reward"]] == ["LLD002", "LLD003", "ISD001", "ENT001", "RWD001"]
    assert pins["displacement"] == [("LLD002", 24), ("LLD003", 39)]
    assert pins["gradient"] == [("LLD003", 39)] and pins["trouble"] == []


def test_a_series_that_only_a_finding_names_is_drawn(
    make_log: Callable[..., Log], make_finding: Callable[..., Finding]
) -> None:
    log = make_log({"reward/mean": [1.0, 2.0], "sampler/mask_mass": [0.9, 0.8], "lr": [1.0, 1.0]})
    found = Diagnosis(findings=(make_finding("SMP001", 2, "sampler/mask_mass", "never/logged"),))
    data = page_data([alone(log, found)])
    assert drawn(data)["others"] == ["sampler/mask_mass"]
    assert data["charts"][-1]["pins"] == [{"run": 0, "code": "SMP001", "step": 2}]


def test_a_log_of_unknown_names_shows_what_it_has(make_log: Callable[..., Log]) -> None:
    log = make_log({f"name {k:02}": [1.0, 2.0] for k in range(20)}, format="wandb", host="unknown")
    data = page_data([alone(log)])
    assert drawn(data) == {"others": [f"name {k:02}" for k in range(12)]}
    assert [chart["title"] for chart in data["more"]] == [f"name {k:02}" for k in range(12, 20)]


def test_several_runs_share_every_row(collapse: ReportedRun, make_log: Callable[..., Log]) -> None:
    other = alone(make_log({"reward/mean": [0.5] * 60, "eval/em": [0.4] * 3}, name="other"))
    data = page_data([collapse, other, collapse])
    reward, dev = data["charts"][0]["rows"]
    assert [t["run"] for t in reward["traces"]] == [0, 1, 2] and [t["run"] for t in dev["traces"]] == [1]
    assert {t["series"] for t in reward["traces"]} == {"reward/mean"} and reward["title"] == "reward: training"
    assert all(len(t["raw"]["x"]) == 60 and len(t["mean"]["x"]) == 56 for t in reward["traces"])
    many = page_data([collapse] * 7)["charts"][0]["rows"][0]["traces"]  # single values of many are a cloud
    assert all(not t["raw"]["x"] and t["mean"]["x"] for t in many)
    assert dev["traces"][0]["raw"]["x"] == [1, 2, 3]  # too few for a mean
    assert [len({run[cue] for run in data["runs"]}) for cue in ("color", "dash")] == [3, 3]
    many = page_data([collapse] * 30)["runs"]
    assert len({(run["color"], run["dash"]) for run in many}) == 30


@pytest.mark.parametrize("runs", [1, 40])
def test_a_long_run_is_thinned(make_log: Callable[..., Log], runs: int) -> None:
    rng = np.random.default_rng(0)
    names = sorted({line.series for chart in CHARTS for row in chart.rows for line in row.lines})
    log = make_log({name: rng.normal(size=10_000) for name in names})
    log.series["reward/mean"].values[1234] = 99.0
    data = page_data([alone(log)] * runs)
    size = len(json.dumps(data, separators=(",", ":")))
    assert 100_000 < size < 3_500_000
    if runs == 1:
        raw = data["charts"][0]["rows"][0]["traces"][0]["raw"]
        assert raw["y"][raw["x"].index(1235)] == 99


def test_what_a_log_has_besides_steps_can_be_the_axis(make_log: Callable[..., Log]) -> None:
    counted = make_log({"reward/mean": [0.1] * 3, "num_tokens": [100.0, 250.0, 240.0]}, first=10, every=10, host="trl")
    assert axes_of(counted) == {"tokens": {"x": [10, 20, 30], "y": [100, 250, 250]}}  # it never goes back
    timed = make_log({"time/step_s": [2.0, 3.0, 1.0]}, first=10, every=10)  # a row is the mean of ten steps
    assert axes_of(timed) == {"seconds": {"x": [0, 10, 20, 30], "y": [0, 20, 50, 60]}}
    settings = {"train.questions": 4, "train.group_size": 5}
    sampled = make_log({"rollout/length": [10.0, 20.0]}, settings=settings)
    assert axes_of(sampled) == {"tokens": {"x": [0, 1, 2], "y": [0, 200, 600]}}
    assert axes_of(make_log({"rollout/length": [10.0, 20.0], "time/step_s": [0.0, 0.0]})) == {}
    long = axes_of(make_log({"time/step_s": [1.0] * 5000}))["seconds"]
    assert len(long["x"]) == 400 and (long["x"][0], long["x"][-1], long["y"][-1]) == (0, 5000, 5000)


def test_a_score_over_questions_has_its_interval(make_log: Callable[..., Log]) -> None:
    settings = {"eval.questions": 100, "eval.samples": 1}
    log = make_log({"reward/mean": [0.5] * 3, "eval/em": [0.0, 0.5, 1.0]}, settings=settings)

    def dev(log: Log) -> dict[str, Any]:
        return dict(page_data([alone(log)])["charts"][0]["rows"][0]["traces"][1])

    ends = dev(log)["raw"]["ends"]
    assert ends[1] == pytest.approx([0.404, 0.596], abs=1e-3) and ends[0][1] > 0.03 and ends[2][0] < 0.97
    assert "100 questions" in dev(log)["label"]
    for other in ({"eval.samples": 1}, settings | {"eval.samples": 4}):  # unknown; or not one draw a question
        assert "ends" not in dev(replace(log, settings=other))["raw"]


# ---- samples


def test_sorted_samples_of_a_run(collapse: ReportedRun) -> None:
    chart = samples_chart([collapse])
    (row,) = chart["rows"]
    assert [t["label"] for t in row["traces"]] == [f"steps {a} to {a + 11}" for a in (1, 13, 25, 37, 49)]
    assert [t["color"] for t in row["traces"]] == [f"time-{k}" for k in range(1, 6)]
    first, last = row["traces"][0]["raw"]["y"], row["traces"][-1]["raw"]["y"]
    assert all(a > b for a, b in zip(first, last, strict=True))  # the whole curve sinks
    low, high = row["range"]
    assert low < min(last[5:]) and high > max(first[:-5])

    wild = tuple(replace(row, correct=(*row.correct * 10, -50.0)) for row in collapse.changes)
    (row,) = samples_chart([replace(collapse, changes=wild)])["rows"]  # an outlier does not flatten them
    assert row["range"][0] > -1 and min(row["traces"][0]["raw"]["y"]) == -50


def test_samples_of_several_runs_are_their_ends_and_without_samples_there_is_no_chart(collapse: ReportedRun) -> None:
    traces = samples_chart([collapse, replace(collapse, changes=()), collapse])["rows"][0]["traces"]
    assert [(t["run"], t["label"]) for t in traces] == [(0, "steps 49 to 60"), (2, "steps 49 to 60")]
    for changes in ((), (SampleChanges(step=1, correct=(), incorrect=(-1.0,)),)):  # nobody was right
        assert samples_chart([replace(collapse, changes=changes)])["rows"] == []


# ---- rollouts


def rollout(step: int, text: str = "x", **more: Any) -> SampledRollout:
    turn = SampledTurn(text=text)
    own = {"question": "q", "golden_answers": ("a",), "answer": None, "correct": False, "reward": 0.0}
    return SampledRollout(**{"step": step, "turns": (turn,)} | own | more)


def test_rollouts_are_spread_over_the_run_newest_first() -> None:
    every = [rollout(step) for step in range(1, 10_001) for _ in range(4)]
    steps = [row["step"] for row in rollouts_json([every])]
    assert steps == sorted(steps, reverse=True) and steps[0] == 10_000 and steps[-1] == 1
    assert 0.9 * MAX_ROLLOUTS <= len(steps) <= MAX_ROLLOUTS and all(steps.count(step) == 4 for step in set(steps))
    assert max(np.diff(sorted(set(steps)))) < 2 * 10_000 / (MAX_ROLLOUTS / 4)
    assert len(rollouts_json([[rollout(step) for step in range(5)], [], [rollout(9)]])) == 6


def test_long_rollouts_leave_room_for_those_of_every_run() -> None:
    long = [rollout(step, "x" * 50_000) for step in range(1000)]
    shown = rollouts_json([long, long])
    assert len(json.dumps(shown)) < 2_000_000 and {row["run"] for row in shown} == {0, 1}
    text = shown[0]["turns"][0]["text"]
    assert len(text) < MAX_CHARACTERS + 50 and text.endswith("30,000 more characters")


def test_pieces_stand_in_place_of_the_text() -> None:
    tokens = (("<think>", -0.12345), (" x", float("nan")), ("", 0.5))
    (row,) = rollouts_json([[rollout(1, turns=(SampledTurn(text="<think> x", tokens=tokens),))]])
    assert row["turns"] == [{"pieces": ["<think>", " x", ""], "changes": [-0.123, None, 0.5]}]
    long = tuple(("ab", 0.1) for _ in range(12_000))
    (row,) = rollouts_json([[rollout(1, turns=(SampledTurn(text="ab" * 12_000, tokens=long),))]])
    (turn,) = row["turns"]
    assert len(turn["pieces"]) == len(turn["changes"]) == MAX_CHARACTERS // 2
    assert turn["text"] == "… 4,000 more characters"


# ---- thinning and smoothing


@pytest.mark.parametrize("count", [1, 100, 101, 10_000])
@pytest.mark.parametrize("most", [4, 100])
def test_thinning_keeps_the_picture(count: int, most: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    kept = thin(values, most)
    assert len(kept) <= most or count <= most
    assert (np.diff(kept) > 0).all() and kept[0] == 0 and kept[-1] == count - 1
    assert values[kept].min() == values.min() and values[kept].max() == values.max()


def test_a_series_is_smoothed_over_its_numbers_and_a_long_one_over_more() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    assert smoothed(Series(np.arange(14), values[:14])) is None
    broken = np.where(np.arange(30) == 3, np.nan, values[:30])
    long, short = smoothed(Series(np.arange(10_000), values)), smoothed(Series(np.arange(30), broken))
    assert long is not None and long.steps[0] == 49 and long.values[0] == pytest.approx(values[:50].mean())
    assert short is not None and short.steps[0] == 5 and np.isfinite(short.values).all() and len(short) == 25


def test_numbers_that_are_none_are_told_apart(make_log: Callable[..., Log]) -> None:
    log = make_log({"x": [1.0, float("nan"), 2.0, float("inf"), -float("inf")]})
    assert curve(log.series["x"], 100) == {"x": [1, 3], "y": [1, 2], "bad": [2, 4, 5]}
    assert curve(make_log({"x": [0.5] * 99}).series["x"], 10)["of"] == 99
    assert len(curve(make_log({"x": [float("nan")] * 5000}).series["x"], 100)["bad"]) == 200


def test_samples_are_sorted_over_their_share() -> None:
    changes = np.random.default_rng(1).normal(size=999).tolist()
    found = share_of_samples([*changes, float("nan")])
    assert len(found["x"]) == 200 and found["y"] == sorted(found["y"])
    below = max(x for x, y in zip(found["x"], found["y"], strict=True) if y < 0)
    assert below == pytest.approx(100 * np.mean(np.array(changes) < 0), abs=1)


# ---- phases


def halved_at(step: int | None, back_step: int | None = None) -> Course:
    if step is None:
        return Course()
    fall = Fall(peak_step=1, step=step, peak=1.0, level=0.5, lost=0.5, rows=5, began=step, measure="peak")
    return Course(fall, fall, back_step)


@pytest.mark.parametrize(
    ("found", "half", "expected"),
    [
        ({}, None, []),
        ({"LLD001": 20}, None, [("rise", 1, 20), ("stagnation", 20, 100)]),
        (
            {"LLD001": 20, "LLD002": 40, "LLD003": 60},
            80,
            [("rise", 1, 20), ("stagnation", 20, 40), ("decay", 40, 60), ("collapse", 60, 100)],
        ),
        ({"LLD004": 30, "LLD002": 40}, None, [("rise", 1, 30), ("decay", 30, 100)]),
        ({"LLD002": 20, "LLD001": 40}, None, [("rise", 1, 20), ("decay", 20, 100)]),  # never back to stagnation
        ({"STP001": 4, "RWD001": 9}, 12, [("rise", 1, 9), ("collapse", 9, 100)]),  # a step too large: no decay
        ({}, 50, [("rise", 1, 50), ("collapse", 50, 100)]),
        ({"LLD001": 20, "LLD002": 20}, None, [("rise", 1, 20), ("decay", 20, 100)]),
        ({"LLD003": 1}, None, [("collapse", 1, 100)]),
    ],
)
def test_phases(
    make_finding: Callable[..., Finding], found: dict[str, int], half: int | None, expected: list[tuple[str, int, int]]
) -> None:
    findings = tuple(make_finding(code, step) for code, step in found.items())
    assert phases_of(Diagnosis(findings=findings, course=halved_at(half)), 1, 100) == tuple(expected)


def test_a_reward_that_came_back_did_not_collapse() -> None:
    assert phases_of(Diagnosis(findings=(), course=halved_at(50, back_step=70)), 1, 100) == ()
