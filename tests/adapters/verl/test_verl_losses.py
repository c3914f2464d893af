"""Each loss under real ActorConfigs: base + coef × penalty, value and gradient, against loops in Python."""

from __future__ import annotations

import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl")

from verl.trainer.ppo import core_algos
from verl.utils.metric import AggregationType, Metric, reduce_metrics

from holdfast.adapters.verl import LOSSES, HoldfastPolicyLossConfig
from holdfast.adapters.verl.plugin import _Loss
from holdfast.base.errors import ConfigError

from .conftest import GLOBAL, Batch, MakeConfig, call, naive_penalty

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES += [] if version("verl").startswith("0.8.") else ["token-sum"]
BASES = ["vanilla", "gspo", "sapo", "cispo", "geo_mean", "gpg", "dppo_tv", "bypass_mode"]
NAMES = [name for name in LOSSES if name != "holdfast_custom"]  # which needs a class; see the last test
PENALTIES = [name for name in NAMES if name != "holdfast_observe"]
WEIGHED = ("holdfast_llds", "holdfast_llds_response", "holdfast_lld")  # may have a weight of the answer


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
    tuned: dict[str, dict[str, float]] = {"holdfast_lld": {"threshold": 0.3}, "holdfast_search_sapo": {"tau": 0.8}}
    for name in PENALTIES:
        fields = tuned.get(name, {})
        config = actor_config(
            base,
            loss_mode=name,
            penalty_coef=0.7,
            actor={"loss_agg_mode": mode, "global_batch_info": info},
            **{f"penalty_{key}": value for key, value in fields.items()},
        )
        value, slope = naive_penalty(name, batch, **fields)
        assert value.any()
        loss, gradient, _ = call(name, config, batch)
        torch.testing.assert_close(loss, plain + 0.7 * (value * weights).sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + 0.7 * slope * weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", WEIGHED)
def test_a_schedule_follows_the_searches_of_recent_rollouts(
    actor_config: MakeConfig, batch: Batch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The rows have 2, 2, 1, 2 and no actions: 3 searches in 4 rollouts. The third again: 3 in 5."""
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, name, _Loss(name))
    fields = {"penalty_answer_weight": "adaptive-paper", "penalty_answer_target": 1.0, "penalty_answer": "last-action"}
    config = actor_config(loss_mode=name, penalty_coef=1.0, **fields)
    for rows, weight in (([0, 1, 2, 3, 4], 3 / 4), ([2], 3 / 5)):
        part = {key: value[rows] for key, value in batch.items()}
        loss, gradient, metrics = call(name, config, part)
        value, slope = (x[rows] for x in naive_penalty(name, batch, answer_weight=weight))
        plain, plain_gradient, _ = call("vanilla", config, part)
        tokens = part["response_mask"].sum()
        torch.testing.assert_close(loss, plain + value.sum() / tokens, rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + slope / tokens, rtol=0, atol=1e-6)
        assert metrics["holdfast/penalty/answer_weight"] == pytest.approx(weight)


@pytest.mark.parametrize("base", [*BASES, "dppo_kl"])
@pytest.mark.parametrize("name", NAMES)
def test_observing_and_a_weight_of_zero_change_not_one_bit(
    actor_config: MakeConfig, batch: Batch, name: str, base: str
) -> None:
    batch = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    fields = {} if name == "holdfast_observe" else {"penalty_coef": 0.0}
    config = actor_config(base, loss_mode=name, actor={"global_batch_info": GLOBAL}, **fields)
    plain, plain_gradient, plain_metrics = call(base, config, batch)
    loss, gradient, metrics = call(name, config, batch)
    assert torch.equal(loss, plain) and torch.equal(gradient, plain_gradient)
    assert {key: metrics[key] for key in plain_metrics} == plain_metrics


@pytest.fixture
def silent_base() -> Any:
    """A base loss that is 0 and reads nothing, so that what is left is ours."""
    core_algos.register_policy_loss("silent")(lambda log_prob, **_: (0.0 * log_prob.nan_to_num(0, 0, 0).sum(), {}))
    yield "silent"
    del core_algos.POLICY_LOSS_REGISTRY["silent"]


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
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


PRESERVED = {"holdfast_search_sapo": lambda a: a > 0, "holdfast_nll": lambda a: a > 0}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PENALTIES)
def test_by_default_the_mean_is_over_preserved_tokens(
    actor_config: MakeConfig, batch: Batch, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    """Whatever verl's mode: the sum over the step's tokens times the share of preserved ones seen so far."""
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, name, _Loss(name))
    actor = {"loss_agg_mode": mode, "global_batch_info": GLOBAL}
    config = actor_config(loss_mode=name, penalty_coef=0.7, penalty_normalizer="preserved", actor=actor)
    seen = torch.zeros(2, dtype=torch.float64)
    for rows in ([0, 1], [2, 3, 4]):
        part = {key: value[rows] for key, value in batch.items()}
        mask = part["response_mask"]
        kept = PRESERVED.get(name, lambda a: a >= 0)(part["advantages"]) & mask
        seen += torch.stack([kept.sum(), mask.sum()])
        value, slope = (x[rows] for x in naive_penalty(name, batch))
        weight = 0.7 * GLOBAL["dp_size"] / (GLOBAL["batch_num_tokens"] * seen[0] / seen[1])
        plain, plain_gradient, _ = call("vanilla", config, part)
        loss, gradient, _ = call(name, config, part)
        torch.testing.assert_close(loss, plain + weight * value.sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + weight * slope, rtol=0, atol=1e-6)


def test_without_our_config_class_the_papers_values_count(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.config import RolloutCorrectionConfig
    from verl.workers.config import ActorConfig, PolicyLossConfig

    def plain(name: str, **more: Any) -> Any:
        sizes = {"strategy": "fsdp", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4, "rollout_n": 1}
        return ActorConfig(**sizes, policy_loss=PolicyLossConfig(loss_mode=name, **more))

    for name, coef in (("holdfast_llds", 0.2), ("holdfast_search_sapo", 0.1)):
        monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, name, _Loss(name))
        added = call(name, plain(name), batch)[0] - call("vanilla", plain(name), batch)[0]
        kept = PRESERVED.get(name, lambda a: a >= 0)(batch["advantages"]) & batch["response_mask"]
        expected = coef * naive_penalty(name, batch)[0].sum() / kept.sum()
        torch.testing.assert_close(added, expected, rtol=1e-6, atol=0)  # the share is a float32
    rejecting = RolloutCorrectionConfig(rollout_rs="token_k1")
    with pytest.raises(ConfigError, match="rejecting tokens splits actions"):
        call("holdfast_llds", plain("holdfast_llds", rollout_correction=rejecting), batch)


def test_a_class_of_ones_own_is_a_loss_too(
    actor_config: MakeConfig, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lld_class: str
) -> None:
    (tmp_path / "user_lld_for_verl.py").write_text(lld_class)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = {"least": 0.25, "normalizer": "policy"}
    settings = {"penalty_path": "user_lld_for_verl:Lld", "penalty_settings": arguments, "penalty_coef": 0.7}
    mine = call("holdfast_custom", actor_config(loss_mode="holdfast_custom", **settings), batch)
    same = {"penalty_threshold": 0.25, "penalty_coef": 0.7}
    ours = call("holdfast_lld", actor_config(loss_mode="holdfast_lld", **same), batch)
    torch.testing.assert_close(mine[0], ours[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(mine[1], ours[1], rtol=0, atol=1e-12)
    assert set(mine[2]) == set(ours[2])


@pytest.mark.parametrize(("fields", "said"), [
    ({"loss_mode": "vanilla", "penalty_coef": 0.1}, "set loss_mode to one of holdfast_observe"),
    ({"holdfast_version": "0.0.1"}, "install one version on every machine, or write the folder again"),
    ({"base_loss_mode": "vanila"}, "did you mean vanilla"),
    ({"rollout_correction": {"rollout_rs": "seq_sum_k1, token_k3"}}, "rejecting tokens splits actions"),
])  # fmt: skip
def test_what_cannot_work_is_refused_when_the_config_is_made(fields: dict[str, Any], said: str) -> None:
    """tests/adapters/test_verl_term.py has every refusal."""
    HoldfastPolicyLossConfig(loss_mode="vanilla")
    HoldfastPolicyLossConfig(loss_mode="holdfast_llds", rollout_correction={"rollout_rs": "seq_sum_k1"})
    with pytest.raises(ConfigError, match=said):
        HoldfastPolicyLossConfig(**{"loss_mode": "holdfast_llds", **fields})


@pytest.mark.parametrize("name", NAMES)
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
    assert name == "holdfast_observe" or numbers[0]["holdfast/loss/penalty"] > 0
