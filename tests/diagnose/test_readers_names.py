"""The tables of names, against our glossary, against what the trainers logged, and against the page that shows them."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from holdfast.base.glossary import METRICS
from holdfast.diagnose.log import Series
from holdfast.diagnose.readers.names import (
    SHARES,
    ambiguous_names,
    by_version,
    host_of,
    is_share,
    translation,
)
from holdfast.hosts import HOSTS
from holdfast.hosts.host import CHANGES, Name
from holdfast.hosts.ours import FORMER

ROOT = Path(__file__).parents[2]
TABLES = {host: HOSTS[host].series for host in HOSTS if HOSTS[host].series}
MORE = {host: HOSTS[host].more for host in HOSTS if HOSTS[host].more}
LEFT_ALONE = {host: HOSTS[host].left_alone for host in HOSTS if HOSTS[host].left_alone}
LOGS = ROOT / "tests" / "fixtures" / "logs"
PAGE = ROOT / "docs" / "reference" / "logs.md"


def logged(host: str) -> set[str]:
    """Every name in the logs that this trainer wrote for us."""
    if host == "verl":
        rows = [json.loads(line)["data"] for line in (LOGS / "verl-file.jsonl").read_text().splitlines()]
    else:
        rows = json.loads((LOGS / "trl-stock/checkpoint-6/trainer_state.json").read_text())["log_history"]
    return {name for row in rows for name in row}


# These need tools or a critic, which the logs of the fixtures had none of; test_the_source_has_the_rest looks for them.
NOT_LOGGED = {
    "trl": {
        "tools/call_frequency",
        "tools/failure_frequency",
        "sampling/sampling_logp_difference/mean",
        "sampling/importance_sampling_ratio/mean",
        "rewards/<function>/mean",
    },
    "verl": {
        "tool_call_counts/mean",
        "num_turns/mean",
        "critic/values/mean",
        "critic/vf_explained_var",
        "critic/vf_loss",
        "critic/vf_clipfrac",
        "critic/vpred_mean",
    },
}


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_every_name_of_a_table_is_one_the_trainer_logs(host: str) -> None:
    table = {name.host for name in TABLES[host]} | set(LEFT_ALONE[host])
    assert table - logged(host) == NOT_LOGGED[host]


@pytest.mark.parametrize(("host", "package"), [("trl", "trl"), ("verl", "verl")])
def test_the_source_has_the_rest(host: str, package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    folder = Path(next(iter(find_spec(package).submodule_search_locations)))  # type: ignore[union-attr,arg-type]
    inside = {"trl": ["trainer/grpo_trainer.py"], "verl": ["trainer/ppo/metric_utils.py", "workers/utils/losses.py"]}[
        host
    ]
    source = "".join((folder / name).read_text() for name in inside)
    for name in NOT_LOGGED[host]:
        assert name in source or re.sub(r"<function>", "{reward_func_name}", name) in source, name


def test_every_target_is_in_the_glossary_and_has_one_source() -> None:
    for table in TABLES.values():
        assert {name.ours for name in table} <= set(METRICS)
        assert len({name.ours for name in table}) == len({name.host for name in table}) == len(table)
        assert all(name.change in CHANGES for name in table)
    assert {name.ours for names in MORE.values() for name in names} <= set(METRICS)
    assert set(SHARES) <= set(METRICS)
    for host, names in LEFT_ALONE.items():
        assert not {name.host for name in TABLES[host]} & set(names)


def test_the_changes() -> None:
    x = np.array([0.25, np.nan])
    assert np.array_equal(CHANGES["1 − x"](x), [0.75, np.nan], equal_nan=True)
    assert np.array_equal(CHANGES["x"](x), x, equal_nan=True)


@pytest.mark.parametrize(
    ("host", "name", "ours"),
    [
        ("trl", "reward", "reward/mean"),
        ("trl", "train/reward", "reward/mean"),
        ("trl", "eval_reward", "eval/reward/mean"),
        ("trl", "eval/holdfast/reward/em", "eval/reward/em"),
        ("trl", "holdfast/penalty/mean_decrease", "penalty/mean_decrease"),
        ("trl", "train/something_else", "something_else"),
        ("trl", "completion_length", "rollout/length"),
        ("trl", "train/completion_length", "rollout/length"),
        ("trl", "eval_completion_length", "eval/rollout/length"),
        ("trl", "clip_ratio", "clip/fraction"),
        ("trl", "rewards/format", "rewards/format/mean"),
        ("trl", "train/rewards/format", "rewards/format/mean"),
        ("trl", "rewards/format/std", "rewards/format/std"),
        ("verl", "actor/entropy_loss", "entropy/mean"),
        ("verl", "actor/reward_kl_penalty", "kl/reference"),
        ("prime-rl", "mismatch_kl/all/mean", "sampler/mismatch_kl"),
        ("prime-rl", "train/agg/effective/solver/reward/mean", "reward/mean"),
        ("prime-rl", "train/agg/effective/solver/num_turns/mean", "rollout/turns"),
        ("prime-rl", "train/agg/effective/solver/num_branches/mean", "train/agg/effective/solver/num_branches/mean"),
        ("prime-rl", "off_policy/mean", "rollout/staleness"),
        ("prime-rl", "off_policy_level/all/mean", "rollout/staleness"),
        ("prime-rl", "batch/solve_all", "rollout/all_correct_fraction"),
        ("prime-rl", "eval/aime/effective/solver/avg@16", "eval/aime/score"),
        ("prime-rl", "eval/aime/all/solver/avg@16", "eval/aime/all/solver/avg@16"),
        ("tinker", "env/all/by_group/frac_all_bad", "rollout/all_wrong_fraction"),
        ("tinker", "test/env/all/reward/total", "eval/test/score"),
        ("slime", "eval/aime-2024", "eval/aime-2024/score"),
        ("slime", "eval/aime-2024-truncated_ratio", "eval/aime-2024-truncated_ratio"),
        ("skyrl", "eval/nq/avg_score", "eval/nq/score"),
        ("openrlhf", "eval_nq_pass1", "eval/nq/score"),
        ("verl", "val-core/nq/reward/mean@4", "eval/nq/score"),
        ("verl", "val-core/nq/acc/mean_at_4", "eval/nq/score"),
        ("verl", "val-core/nq/acc/best@4/mean", "val-core/nq/acc/best@4/mean"),
        ("verl", "val-aux/nq/reward/mean@4", "eval/nq/score"),
        ("verl", "val/test_score/nq", "eval/nq/score"),
        ("verl", "num_turns/mean", "rollout/turns"),
        ("verl", "rollout_corr/rollout_is_mean", "sampler/importance_ratio"),
        ("trl", "tools/failure_frequency", "rollout/failed_call_fraction"),
        ("trl", "sample/staleness_mean", "rollout/staleness"),
        ("trl", "num_turns", "rollout/turns"),
        ("trl", "rollout_correction/is_weight_mean", "sampler/importance_ratio"),
        ("tinker", "env/all/reward/total", "reward/mean"),
        ("slime", "train/kl_loss", "kl/reference"),
        ("slime", "rollout/repetition_frac", "rollout/looping_fraction"),
        ("skyrl", "policy/ppo_clip_ratio", "clip/fraction"),
        ("openrlhf", "train/actor_grad_norm", "grad/norm"),
        ("verl", "completion_length", "completion_length"),
        ("trl", "critic/score/mean", "critic/score/mean"),
        ("verl", "actor/holdfast/ratio/max", "ratio/max"),
        ("prime-rl", "holdfast/penalty/active_fraction/mean", "penalty/active_fraction"),
        ("prime-rl", "holdfast/ratio/mean/mean", "ratio/mean"),
        ("slime", "train/holdfast/penalty/preserved_fraction", "penalty/preserved_fraction"),
        ("verl", "reward", "reward"),
        ("holdfast", "reward/mean", "reward/mean"),
        ("holdfast", "penalty/drop", "penalty/mean_decrease"),
        ("trl", "holdfast/sampler/mass_kept", "sampler/mask_mass"),
        ("verl", "actor/holdfast/penalty/drop", "penalty/mean_decrease"),
        ("verl", "penalty/drop", "penalty/drop"),
        ("unknown", "reward", "reward"),
        ("unknown", "train/reward", "train/reward"),
    ],
)
def test_one_name(host: str, name: str, ours: str) -> None:
    assert translation(host, [name])[name].ours == ours


def test_beside_the_new_name_an_old_one_keeps_its_own() -> None:
    both = translation("trl", ["completion_length", "completions/mean_length"])
    assert both["completions/mean_length"].ours == "rollout/length"
    assert both["completion_length"].ours == "completion_length"


def test_former_names_become_metrics_of_the_glossary() -> None:
    assert set(FORMER.values()) <= set(METRICS) and not set(FORMER) & set(METRICS)


def test_no_two_names_become_one_series() -> None:
    names = ["reward", "holdfast/reward/mean", "train/reward", "reward/mean", "eval_reward", "eval/reward"]
    result = translation("trl", names)
    assert set(result) == set(names)
    assert len({target.ours for target in result.values()}) == len(names)
    assert result["holdfast/reward/mean"].ours == "reward/mean"
    assert translation("trl", reversed(names)) == result
    both = translation("trl", ["reward", "reward/mean"])
    assert (both["reward/mean"].ours, both["reward"].ours) == ("reward/mean", "reward")


def test_a_doubtful_name_stays() -> None:
    assert translation("verl", ["actor/entropy"], doubtful=["actor/entropy"])["actor/entropy"].ours == "actor/entropy"


def series(*values: float) -> Series:
    return Series(np.arange(len(values)), np.array(values, float))


@pytest.mark.parametrize(
    ("host", "name", "values", "settings", "doubtful"),
    [
        ("verl", "response_length/clip_ratio", (0.1, 0.2), {}, True),
        ("verl", "response_length/clip_ratio", (0.1, 0.0), {}, False),
        ("trl", "completions/clipped_ratio", (1.0, 1.0), {}, True),
        ("trl", "train/completions/clipped_ratio", (1.0, 1.0), {}, True),
        ("trl", "completions/clipped_ratio", (1.0, 0.9), {}, False),
        ("verl", "actor/entropy", (1.0,), {"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum"}, True),
        ("verl", "actor/entropy", (1.0,), {"actor_rollout_ref.actor.loss_agg_mode": "token-sum"}, True),
        ("verl", "actor/kl_loss", (1.0,), {"actor_rollout_ref.actor.loss_agg_mode": "token-sum"}, True),
        ("verl", "actor/entropy", (1.0,), {"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean"}, False),
        ("verl", "actor/entropy", (1.0,), {}, False),
        ("trl", "response_length/clip_ratio", (0.1,), {}, False),
    ],
)
def test_doubts(host: str, name: str, values: tuple[float, ...], settings: dict[str, object], doubtful: bool) -> None:
    assert bool(ambiguous_names(host, {name: series(*values)}, settings)) is doubtful


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
    rows = by_version("trl", {name: series(*values) for name, values in logged.items()})
    assert bool(rows) is of_groups
    if "reward_std" in logged:
        ours = translation("trl", logged, instead=rows)["reward_std"].ours
        assert ours == ("reward/group_std" if of_groups else "reward/std")


@pytest.mark.parametrize(
    ("clipped", "shortest", "doubtful"),
    [
        ((1.0, 1.0), (16.0, 16.0), False),  # a limit ends them all
        ((1.0, 1.0), (16.0, 9.0), True),  # they end by themselves
        ((0.9, 1.0), (16.0, 9.0), True),  # one of them in an end-of-text token, by chance
        ((0.9, 0.9), (9.0, 9.0), False),
    ],
)
def test_rollouts_that_a_limit_has_cut_are_equally_long(
    clipped: tuple[float, ...], shortest: tuple[float, ...], doubtful: bool
) -> None:
    values = {"clipped_ratio": clipped, "min_length": shortest, "max_length": (16.0, 16.0)}
    log = {f"completions/{name}": series(*value) for name, value in values.items()}
    assert bool(ambiguous_names("trl", log, {})) is doubtful


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
        ([], "unknown"),
    ],
)
def test_the_host_by_its_names(names: list[str], host: str) -> None:
    assert host_of(names) == host


def test_a_share_is_one_in_an_evaluation_too() -> None:
    assert is_share("clip/fraction") and is_share("eval/clip/fraction") and is_share("eval/em")
    assert not is_share("reward/mean") and not is_share("ratio/max")


def rows_of(table: tuple[Name, ...]) -> str:
    """A table of names in Markdown, as docs/reference/logs.md has it."""
    lines = ["| its name | ours | |\n|---|---|---|\n"]
    for name in table:
        ours = f"`{name.ours}`" + (f" = {name.change}" if name.change != "x" else "")
        lines.append(f"| `{name.host}` | {ours} | {name.differs} |\n")
    return "".join(lines)


def left_of(host: str) -> str:
    return "".join(f"| `{name}` | {why} |\n" for name, why in LEFT_ALONE[host].items())


@pytest.mark.parametrize(("host", "table"), TABLES.items())
def test_the_page_shows_the_tables(host: str, table: tuple[Name, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rows_of(table) in page, f"docs/reference/logs.md lacks this table:\n{rows_of(table)}"


@pytest.mark.parametrize("host", MORE)
def test_the_page_shows_the_other_names(host: str) -> None:
    assert rows_of(MORE[host]) in PAGE.read_text(encoding="utf-8")


def test_the_core_score_of_a_dataset_comes_before_others() -> None:
    both = translation("verl", ["val-aux/nq/reward/mean@4", "val-core/nq/acc/mean@4"])
    assert both["val-core/nq/acc/mean@4"].ours == "eval/nq/score"
    assert both["val-aux/nq/reward/mean@4"].ours == "val-aux/nq/reward/mean@4"


@pytest.mark.parametrize("host", LEFT_ALONE)
def test_the_page_shows_what_is_left_alone(host: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert left_of(host) in page, f"docs/reference/logs.md lacks these rows:\n{left_of(host)}"


def test_an_infinite_deviation_is_compared_without_a_warning() -> None:
    steps = np.arange(1, 4)
    infinite = Series(steps, np.array([0.5, np.inf, 0.25]))
    with np.errstate(all="raise"):
        assert by_version("trl", {"reward_std": infinite, "rewards/correct/std": infinite}) == ()
