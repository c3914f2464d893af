"""Logs of asynchronous trainers: whose they are, what their names mean, and the advice by the old policy in use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnose.diagnose import diagnose
from holdfast.diagnose.log import Log
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.readers.console import Console
from holdfast.diagnose.readers.text import Tally

ROWS = 100


def log_of(folder: Path, **more: Any) -> Log:
    """A log in which rollouts become old and the reward falls; `{}` in a value is the age."""
    rows = []
    for i in range(ROWS):
        age = 1.0 + max(0, i - 50) / 5
        fall = max(0.1, 0.7 - 0.02 * max(0, i - 55)) + 0.01 * (i % 3)
        filled = {name: age if value == "age" else fall if value == "reward" else value for name, value in more.items()}
        rows.append({"step": i, **filled})
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return read_log(path)


TRL = {"reward": "reward", "entropy": 1.0, "kl": 0.02, "ratio": 1.0, "clip_ratio/region_mean": 0.01}
ASYNC = {**TRL, "sample/staleness_mean": "age", "sample/staleness_max": "age", "perf/rollout_wait_s": 3.0}
VERL = {"critic/score/mean": "reward", "actor/entropy": 1.0, "actor/grad_norm": 1.0}
AGE, DROPPED = "training/off_policy/trajectory_staleness", "training/off_policy/evicted_samples"


def remedy_of(log: Log, code: str) -> str:
    told = diagnose(log)
    return next(one.remedy for one in (*told.findings, *told.notes) if one.code == code)


def test_the_kl_of_an_asynchronous_trl_is_that_to_the_sampler(tmp_path: Path) -> None:
    log = log_of(tmp_path, **ASYNC)
    assert (log.host, log.old_policy) == ("trl-async", "sampler")
    assert {"sampler/mismatch_kl", "rollout/staleness", "rollout/max_staleness", "time/waiting_s"} <= set(log.series)
    assert "kl/reference" not in log.series
    plain = log_of(tmp_path, **TRL)
    assert (plain.host, plain.old_policy) == ("trl", "recomputed") and "kl/reference" in plain.series


def test_advice_for_rollouts_that_are_too_old_has_the_words_of_the_trainer(tmp_path: Path) -> None:
    to_sampler = remedy_of(log_of(tmp_path, **ASYNC), "OFP001")
    assert "max_staleness" in to_sampler and "without a penalty" in to_sampler and "num_iterations" not in to_sampler
    recomputed = remedy_of(log_of(tmp_path, **VERL, **{f"{AGE}/mean": "age"}), "OFP001")
    assert "max_off_policy_threshold" in recomputed and "penalty on lost likelihood" in recomputed
    assert "actor_rollout_ref.actor.optim.lr" in recomputed


@pytest.mark.parametrize(
    ("more", "host", "old"),
    [
        ({f"{AGE}/mean": "age"}, "verl-async", "recomputed"),
        ({f"{AGE}/mean": 0.0, f"{AGE}/max": 0.0}, "verl", "recomputed"),
        ({f"{AGE}/mean": 0.0, "separate_async/switch/idle": 0.0}, "verl-async", "recomputed"),
        ({"fully_async/trainer/idle_ratio": 0.1}, "verl", "sampler"),
        ({"timing_s/generate_async": 9.0}, "verl", "sampler"),  # one-step-off, whose default is bypass mode
        ({"timing_s/generate_async": 9.0, "timing_s/old_log_prob": 0.5}, "verl", "recomputed"),
        ({"fully_async/trainer/idle_ratio": 0.1, "timing_s/old_log_prob": 0.5}, "verl", "recomputed"),
    ],
)
def test_a_log_of_verl_is_that_of_the_trainer_whose_rollouts_it_has(
    tmp_path: Path, more: dict[str, Any], host: str, old: str
) -> None:
    log = log_of(tmp_path, **VERL, **more)
    assert (log.host, log.old_policy) == (host, old)


@pytest.mark.parametrize(
    ("more", "host", "old"),
    [
        ("'trainer_mode': 'separate_async'", "verl-async", "recomputed"),
        ("'trainer_mode': 'sync'", "verl", "recomputed"),
    ],
)
def test_printed_settings_say_which_trainer_of_verl_it_is(tmp_path: Path, more: str, host: str, old: str) -> None:
    head = "{'actor_rollout_ref': {'actor': {'lr': 1}},\n 'trainer': {'v1': {" + more + "}}}\n"
    rows = [f"step:{i} - critic/score/mean:0.5 - {AGE}/mean:{1 + i % 2}" for i in range(5)]
    path = tmp_path / "run.log"
    path.write_text(head + "\n".join(rows))
    console = Console(enumerate(path.read_text().split("\n")), Tally(path))
    assert list(console.rows()) and console.settings
    log = read_log(path)
    assert (log.host, log.old_policy) == (host, old)


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("verl", {"rollout_corr/rollout_is_eff_sample_size": "sampler/ess"}),
        ("verl", {"training/rollout_actor_probs_pearson_corr": "sampler/prob_correlation"}),
        ("verl", {"fully_async/count/dropped_stale_samples": "rollout/dropped_stale"}),
        (
            "verl-async",
            {f"{AGE}/mean": "rollout/staleness", "training/off_policy/evicted_samples": "rollout/dropped_stale"},
        ),
        ("skyrl", {"async/staleness_mean": "rollout/staleness", "timing/wait_for_generation_buffer": "time/waiting_s"}),
        ("tinker", {"async/staleness_mean": "rollout/staleness"}),
        (
            "slime",
            {"perf/fully_async/stale_dropped": "rollout/dropped_stale", "perf/train_wait_time": "time/waiting_s"},
        ),
        ("nemo-rl", {"avg_trajectory_age": "rollout/staleness", "train/gen_kl_error": "sampler/mismatch_kl"}),
        ("art", {"train/steps_off_policy": "rollout/staleness"}),
        ("prime-rl", {"off_policy/mean": "rollout/staleness", "time/wait_for_batch": "time/waiting_s"}),
        ("trl-async", {"sample/dropped_stale_total": "rollout/dropped_stale"}),
    ],
)
def test_age_agreement_and_waiting_have_one_name_whatever_the_trainer(
    tmp_path: Path, host: str, names: dict[str, str]
) -> None:
    telling = {
        "verl": VERL,
        "verl-async": VERL,
        "skyrl": {"reward/avg_raw_reward": "reward"},
        "tinker": {"env/all/reward/total": "reward"},
        "slime": {"rollout/raw_reward": "reward"},
        "nemo-rl": {"train/reward": "reward", "train/token_mult_prob_error": 1.0},
        "art": {"train/reward": "reward"},
        "prime-rl": {"entropy/all/mean": 1.0},
        "trl-async": ASYNC,
    }[host]
    log = log_of(tmp_path, **telling, **dict.fromkeys(names, "age"))
    assert log.host == host and set(names.values()) <= set(log.series)


def test_the_console_of_nemo_rl_is_known_by_what_it_prints(tmp_path: Path) -> None:
    lines = [
        line
        for i in range(1, 9)
        for line in (
            f"===== Step {i}/8 =====",
            f"  • Avg Reward: 0.{i}",
            "  • Generation KL Error: 0.45",
            "  • Loss: 0.1",
        )
    ]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines))
    log = read_log(path)
    assert log.host == "nemo-rl" and set(log.series["sampler/mismatch_kl"].values) == {0.45}
