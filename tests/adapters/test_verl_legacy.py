"""The older contract of verl and its forks, against a host made here: four numbers, no metrics, local denominators."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.adapters.verl_legacy import register, with_penalty
from holdfast.adapters.verl_losses import LOSSES
from holdfast.errors import ConfigError
from holdfast.losses import llds_penalty, sapo_penalty
from holdfast.metrics import METRICS
from holdfast.penalties import LLDS, SAPO

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Batch = dict[str, Tensor]


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum() / mask.sum()


def host() -> ModuleType:
    """What verl 0.7 has: a registry, and `agg_loss` without global information."""
    module = ModuleType("verl_of_old")
    registry: dict[str, Callable[..., Four]] = {}

    def register_policy_loss(name: str) -> Callable[..., Any]:
        return lambda fn: registry.setdefault(name, fn) if name not in registry else registry.update({name: fn}) or fn

    def get_policy_loss_fn(name: str) -> Callable[..., Four]:
        return registry[name]

    def agg_loss(loss_mat: Tensor, loss_mask: Tensor, loss_agg_mode: str) -> Tensor:
        if loss_agg_mode == "token-mean":
            return masked_mean(loss_mat, loss_mask)
        assert loss_agg_mode == "seq-mean-token-sum"
        return (loss_mat * loss_mask).sum(-1).mean()

    def vanilla(
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> Four:
        ratio = (log_prob - old_log_prob).exp()
        loss = agg_loss(-advantages * ratio, response_mask, loss_agg_mode)
        return loss, torch.tensor(0.25), torch.tensor(0.5), torch.tensor(0.125)

    registry["vanilla"] = vanilla
    module.__dict__.update(
        POLICY_LOSS_REGISTRY=registry,
        register_policy_loss=register_policy_loss,
        get_policy_loss_fn=get_policy_loss_fn,
        agg_loss=agg_loss,
    )
    return module


def compute_policy_loss(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, eos_mask: Tensor, cliprange: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A Search-R1-style fork: three numbers, `eos_mask`, one mean."""
    ratio = (log_prob - old_log_prob).exp()
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - cliprange, 1 + cliprange))
    return masked_mean(losses, eos_mask), torch.tensor(0.25), torch.tensor(0.5)


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(3, 6, generator=generator, dtype=torch.float64)
    new = old + 0.3 * torch.randn(3, 6, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]], dtype=torch.float64)
    advantages = torch.tensor([[0.8], [0.0], [-1.1]], dtype=torch.float64) * mask
    return {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": mask}


def gradient(value: Tensor, of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of, retain_graph=True)[0]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-sum"])
@pytest.mark.parametrize(
    ("name", "gate", "coef"),
    [("holdfast_llds", "action", 0.2), ("holdfast_llds_response", "response", 0.2), ("holdfast_lld", "token", 0.2),
     ("holdfast_search_sapo", None, 0.1)],
)  # fmt: skip
def test_a_registered_loss_is_the_base_plus_the_penalty(
    batch: Batch, name: str, gate: Any, coef: float, mode: str
) -> None:
    module = host()
    register(module)
    new = batch["log_prob"].requires_grad_()
    four = module.get_policy_loss_fn(name)(**batch, loss_agg_mode=mode, config=None, rollout_is_weights=None)
    plain = module.get_policy_loss_fn("vanilla")(**batch, loss_agg_mode=mode)
    arguments = (new, batch["old_log_prob"], batch["advantages"], batch["response_mask"].bool())
    term = sapo_penalty(*arguments) if gate is None else llds_penalty(*arguments, gate=gate)
    expected = plain[0] + coef * module.agg_loss(term, batch["response_mask"], mode)
    torch.testing.assert_close(four[0], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient(four[0], new), gradient(expected, new), rtol=0, atol=1e-12)
    assert not torch.equal(four[0], plain[0])
    assert [float(x) for x in four[1:]] == [0.25, 0.5, 0.125]


def test_observing_and_a_weight_of_zero_change_not_one_bit(batch: Batch) -> None:
    module = host()
    register(module, penalty_coef=0.0)
    new = batch["log_prob"].requires_grad_()
    plain = module.get_policy_loss_fn("vanilla")(**batch)[0]
    for name in sorted(set(LOSSES) - {"holdfast_custom"}):  # registered where a class is named
        loss = module.get_policy_loss_fn(name)(**batch)[0]
        assert torch.equal(loss, plain) and torch.equal(gradient(loss, new), gradient(plain, new))


def test_settings_are_bound_and_registering_again_replaces_them(batch: Batch) -> None:
    module = host()
    added = []
    for settings in (
        {"penalty_coef": 1.0},
        {"penalty_coef": 2.0},
        {"penalty_coef": 1.0, "penalty_preserve": "positive"},
    ):
        register(module, **settings)
        loss = module.get_policy_loss_fn("holdfast_lld")(**batch)[0] - module.get_policy_loss_fn("vanilla")(**batch)[0]
        added.append(float(loss))
    assert added[1] == pytest.approx(2 * added[0])
    assert 0 < added[2] < added[0]  # row 1, with A = 0, is left out


def test_a_fork_without_a_registry(batch: Batch) -> None:
    named = {key.replace("response_mask", "eos_mask"): value for key, value in batch.items()}
    plain = compute_policy_loss(**named, cliprange=0.2)
    seen: list[dict[str, float]] = []
    wrapped = with_penalty(compute_policy_loss, LLDS(coef=0.5), reduce=masked_mean, on_metrics=seen.append)
    term = llds_penalty(batch["log_prob"], batch["old_log_prob"], batch["advantages"], batch["response_mask"].bool())
    expected = plain[0] + 0.5 * masked_mean(term, batch["response_mask"])
    for returned in (wrapped(**named, cliprange=0.2), wrapped(*batch.values(), 0.2)):
        torch.testing.assert_close(returned[0], expected, rtol=0, atol=1e-12)
        assert returned[1:] == plain[1:]
    assert seen[0] == seen[1] and seen[0]["holdfast/penalty/active_fraction"] > 0
    assert {name.removeprefix("holdfast/") for name in seen[0]} <= set(METRICS)
    watched = with_penalty(compute_policy_loss, None, reduce=masked_mean, on_metrics=seen.append)
    assert torch.equal(watched(**named, cliprange=0.2)[0], plain[0])
    assert "holdfast/penalty/active_fraction" not in seen[2] and "holdfast/drift/positive" in seen[2]


def test_masked_nan_adds_nothing(batch: Batch) -> None:
    mask = batch["response_mask"].bool()

    def base(log_prob: Tensor, **_: Tensor) -> tuple[Tensor]:
        return (torch.zeros((), dtype=torch.float64),)

    wrapped = with_penalty(base, SAPO(coef=1.0), reduce=masked_mean)
    poisoned = {k: v if k == "response_mask" else torch.where(mask, v, math.nan) for k, v in batch.items()}
    assert torch.equal(wrapped(**batch)[0], wrapped(**poisoned)[0]) and wrapped(**batch)[0] > 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"penalty_cof": 1.0}, "penalty_cof is no setting of a penalty; there are penalty_coef"),
        ({"penalty_coef": -1.0}, "must be 0 or more"),
        ({"penalty_preserve": "correct"}, "does not tell a loss which rollouts are correct"),
        ({"base_loss_mode": "vanila"}, "did you mean 'vanilla'?"),
        ({"base_loss_mode": "holdfast_lld"}, "is itself one of holdfast's"),
    ],
)
def test_what_cannot_work(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        register(host(), **settings)
    assert sentence in str(caught.value)


def test_a_host_without_a_registry_is_told_what_to_wrap() -> None:
    with pytest.raises(
        ConfigError, match=r"no register_policy_loss.*wrap the function its actor calls with .*with_penalty"
    ):
        register(ModuleType("search_r1"))


def test_losses_of_another_contract_are_refused(batch: Batch) -> None:
    wrapped = with_penalty(lambda **_: torch.zeros(()), LLDS(), reduce=masked_mean)
    with pytest.raises(ConfigError, match="returned no tuple that begins with a loss"):
        wrapped(**batch)
    wrapped = with_penalty(lambda **_: (torch.zeros(()),), LLDS(), reduce=masked_mean)
    with pytest.raises(ConfigError, match="a penalty needs old_log_prob, log_prob, advantages and response_mask or"):
        wrapped(old_log_prob=batch["old_log_prob"], advantages=batch["advantages"])


def test_rejected_tokens_are_refused_here_too(batch: Batch) -> None:
    module = host()
    register(module)
    config = SimpleNamespace(policy_loss={"rollout_correction": {"rollout_rs": "token_k1"}})
    with pytest.raises(ConfigError, match="cuts actions into pieces"):
        module.get_policy_loss_fn("holdfast_llds")(**batch, config=config)
    module.get_policy_loss_fn("holdfast_lld")(**batch, config=config)
