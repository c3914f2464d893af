"""Every code in words, and the settings these words name."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.diagnose.diagnose import best_set, how_to_log, logged_by
from holdfast.diagnose.rules import RULES
from holdfast.hosts import HOSTS as ALL_HOSTS
from holdfast.hosts import PENALTY as PHRASE
from holdfast.hosts import words as words_of
from holdfast.recipe import load, setting_names

CODE = re.compile(r"`([^`]+)`")
PENALTY = {"coef", "threshold", "tau", "preserve"}  # of LLDS and SAPO, where they are settings of our adapters
OURS = PENALTY | {"mask_logprobs"}  # of with_penalties
ASYNCHRONOUS = "max_staleness"  # of AsyncGRPOConfig, which needs more than trl alone

# What stands in backticks beside settings: names of code, files, series and sections.
CALLS = {
    *("SearchRollouts", "reward_functions", "rollout_func", "env_mask", "tool_mask", "response_mask", "TokenBatch"),
    *("trajectories.jsonl", "[reward]", '"sapo"', "holdfast train", "holdfast resume", "requires_grad"),
    *("with_penalties", "with_penalties(GRPOTrainer)", "with_penalties(GRPOTrainer, mask_logprobs=True)"),
    *("with_penalties(..., correct_above=X)", "model.enable_input_require_grads()", *words_of("trl", PHRASE)),
    "torch.backends.cuda.enable_cudnn_sdp(False)",
}


def words(host: str) -> Iterator[tuple[str, str]]:
    """(where, what stands in backticks) for a host, but calls."""
    for code, rule in RULES.items():
        for remedy in (rule.remedy, *(check.remedy for check in rule.checks if check.remedy is not None)):
            for word in CODE.findall(remedy[host]):
                if word not in CALLS:
                    yield code, word
    for start, how in ALL_HOSTS[host].logged_by.items():
        for word in CODE.findall(how):
            if word not in CALLS:
                yield f"logged_by {start!r}", word


def test_holdfasts_settings_exist_and_take_the_values() -> None:
    settings = [(where, re.split(r"[ =]", word)[0]) for where, word in words("holdfast")]
    assert len(settings) > 25
    assert [pair for pair in settings if pair[1] not in {*setting_names(), "eval.every"}] == []
    for _, word in words("holdfast"):
        name, equals, value = word.partition(" = ")
        if equals:
            # `sampling.mask_logprobs` needs `sampling.top_k`, which its remedy also names.
            top_k = ["--sampling.top_k", "512"] if name == "sampling.mask_logprobs" else []
            load(None, [f"--{name}", value.strip('"'), *top_k])


def test_fields_of_trl_exist() -> None:
    config = pytest.importorskip("trl").GRPOConfig
    fields = {field.name for field in dataclasses.fields(config)}
    settings = [(where, word.partition("=")[0]) for where, word in words("trl")]
    assert len(settings) > 20
    logged = {"completions/mean_length", "clip_ratio/region_mean", "entropy", "frac_reward_zero_std", "reward"}
    logged |= {"kl", "sampling/sampling_logp_difference/mean", ASYNCHRONOUS}
    assert [pair for pair in settings if pair[1] not in fields | logged | OURS] == []


def test_paths_of_verl_exist() -> None:
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed")
    import verl
    from omegaconf import OmegaConf

    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    settings = [(where, word.removeprefix("+").partition("=")[0]) for where, word in words("verl")]
    assert len(settings) > 15
    logged = ("actor/", "response_length/", "critic/", "rollout_corr/", "training/", "async_training.")
    ours = {f"actor_rollout_ref.actor.policy_loss.penalty_{name}" for name in PENALTY}
    paths = [pair for pair in settings if not pair[1].startswith(logged) and pair[1] not in ours]
    assert [pair for pair in paths if OmegaConf.select(config, pair[1], default="none") == "none"] == []


def test_what_would_log_a_series() -> None:
    assert how_to_log("verl", ["displacement/correct"]) == "verl cannot log it, but `holdfast train` does."
    for host in ("holdfast", "trl"):
        for rule in RULES.values():
            names = best_set(host, rule.needs)
            assert all(logged_by(host, name) for name in names), f"{rule.code}: add {names} to `logged_by` of {host}"
