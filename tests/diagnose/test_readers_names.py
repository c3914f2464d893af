"""The tables of names, against our glossary and against what the trainers logged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from holdfast.diagnose.log import METRICS, Series
from holdfast.diagnose.readers import read_log
from holdfast.diagnose.readers.names import host_of, translation
from holdfast.hosts import HOSTS
from holdfast.hosts.host import CHANGES

from .conftest import LOGS

TABLES = {host: HOSTS[host].series for host in HOSTS if HOSTS[host].series}
MORE = {host: HOSTS[host].more for host in HOSTS if HOSTS[host].more}
LEFT_ALONE = {host: HOSTS[host].left_alone for host in HOSTS if HOSTS[host].left_alone}


def logged(host: str) -> set[str]:
    """Every name in the logs that this trainer wrote for us."""
    if host == "verl":
        rows = [json.loads(line)["data"] for line in (LOGS / "verl-file.jsonl").read_text().splitlines()]
    else:
        rows = json.loads((LOGS / "trl-stock/checkpoint-6/trainer_state.json").read_text())["log_history"]
    return {name for row in rows for name in row}


NOT_LOGGED = {  # what needs tools, a critic or another trainer, which the logs of the fixtures had none of
    "trl": {
        *("tools/call_frequency", "tools/failure_frequency", "rewards/<function>/mean"),
        *("objective/rlhf_reward", "objective/kl"),
        *("sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/mean"),
    },
    "verl": {
        *("tool_call_counts/mean", "num_turns/mean", "critic/vpred_mean"),
        *(f"critic/{name}" for name in ("values/mean", "vf_explained_var", "vf_loss", "vf_clipfrac")),
    },
}


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_every_name_of_a_table_is_one_the_trainer_logs(host: str) -> None:
    table = {name.host for name in TABLES[host]} | set(LEFT_ALONE[host])
    assert table - logged(host) == NOT_LOGGED[host]


def test_every_target_is_in_the_glossary_and_has_one_source() -> None:
    for table in TABLES.values():
        assert {name.ours for name in table} <= set(METRICS)
        assert len({name.ours for name in table}) == len({name.host for name in table}) == len(table)
        assert all(name.change in CHANGES for name in table)
    assert {name.ours for names in MORE.values() for name in names} <= set(METRICS)
    for host, names in LEFT_ALONE.items():
        assert not {name.host for name in TABLES[host]} & set(names)


@pytest.mark.parametrize(
    ("host", "name", "ours"),
    [
        ("trl", "reward", "reward/mean"),
        ("trl", "eval_reward", "eval/reward/mean"),
        ("trl", "eval/holdfast/reward/em", "eval/reward/em"),
        ("trl", "train/something_else", "something_else"),
        ("trl", "completion_length", "rollout/length"),
        ("trl", "eval_completion_length", "eval/rollout/length"),
        ("trl", "rewards/format", "rewards/format/mean"),
        ("verl", "actor/entropy_loss", "entropy/mean"),
        ("prime-rl", "train/agg/effective/solver/num_turns/mean", "rollout/turns"),
        ("prime-rl", "train/agg/effective/solver/num_branches/mean", "train/agg/effective/solver/num_branches/mean"),
        ("prime-rl", "off_policy_level/all/mean", "rollout/staleness"),
        ("prime-rl", "eval/aime/effective/solver/avg@16", "eval/aime/score"),
        ("prime-rl", "eval/aime/all/solver/avg@16", "eval/aime/all/solver/avg@16"),
        ("tinker", "test/env/all/reward/total", "eval/test/score"),
        ("slime", "eval/aime-2024", "eval/aime-2024/score"),
        ("slime", "eval/aime-2024-truncated_ratio", "eval/aime-2024-truncated_ratio"),
        ("skyrl", "eval/nq/avg_score", "eval/nq/score"),
        ("openrlhf", "eval_nq_pass1", "eval/nq/score"),
        ("roll", "actor/kl_loss@sum", "kl/reference"),
        ("roll", "token/response_length/mean", "rollout/length"),
        ("areal", "grpo_actor/task_reward/avg", "reward/mean"),
        ("areal", "ppo_actor/grad_norm", "grad/norm"),
        ("rllm", "reward/solver/mean", "reward/mean"),
        ("rllm", "batch/steps_per_traj/mean", "batch/steps_per_traj/mean"),
        ("art", "train/grad_norm", "grad/norm"),
        ("skyrl", "generate/avg_num_tokens", "rollout/length"),
        ("verl", "env/number_of_valid_search", "rollout/searches"),
        ("verl", "val/nq/test_score", "eval/nq/score"),
        ("verl", "val-core/nq/reward/mean@4", "eval/nq/score"),
        ("verl", "val-core/nq/acc/mean_at_4", "eval/nq/score"),
        ("verl", "val-core/nq/acc/best@4/mean", "val-core/nq/acc/best@4/mean"),
        ("verl", "val-aux/nq/reward/mean@4", "eval/nq/score"),
        ("verl", "val/test_score/nq", "eval/nq/score"),
        ("trl", "critic/score/mean", "critic/score/mean"),
        ("verl", "actor/holdfast/ratio/max", "ratio/max"),
        ("prime-rl", "holdfast/penalty/active_fraction/mean", "penalty/active_fraction"),
        ("holdfast", "penalty/mean_decrease", "penalty/mean_decrease"),
        ("trl", "holdfast/sampler/mask_mass", "sampler/mask_mass"),
        ("verl", "actor/holdfast/penalty/mean_decrease", "penalty/mean_decrease"),
        ("unknown", "train/reward", "train/reward"),
    ],
)
def test_one_name(host: str, name: str, ours: str) -> None:
    assert translation(host, [name])[name].ours == ours


@pytest.mark.parametrize(
    ("host", "first", "second", "ours"),
    [
        ("trl", "reward/mean", "reward", "reward/mean"),
        ("trl", "completions/mean_length", "completion_length", "rollout/length"),  # an old name
        ("verl", "val-core/nq/acc/mean@4", "val-aux/nq/reward/mean@4", "eval/nq/score"),  # the core score
    ],
)
def test_of_two_names_of_one_series_the_other_keeps_its_own(host: str, first: str, second: str, ours: str) -> None:
    both = translation(host, [second, first])
    assert (both[first].ours, both[second].ours) == (ours, second)


def test_no_two_names_become_one_series() -> None:
    names = ["reward", "holdfast/reward/mean", "train/reward", "reward/mean", "eval_reward", "eval/reward"]
    result = translation("trl", names)
    assert set(result) == set(names)
    assert len({target.ours for target in result.values()}) == len(names)
    assert result["holdfast/reward/mean"].ours == "reward/mean"
    assert translation("trl", reversed(names)) == result
    doubtful = translation("verl", ["actor/entropy"], doubtful=["actor/entropy"])
    assert doubtful["actor/entropy"].ours == "actor/entropy"


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("roll", ("critic/score/mean", "critic/rewards/mean", "actor/lr", "actor/ppo_ratio_clipfrac", "actor/kl_loss")),
        ("areal", ("ppo_actor/task_reward/avg", "ppo_actor/update/entropy/avg", "timeperf/rollout")),
        ("open-instruct", ("scores", "objective/verifiable_reward", "policy/entropy_avg", "policy/clipfrac_avg", "lr")),
        ("rllm", ("reward/default/mean", "train/entropy", "progress/lr", "episode/num_turns")),
        ("verl", ("critic/score/mean", "actor/entropy", "batch/solve_none", "reward/default/mean")),  # rLLM on verl
        ("verl", ("critic/score/mean", "actor/entropy_loss", "env/number_of_valid_search")),  # Search-R1
        ("openrlhf", ("train/reward", "train/response_length", "train/kl", "train/actor_lr", "train/global_step")),
        ("skyrl", ("reward/avg_raw_reward", "policy/grad_norm", "async/staleness_mean")),
        ("unknown", ("reward", "loss", "step_reward")),
    ],
)
def test_a_log_is_called_by_its_trainer(host: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """Also where it has names of verl and TRL, and in each form that it may have."""
    assert host_of(names) == host
    rows = [dict.fromkeys(names, i / 10) for i in range(1, 4)]
    flat = [{"step": i, **row} for i, row in enumerate(rows)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in flat))
    (tmp_path / "file.jsonl").write_text(
        "".join(f"{json.dumps({'step': i, 'data': row})}\n" for i, row in enumerate(rows))
    )
    lines = (" - ".join([f"step:{i}", *(f"{name}:{row[name]}" for name in row)]) for i, row in enumerate(rows))
    (tmp_path / "run.log").write_text("".join(f"{line}\n" for line in lines))
    for name in ("rows.jsonl", "file.jsonl", "run.log"):
        assert read_log(tmp_path / name).host == host, name


def test_a_share_in_percent_is_a_share() -> None:
    assert CHANGES["x / 100"](np.array([0.5, 40.0])).tolist() == [0.005, 0.4]
    assert (
        translation("nemo-rl", ["train/baseline_reward/pct_mixed"])["train/baseline_reward/pct_mixed"].change
        == "x / 100"
    )


def series(*values: float) -> Series:
    return Series(np.arange(len(values)), np.array(values, float))


AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
LENGTHS = tuple(f"completions/{name}" for name in ("clipped_ratio", "min_length", "max_length"))


@pytest.mark.parametrize(
    ("host", "names", "values", "settings", "doubtful"),
    [
        ("verl", ("response_length/clip_ratio",), ((0.1, 0.2),), {}, True),
        ("verl", ("response_length/clip_ratio",), ((0.1, 0.0),), {}, False),
        ("trl", LENGTHS[:1], ((1.0, 1.0),), {}, True),
        ("trl", LENGTHS[:1], ((1.0, 0.9),), {}, False),
        ("verl", ("actor/entropy",), ((1.0,),), {AGGREGATION: "token-sum"}, True),
        ("verl", ("actor/entropy",), ((1.0,),), {AGGREGATION: "seq-mean-token-mean"}, False),
        ("verl", ("actor/entropy",), ((1.0,),), {}, False),
        ("trl", ("response_length/clip_ratio",), ((0.1,),), {}, False),
        ("trl", LENGTHS, ((1.0, 1.0), (16.0, 16.0), (16.0, 16.0)), {}, False),  # a limit ends them all
        ("trl", LENGTHS, ((1.0, 1.0), (16.0, 9.0), (16.0, 16.0)), {}, True),  # they end by themselves
        ("trl", LENGTHS, ((0.9, 1.0), (16.0, 9.0), (16.0, 16.0)), {}, True),  # one in an end-of-text token, by chance
        ("trl", LENGTHS, ((0.9, 0.9), (9.0, 9.0), (16.0, 16.0)), {}, False),
    ],
)
def test_doubts(
    host: str,
    names: tuple[str, ...],
    values: tuple[tuple[float, ...], ...],
    settings: dict[str, object],
    doubtful: bool,
) -> None:
    log = {name: series(*of_name) for name, of_name in zip(names, values, strict=True)}
    assert bool(HOSTS[host].doubtful(log, settings)) is doubtful


@pytest.mark.parametrize(
    ("logged", "of_groups"),
    [
        ({"reward_std": (0.2,), "rewards/em": (0.5,)}, True),  # before 0.17
        ({"reward_std": (0.2, 0.3), "rewards/em/std": (0.5, 0.4)}, True),  # before 0.27
        ({"reward_std": (0.5, 0.4), "rewards/em/std": (0.5, 0.4)}, False),
        ({"reward_std": (0.2,), "rewards/em/std": (0.5,), "rewards/format/std": (0.1,)}, False),
        ({"reward": (0.2,)}, False),
    ],
)
def test_the_deviation_of_groups_and_of_the_batch(logged: dict[str, tuple[float, ...]], of_groups: bool) -> None:
    rows = HOSTS["trl"].by_version({name: series(*values) for name, values in logged.items()})
    assert bool(rows) is of_groups
    if "reward_std" in logged:
        ours = translation("trl", logged, instead=rows)["reward_std"].ours
        assert ours == ("reward/group_std" if of_groups else "reward/std")


@pytest.mark.parametrize(
    ("names", "host"),
    [
        (["train/reward", "train/entropy", "train/global_step"], "trl"),
        (["actor/entropy", "critic/score/mean", "reward"], "verl"),
        (["reward/mean", "entropy/mean", "lr"], "holdfast"),
        (["holdfast/reward/mean", "train/loss"], "trl"),
        (["env/all/reward/total", "optim/lr"], "tinker"),
        (["rollout/raw_reward", "rollout/truncated_ratio"], "slime"),
        (["entropy/all/mean", "optim/lr"], "prime-rl"),
        (["policy/policy_entropy", "reward/avg_raw_reward"], "skyrl"),
        (["reward", "kl", "actor_grad_norm"], "openrlhf"),
        (["accuracy", "perplexity"], "unknown"),
        (["reward", "loss", "lr"], "unknown"),
        (["reward_mean", "reward_std", "kl"], "unknown"),
        ([], "unknown"),
    ],
)
def test_the_host_by_its_names(names: list[str], host: str) -> None:
    assert host_of(names) == host


def test_the_score_of_ppo_is_the_reward_whatever_its_kl_penalty_takes_from_it(tmp_path: Path) -> None:
    same = {"objective/scores": 0.5, "policy/entropy_avg": 0.5, "lr": 1e-6}
    rows = [{"step": i, "objective/rlhf_reward": 0.5 - 0.1 * i, "objective/kl": 2.0 * i, **same} for i in range(8)]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    log = read_log(tmp_path / "log.jsonl")
    assert log.host == "trl" and set(log.series["reward/mean"].values) == {0.5} and "kl/reference" not in log.series


def test_an_event_file_is_named_after_its_folder_only_if_it_is_alone(tmp_path: Path) -> None:
    first = tmp_path / "run" / "events.out.tfevents.1.host"
    first.parent.mkdir()
    shutil.copy(next((LOGS / "tensorboard" / "calm-sun-1").glob("events*")), first)
    assert read_log(first).name == "run"
    shutil.copy(first, first.with_name("events.out.tfevents.2.host"))
    assert read_log(first).name == "events.out.tfevents.1"
