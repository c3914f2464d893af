"""Each loss under real ActorConfigs: base + coef × penalty, value and gradient, against loops written out here."""

from __future__ import annotations

import itertools
import logging
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl")

from verl.trainer.ppo import core_algos
from verl.utils.metric import AggregationType, Metric, reduce_metrics

from holdfast.adapters.verl import LOSSES, HoldfastPolicyLossConfig
from holdfast.errors import ConfigError
from holdfast.metrics import METRICS

Batch = dict[str, Tensor]
MakeConfig = Callable[..., Any]

ROOT = Path(__file__).parents[3]
MODES = ["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
BASES = ["vanilla", "gspo", "sapo", "cispo", "geo_mean", "gpg", "dppo_tv", "bypass_mode"]
PENALTIES = [name for name in LOSSES if name != "holdfast_observe"]
GLOBAL = {"dp_size": 2, "batch_num_tokens": 61, "global_batch_size": 9, "loss_scale_factor": 20}


def call(name: str, config: Any, batch: Batch, **changed: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """(loss, gradient of the log-probs, metrics), called as verl's `ppo_loss` calls."""
    new = batch["log_prob"].clone().requires_grad_()
    arguments = {**batch, "log_prob": new, "rollout_is_weights": None, **changed}
    loss, metrics = core_algos.get_policy_loss_fn(name)(**arguments, loss_agg_mode=config.loss_agg_mode, config=config)
    (gradient,) = torch.autograd.grad(loss, new)
    return loss.detach(), gradient, metrics


def naive_penalty(name: str, batch: Batch, *, threshold: float = 0.0, tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """(penalty, its derivative by the new log-prob) per token, in Python numbers, from the papers."""
    old, new, advantages, mask = (
        batch[k].tolist() for k in ("old_log_prob", "log_prob", "advantages", "response_mask")
    )
    value, slope = torch.zeros(5, 7, dtype=torch.float64), torch.zeros(5, 7, dtype=torch.float64)
    for i in range(5):
        actions = [list(run) for inside, run in itertools.groupby(range(7), key=lambda t: mask[i][t]) if inside]
        if name == "holdfast_llds_response":
            actions = [[t for action in actions for t in action]]
        if name == "holdfast_lld":
            actions = [[t] for action in actions for t in action]
        for action in actions:
            if name == "holdfast_search_sapo":
                for t in action:
                    ratio = math.exp(new[i][t] - old[i][t])
                    if advantages[i][t] > 0 and ratio < tau:
                        value[i, t], slope[i, t] = old[i][t] - new[i][t], -1.0
                continue
            kept = [t for t in action if advantages[i][t] >= 0]
            if sum(old[i][t] - new[i][t] - threshold for t in kept) <= 0:
                continue
            for t in kept:
                if old[i][t] - new[i][t] > threshold:
                    value[i, t], slope[i, t] = old[i][t] - new[i][t], -1.0
    return value, slope


def token_weights(mode: str, mask: Tensor, info: dict[str, Any]) -> Tensor:
    """What a token's value is multiplied by in the reduction: verl's documentation of its modes, [5, 7]."""
    tokens = info.get("batch_num_tokens") or int(mask.sum())
    rows = info.get("global_batch_size") or int(mask.any(-1).sum())
    ranks = info.get("dp_size", 1)
    lengths = mask.sum(-1, keepdim=True).double()
    each = {
        "token-mean": torch.full_like(lengths, ranks / tokens),
        "token-sum": torch.full_like(lengths, float(ranks)),
        "seq-mean-token-sum": torch.full_like(lengths, ranks / rows),
        "seq-mean-token-mean": ranks / rows / (lengths + 1e-8),
        "seq-mean-token-sum-norm": torch.full_like(lengths, ranks / rows / (info.get("loss_scale_factor") or 7)),
    }[mode]
    return each * mask


@pytest.mark.parametrize("info", [{}, GLOBAL], ids=["local", "global"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", BASES)
def test_value_and_gradient_are_base_plus_penalty(
    actor_config: MakeConfig, batch: Batch, base: str, mode: str, info: dict[str, Any]
) -> None:
    weights = token_weights(mode, batch["response_mask"], info)
    plain, plain_gradient, _ = call(
        base, actor_config(base, actor={"loss_agg_mode": mode, "global_batch_info": info}), batch
    )
    for name in PENALTIES:
        config = actor_config(
            base, loss_mode=name, penalty_coef=0.7, actor={"loss_agg_mode": mode, "global_batch_info": info}
        )
        value, slope = naive_penalty(name, batch)
        assert value.any()
        loss, gradient, _ = call(name, config, batch)
        torch.testing.assert_close(loss, plain + 0.7 * (value * weights).sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + 0.7 * slope * weights, rtol=0, atol=1e-6)


def test_the_reference_tells_the_losses_apart(batch: Batch) -> None:
    values = [float(naive_penalty(name, batch)[0].sum()) for name in PENALTIES]
    assert len({round(value, 6) for value in values}) == len(PENALTIES)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", [*BASES, "dppo_kl"])
@pytest.mark.parametrize("name", LOSSES)
def test_observing_and_a_weight_of_zero_change_not_one_bit(
    actor_config: MakeConfig, batch: Batch, name: str, base: str, mode: str
) -> None:
    batch = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    fields = {} if name == "holdfast_observe" else {"penalty_coef": 0.0}
    config = actor_config(base, loss_mode=name, actor={"loss_agg_mode": mode, "global_batch_info": GLOBAL}, **fields)
    plain, plain_gradient, plain_metrics = call(base, config, batch)
    loss, gradient, metrics = call(name, config, batch)
    assert torch.equal(loss, plain) and torch.equal(gradient, plain_gradient)
    assert {key: metrics[key] for key in plain_metrics} == plain_metrics
    more = call("holdfast_llds", actor_config(base, actor={"loss_agg_mode": mode, "global_batch_info": GLOBAL}), batch)
    assert not torch.equal(more[0], plain)


@pytest.fixture
def silent_base() -> Any:
    """A base loss that is 0 and reads nothing, so that what is left is ours."""
    core_algos.register_policy_loss("silent")(lambda log_prob, **_: (0.0 * log_prob.nan_to_num(0, 0, 0).sum(), {}))
    yield "silent"
    del core_algos.POLICY_LOSS_REGISTRY["silent"]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", LOSSES)
def test_what_is_outside_the_mask_is_not_read(
    actor_config: MakeConfig, batch: Batch, silent_base: str, name: str, poison: float
) -> None:
    config = actor_config(silent_base, loss_mode=name)
    poisoned = {
        key: value if key == "response_mask" else torch.where(batch["response_mask"], value, poison)
        for key, value in batch.items()
    }
    clean, dirty = call(name, config, batch), call(name, config, poisoned)
    assert torch.equal(clean[0], dirty[0]) and torch.equal(clean[1], dirty[1])
    assert clean[2] == dirty[2] and all(map(math.isfinite, dirty[2].values()))
    assert name == "holdfast_observe" or clean[0] > 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("cuts", [[0, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_micro_batches_add_up(actor_config: MakeConfig, batch: Batch, name: str, mode: str, cuts: list[int]) -> None:
    config = actor_config(loss_mode=name, actor={"loss_agg_mode": mode, "global_batch_info": GLOBAL})
    whole, gradient, _ = call(name, config, batch)
    parts = [call(name, config, {k: v[a:b] for k, v in batch.items()}) for a, b in itertools.pairwise(cuts)]
    torch.testing.assert_close(sum(p[0] for p in parts), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), gradient, rtol=0, atol=1e-12)


def test_importance_weights_of_the_rollout_are_the_bases_alone(actor_config: MakeConfig, batch: Batch) -> None:
    weights = torch.linspace(0.2, 2.0, 35, dtype=torch.float64).view(5, 7)
    added = {}
    for name, of in (("plain", None), ("weighted", weights)):
        config = actor_config()
        base = call("vanilla", config, batch, rollout_is_weights=of)[0]
        added[name] = call("holdfast_llds", config, batch, rollout_is_weights=of)[0] - base
    assert not torch.equal(base, call("vanilla", actor_config(), batch)[0])
    torch.testing.assert_close(added["weighted"], added["plain"], rtol=0, atol=1e-12)


def test_the_first_step_is_exactly_the_base(actor_config: MakeConfig, batch: Batch) -> None:
    same = batch | {"log_prob": batch["old_log_prob"]}
    for name in PENALTIES:
        config = actor_config(loss_mode=name)
        assert torch.equal(call(name, config, same)[1], call("vanilla", config, same)[1])


def test_a_threshold_and_a_tau_are_read(actor_config: MakeConfig, batch: Batch) -> None:
    for name, fields in (("holdfast_lld", {"threshold": 0.3}), ("holdfast_search_sapo", {"tau": 0.8})):
        config = actor_config(loss_mode=name, penalty_coef=1.0, **{f"penalty_{k}": v for k, v in fields.items()})
        added = call(name, config, batch)[0] - call("vanilla", config, batch)[0]
        plain, tuned = naive_penalty(name, batch)[0], naive_penalty(name, batch, **fields)[0]
        torch.testing.assert_close(added, tuned.sum() / batch["response_mask"].sum(), rtol=0, atol=1e-9)
        assert not torch.equal(plain, tuned)


def test_the_preserving_rule_is_read(actor_config: MakeConfig, batch: Batch) -> None:
    """Row 1 has A = 0: protected by `nonnegative`, not by `positive`."""
    pulls = {}
    for rule in ("nonnegative", "positive"):
        config = actor_config(penalty_preserve=rule)
        pulls[rule] = (call("holdfast_llds", config, batch)[1] - call("vanilla", config, batch)[1]).abs().sum(-1)
    assert pulls["nonnegative"][1] > 0 and pulls["positive"][1] == 0
    assert pulls["positive"][0] == pulls["nonnegative"][0] > 0


def test_without_our_config_class_the_papers_values_count(batch: Batch) -> None:
    from verl.workers.config import ActorConfig, PolicyLossConfig

    sizes = {"strategy": "fsdp", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4, "rollout_n": 1}
    for name, coef in (("holdfast_llds", 0.2), ("holdfast_search_sapo", 0.1)):
        config = ActorConfig(**sizes, policy_loss=PolicyLossConfig(loss_mode=name))
        added = call(name, config, batch)[0] - call("vanilla", config, batch)[0]
        expected = coef * naive_penalty(name, batch)[0].sum() / batch["response_mask"].sum()
        torch.testing.assert_close(added, expected, rtol=0, atol=1e-12)


# ---- the log


def test_the_series_say_what_happened(actor_config: MakeConfig, batch: Batch) -> None:
    config = actor_config(actor={"global_batch_info": GLOBAL})
    metrics = call("holdfast_llds", config, batch)[2]
    old, new, mask = batch["old_log_prob"], batch["log_prob"], batch["response_mask"]

    def mean(values: Tensor, rows: list[int]) -> float:
        return sum(float(values[i][mask[i]].mean()) for i in rows) / len(rows)

    kept = mask & (batch["advantages"] >= 0)  # rows 0, 1 and 3
    drop = (old - new).clamp(min=0)
    expected = {
        "likelihood/positive": mean(old, [0, 3]),
        "likelihood/negative": mean(old, [2]),
        "drift/positive": mean(new - old, [0, 3]),
        "drift/negative": mean(new - old, [2]),
        "penalty/preserved_share": float(kept.sum() / mask.sum()),
        "penalty/drop": float(drop[kept].mean()),
        "penalty/active_fraction": float((naive_penalty("holdfast_llds", batch)[0] > 0).sum() / kept.sum()),
        "ratio/mean": float((new - old).exp()[mask].mean()),
        "ratio/max": float((new - old).exp()[mask].max()),
        # own denominator: 0.2 · penalty / tokens
        "loss/penalty": 0.2 * float(naive_penalty("holdfast_llds", batch)[0].sum() / mask.sum()),
    }
    for name, value in expected.items():
        assert metrics[f"holdfast/{name}"] == pytest.approx(value), name
    assert {name.removeprefix("holdfast/") for name in metrics if name.startswith("holdfast/")} <= set(METRICS)


@pytest.mark.parametrize("name", LOSSES)
def test_every_micro_batch_has_the_same_finite_series(actor_config: MakeConfig, batch: Batch, name: str) -> None:
    """As verl puts them together: per micro-batch a Metric of kind MEAN, over ranks, over mini-batches."""
    config = actor_config(loss_mode=name, actor={"global_batch_info": GLOBAL})
    rows = [[0, 1], [2], [4], [3, 2]]  # only negative ones, only an empty one
    numbers = [call(name, config, {k: v[i] for k, v in batch.items()})[2] for i in rows]
    assert len({tuple(sorted(n)) for n in numbers}) == 1
    assert all(math.isfinite(value) for n in numbers for value in n.values() if not isinstance(value, Tensor))
    ranks: list[dict[str, Any]] = []
    for rank in (numbers[:2], numbers[2:]):
        merged = {key: Metric(AggregationType.MEAN) for key in rank[0]}
        for one in rank:
            for key, metric in Metric.from_dict(one, AggregationType.MEAN).items():
                merged[key].append(metric)
        ranks.append(merged)
    reduced = reduce_metrics({key: [Metric.aggregate_dp([rank[key] for rank in ranks])] for key in numbers[0]})
    # two micro-batches without a positive rollout repeat what was seen last
    seen = [n["holdfast/likelihood/positive"] for n in numbers]
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert reduced["holdfast/likelihood/positive"] == pytest.approx(sum(seen) / 4)


def test_a_penalty_that_never_acts_is_said_once(
    actor_config: MakeConfig, batch: Batch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.adapters import verl as adapter
    from holdfast.adapters import verl_term

    monkeypatch.setattr(verl_term, "_PATIENCE", 3)
    same = batch | {"log_prob": batch["old_log_prob"]}
    arguments = {"loss_agg_mode": "token-mean", "config": actor_config()}
    inert, live = adapter._Loss("holdfast_llds"), adapter._Loss("holdfast_llds")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            inert(**same, **arguments)
            live(**same, **arguments)
        assert not caplog.records
        live(**batch, **arguments)
        for _ in range(5):
            inert(**same, **arguments)
            live(**same, **arguments)
    (record,) = caplog.records
    assert "PEN001: holdfast_llds was zero in all of 3 micro-batches" in record.getMessage()
    assert "ppo_mini_batch_size to half of data.train_batch_size" in record.getMessage()


# ---- registration


def run_python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`folder` holds the metadata of an installed holdfast, with the entry points that pyproject.toml declares."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "holdfast-0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items()]
    (info / "entry_points.txt").write_text("".join(lines))
    paths = os.pathsep.join([str(folder), str(ROOT / "src")])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


SHOW = (
    "import verl\nfrom verl.trainer.ppo.core_algos import get_policy_loss_fn as get\nprint(type(get({!r})).__module__)"
)


@pytest.mark.parametrize(
    "environment",
    [{}, {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "holdfast.adapters.verl"}],
    ids=["entry point", "environment"],
)
def test_verl_finds_the_losses_by_itself(tmp_path: Path, environment: dict[str, str]) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, **environment)
    assert done.stdout.split() == ["holdfast.adapters.verl"], done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
    assert said == [f"holdfast: policy losses registered with verl 0.9.1: {', '.join(LOSSES)}"]


def test_without_the_plugin_verl_knows_none(tmp_path: Path) -> None:
    done = run_python(SHOW.format("holdfast_llds"), tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert done.returncode != 0 and "Unsupported loss mode: holdfast_llds" in done.stderr


def test_another_version_is_refused_aloud(tmp_path: Path) -> None:
    code = "import verl, sys\nverl.__version__ = '0.10.0'\nimport holdfast.adapters.verl"
    done = run_python(code, tmp_path, VERL_USE_EXTERNAL_PLUGINS="none")
    assert (
        "holdfast: no losses registered: verl 0.10.0 is installed, but holdfast.adapters.verl needs 0.9" in done.stderr
    )
    assert "ConfigError" in done.stderr and done.returncode != 0


def test_verls_own_sapo_stays_its_own() -> None:
    assert core_algos.get_policy_loss_fn("sapo") is core_algos.compute_policy_loss_sapo
    assert "sapo" not in LOSSES


# ---- what is refused

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown base": ({"base_loss_mode": "vanila"}, "'vanila' is no registered policy loss; did you mean 'vanilla'?"),
    "unknown base, near nothing": ({"base_loss_mode": "xyz"}, "registered are bypass_mode, cispo, "),
    "ours on ours": ({"base_loss_mode": "holdfast_lld"}, "is itself one of holdfast's, and a penalty is added once"),
    "correct": (
        {"penalty_preserve": "correct"},
        "verl does not tell a loss which rollouts are correct; use 'positive'",
    ),
    "rule": ({"penalty_preserve": "best"}, "LLDS(preserve='best') must be one of"),
    "negative": ({"penalty_coef": -0.1}, "LLDS(coef=-0.1) must be 0 or more"),
    "tau of llds": ({"penalty_tau": 0.9}, "penalty_tau = 0.9 with loss_mode = 'holdfast_llds', which does not read it"),
    "threshold of sapo": (
        {"loss_mode": "holdfast_search_sapo", "penalty_threshold": 0.1},
        "penalty_threshold = 0.1 with loss_mode = 'holdfast_search_sapo', which does not read it",
    ),
    "penalty of none": ({"loss_mode": "holdfast_observe", "penalty_coef": 0.1}, "set penalty_coef = 0"),
    "penalty beside verl's own": (
        {"loss_mode": "vanilla", "penalty_coef": 0.1},
        "set loss_mode to one of holdfast_observe",
    ),
    "tokens rejected": (
        {"rollout_correction": {"rollout_rs": "seq_sum_k1, token_k3"}},
        "rejecting tokens cuts actions",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_when_the_config_is_made(case: str) -> None:
    fields, sentence = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        HoldfastPolicyLossConfig(**{"loss_mode": "holdfast_llds", **fields})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"rollout_correction": {"rollout_rs": "seq_sum_k1"}},
        {"rollout_correction": {"rollout_rs": "token_k1", "bypass_mode": True}},  # rejected inside the base, after us
        {"rollout_correction": {"rollout_rs": "token_k1"}, "loss_mode": "holdfast_lld"},
        {"rollout_correction": {"rollout_rs": "token_k1"}, "loss_mode": "holdfast_llds_response"},
        {"rollout_correction": {"rollout_is": "token", "rollout_rs": None}},
        {"loss_mode": "vanilla"},
        {"loss_mode": "gspo", "base_loss_mode": "vanilla"},
    ],
)
def test_their_neighbours_are_fine(fields: dict[str, Any]) -> None:
    HoldfastPolicyLossConfig(**{"loss_mode": "holdfast_llds", **fields})


def test_a_plain_config_is_refused_at_the_first_call(batch: Batch) -> None:
    from verl.trainer.config import RolloutCorrectionConfig
    from verl.workers.config import ActorConfig, PolicyLossConfig

    own = PolicyLossConfig(loss_mode="holdfast_llds", rollout_correction=RolloutCorrectionConfig(rollout_rs="token_k1"))
    config = ActorConfig(
        strategy="fsdp", ppo_mini_batch_size=4, ppo_micro_batch_size_per_gpu=4, rollout_n=1, policy_loss=own
    )
    with pytest.raises(ConfigError, match="rejecting tokens cuts actions into pieces"):
        call("holdfast_llds", config, batch)
