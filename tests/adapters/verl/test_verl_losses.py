"""Each loss under real ActorConfigs: base + coef × penalty, value and gradient, against loops in Python."""

from __future__ import annotations

import itertools
import math
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("verl")

from tensordict import TensorDict
from verl.trainer.ppo import core_algos
from verl.utils import tensordict_utils as tu

from holdfast.adapters.verl import LOSSES, _Loss, _micro_batch
from holdfast.base.errors import ConfigError

from .conftest import GLOBAL, Batch, MakeConfig, call, naive_penalty

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES += [] if version("verl").startswith("0.8.") else ["token-sum"]
BASES = ["vanilla", "gspo", "sapo", "cispo", "geo_mean", "gpg", "dppo_tv", "bypass_mode"]
NAMES = [name for name in LOSSES if name != "holdfast_custom"]  # which needs a class; see the last test
PENALTIES = [name for name in NAMES if name != "holdfast_observe"]


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


LAST = {"penalty_answer": "last-action"}


@pytest.mark.parametrize("weight", [0.0, 0.25])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", BASES)
def test_the_last_action_weighs_what_is_set(
    actor_config: MakeConfig, batch: Batch, base: str, mode: str, weight: float
) -> None:
    weights = token_weights(mode, batch["response_mask"], GLOBAL)
    actor = {"loss_agg_mode": mode, "global_batch_info": GLOBAL}
    plain, plain_gradient, _ = call(base, actor_config(base, actor=actor), batch)
    for name in ("holdfast_llds", "holdfast_llds_response", "holdfast_lld"):
        fields = {**LAST, "penalty_answer_weight": weight, "penalty_coef": 0.7}
        config = actor_config(base, loss_mode=name, actor=actor, **fields)
        value, slope = naive_penalty(name, batch, answer_weight=weight)
        assert value.any() and not torch.equal(value, naive_penalty(name, batch)[0])
        loss, gradient, metrics = call(name, config, batch)
        torch.testing.assert_close(loss, plain + 0.7 * (value * weights).sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + 0.7 * slope * weights, rtol=0, atol=1e-6)
        assert metrics["holdfast/penalty/answer_weight"] == weight


SPANS: list[list[int] | None] = [[5, 6], [0, 3], None, [2, 4], None]


@pytest.mark.parametrize("name", ["holdfast_llds", "holdfast_llds_response", "holdfast_lld"])
def test_the_span_of_the_agent_loop_weighs_what_is_set(actor_config: MakeConfig, batch: Batch, name: str) -> None:
    """Through the field that verl's current trainer has, and those of its older ones."""
    fields = {"penalty_answer": "answer-span", "penalty_answer_weight": 0.25, "penalty_coef": 0.7}
    config = actor_config(loss_mode=name, **fields)
    plain, plain_gradient, _ = call("vanilla", config, batch)
    weights = token_weights("token-mean", batch["response_mask"], {})
    value, slope = naive_penalty(name, batch, answer_weight=0.25, spans=SPANS)
    assert not torch.equal(value, naive_penalty(name, batch, answer_weight=0.25)[0])
    for data in micro_batches(SPANS, [1] * 5):
        token = _micro_batch.set(data)
        loss, gradient, _ = call(name, config, batch)
        _micro_batch.reset(token)
        torch.testing.assert_close(loss, plain + 0.7 * (value * weights).sum(), rtol=0, atol=1e-6)
        torch.testing.assert_close(gradient, plain_gradient + 0.7 * slope * weights, rtol=0, atol=1e-6)
    with pytest.raises(ConfigError, match="these rollouts have no answer_span"):
        call(name, config, batch)


def micro_batches(spans: list[Any], searches: list[int]) -> list[TensorDict]:
    """As `ppo_loss` gets them, after a selection of rows."""
    rows = [{"answer_span": s, "searches": n} for s, n in zip(spans, searches, strict=True)]
    made = []
    for fields in ({"extra_fields": rows}, {"answer_span": spans, "searches": searches}):
        batch = TensorDict({"responses": torch.zeros(10, 7)}, batch_size=[10])
        for name, values in fields.items():
            tu.assign_non_tensor_stack(batch, name, [*values, *values])
        made.append(tu.index_select_tensor_dict(batch, [5, 1, 2, 8, 9]))
    return made


def test_a_schedule_follows_the_searches_of_recent_rollouts(
    actor_config: MakeConfig, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows have 2, 2, 1, 2 and no actions: 3 searches in 4 rollouts. The third again: 3 in 5."""
    monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, "holdfast_llds", _Loss("holdfast_llds"))
    config = actor_config(penalty_coef=1.0, penalty_answer_weight="adaptive-paper", penalty_answer_target=1.0, **LAST)
    for rows, weight in (([0, 1, 2, 3, 4], 3 / 4), ([2], 3 / 5)):
        part = {key: value[rows] for key, value in batch.items()}
        loss, _, metrics = call("holdfast_llds", config, part)
        value = naive_penalty("holdfast_llds", batch, answer_weight=weight)[0][rows]
        added = loss - call("vanilla", config, part)[0]
        torch.testing.assert_close(added, value.sum() / part["response_mask"].sum(), rtol=0, atol=1e-6)
        assert metrics["holdfast/penalty/answer_weight"] == pytest.approx(weight)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("base", [*BASES, "dppo_kl"])
@pytest.mark.parametrize("name", NAMES)
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("cuts", [[0, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_micro_batches_add_up(actor_config: MakeConfig, batch: Batch, name: str, mode: str, cuts: list[int]) -> None:
    config = actor_config(loss_mode=name, actor={"loss_agg_mode": mode, "global_batch_info": GLOBAL})
    whole, gradient, _ = call(name, config, batch)
    parts = [call(name, config, {k: v[a:b] for k, v in batch.items()}) for a, b in itertools.pairwise(cuts)]
    torch.testing.assert_close(sum(p[0] for p in parts), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.cat([p[1] for p in parts]), gradient, rtol=0, atol=1e-12)


def test_a_threshold_and_a_tau_are_read(actor_config: MakeConfig, batch: Batch) -> None:
    for name, fields in (("holdfast_lld", {"threshold": 0.3}), ("holdfast_search_sapo", {"tau": 0.8})):
        config = actor_config(loss_mode=name, penalty_coef=1.0, **{f"penalty_{k}": v for k, v in fields.items()})
        added = call(name, config, batch)[0] - call("vanilla", config, batch)[0]
        plain, tuned = naive_penalty(name, batch)[0], naive_penalty(name, batch, **fields)[0]
        torch.testing.assert_close(added, tuned.sum() / batch["response_mask"].sum(), rtol=0, atol=1e-9)
        assert not torch.equal(plain, tuned)


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
    from verl.workers.config import ActorConfig, PolicyLossConfig

    sizes = {"strategy": "fsdp", "ppo_mini_batch_size": 4, "ppo_micro_batch_size_per_gpu": 4, "rollout_n": 1}
    for name, coef in (("holdfast_llds", 0.2), ("holdfast_search_sapo", 0.1)):
        monkeypatch.setitem(core_algos.POLICY_LOSS_REGISTRY, name, _Loss(name))
        config = ActorConfig(**sizes, policy_loss=PolicyLossConfig(loss_mode=name))
        added = call(name, config, batch)[0] - call("vanilla", config, batch)[0]
        kept = PRESERVED.get(name, lambda a: a >= 0)(batch["advantages"]) & batch["response_mask"]
        expected = coef * naive_penalty(name, batch)[0].sum() / kept.sum()
        torch.testing.assert_close(added, expected, rtol=1e-6, atol=0)  # the share is a float32


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
