"""Where the seconds of a step go: what nests, what runs beside the step, and what makes it wait."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log, Series
from holdfast.diagnose.outlook import FIRST, LAST, facts_of_seconds, in_words, seconds_of
from holdfast.diagnose.report.data import page_data
from holdfast.diagnose.report.samples import ReportedRun
from holdfast.hosts import HOSTS


def log_of(host: str, seconds: dict[str, float | list[float]], rows: int = 8) -> Log:
    """A log of a host by the names that a reader gives."""
    ours = {row.host: row.ours for row in HOSTS[host].series}
    steps = np.arange(1, rows + 1)
    series = {ours.get(name, name): Series(steps, np.zeros(rows) + value) for name, value in seconds.items()}
    return Log(format="jsonl", host=host, name="run", series=series, steps=steps)


CASES: dict[str, tuple[str, dict[str, float], dict[str, float]]] = {
    "a nested span is taken off the one around it": (
        "verl",
        {"timing_s/gen": 50, "timing_s/agent_loop/slowest/tool_calls": 20, "timing_s/agent_loop/tool_calls/mean": 15,
         "timing_s/ref": 3, "timing_s/old_log_prob": 4, "timing_s/update_actor": 30, "timing_s/step": 100},
        {"generation": 30, "tool": 20, "old": 7, "update": 30, "other": 13},
    ),
    "rollouts that are made meanwhile are waited for": (
        "verl",
        {"timing_s/gen": 40, "timing_s/step": 60, "fully_async/trainer/idle_ratio": 0.6},
        {"waiting": 40, "other": 20},
    ),
    "a rollout longer than the wait runs beside the step": (
        "slime",
        {"perf/train_wait_time": 30, "perf/rollout_time": 90, "perf/actor_train_time": 65, "perf/step_time": 100},
        {"waiting": 30, "update": 65, "other": 5},
    ),
    "generation beside the trainer": (
        "skyrl",
        {"timing/generate": 80, "timing/policy_train": 70, "timing/wait_for_generation_buffer": 20, "timing/step": 100},
        {"update": 70, "waiting": 20, "other": 10},
    ),
    "an evaluation outside of the step": (
        "verl",
        {"timing_s/gen": 60, "timing_s/testing": 300, "timing_s/step": 100},
        {"generation": 60, "evaluation": 300},
    ),
    "without the whole step": (
        "prime-rl",
        {"time/forward_backward": 9, "time/wait_for_batch": 6},
        {"update": 9, "waiting": 6},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_counted_twice(case: str) -> None:
    host, logged, expected = CASES[case]
    seconds = seconds_of(log_of(host, dict(logged)))
    assert seconds is not None
    assert {name: values[-1] for name, values in seconds.parts.items()} == pytest.approx(expected)
    assert seconds.total == pytest.approx(np.sum(list(seconds.parts.values()), axis=0))


def test_what_waits_is_told_and_a_log_without_seconds_tells_nothing() -> None:
    waits = {"time/forward_backward": 9.0, "time/wait_for_batch": 6.0}
    assert "trainer waits for rollouts 40%" in in_words(facts_of_seconds(log_of("prime-rl", dict(waits))))
    assert "waits" not in in_words(facts_of_seconds(log_of("prime-rl", dict(waits) | {"time/wait_for_batch": 1.0})))
    tools = {"timing_s/gen": 50.0, "timing_s/agent_loop/slowest/tool_calls": 30.0, "timing_s/step": 100.0}
    assert "waits for tools and rewards 30%" in in_words(facts_of_seconds(log_of("verl", dict(tools))))
    assert facts_of_seconds(log_of("verl", {"critic/score/mean": 1.0})) == {}


@pytest.mark.parametrize(
    ("seconds", "length", "slower"),
    [
        (np.linspace(10, 30, 40), np.full(40, 100.0), True),
        (np.linspace(10, 30, 40), np.linspace(100, 300, 40), False),
        (np.full(40, 10.0) + 60 * (np.arange(40) % 10 == 9), np.full(40, 100.0), False),
        (np.linspace(10, 30, 16), np.full(16, 100.0), False),
    ],
    ids=["slower", "longer rollouts", "evaluations", "few rows"],
)
def test_a_slow_step_is_told_unless_rollouts_explain_it(seconds: np.ndarray, length: np.ndarray, slower: bool) -> None:
    logged = {"time/step_s": seconds.tolist(), "rollout/length": length.tolist()}
    facts = facts_of_seconds(log_of("holdfast", logged, len(seconds)))
    assert (facts.keys() >= {FIRST, LAST}) == slower and ("slower" in in_words(facts)) == slower


def test_the_page_stacks_the_parts_of_one_run_and_compares_whole_steps_of_several() -> None:
    log = log_of("verl", {"timing_s/gen": 60.0, "timing_s/update_actor": 30.0, "timing_s/step": 100.0}, rows=3000)
    run = ReportedRun(log=log, diagnosis=diagnose(log))
    (row,) = page_data([run])["charts"][-1]["rows"]
    assert [(t["label"], t["own"][0], t["raw"]["y"][0]) for t in row["traces"]] == [
        ("other", 10, 100), ("update", 30, 90), ("generation", 60, 60)
    ]  # fmt: skip
    assert len(row["traces"][0]["own"]) <= 1200
    (row,) = page_data([run, run])["charts"][-1]["rows"]
    assert not row["stacked"] and [t["run"] for t in row["traces"]] == [0, 1]
