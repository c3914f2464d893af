"""Log-probs, losses, gradients and checkpoints of a device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.model.checkpoint import load_optimizer, save_checkpoint
from holdfast.model.language_model import LanguageModel, load_model, ready
from holdfast.recipe import Config, validate
from holdfast.train.learner import Learner, make_learner

PRECISION = {None: 1e-4, torch.bfloat16: 0.1}
"""Autocast -> largest difference from float64: of a log-prob in nats, of a loss and of a gradient's norm relatively."""


def a_batch(rows: int = 6, width: int = 20) -> TokenBatch:
    """Ragged rows of two actions, advantages of both signs."""
    generator = torch.Generator().manual_seed(3)
    place = torch.arange(width)
    ends = torch.tensor([width - row for row in range(rows)])[:, None]
    action_ids = torch.where((place >= 4) & (place < 9), 1, torch.where(place >= 12, 2, 0)).expand(rows, width)
    action_ids = torch.where(place < ends, action_ids, 0)
    sign = torch.tensor([1.0, -1.0]).repeat(rows)[:rows]
    return TokenBatch(
        token_ids=torch.where(place < ends, torch.randint(2, 280, (rows, width), generator=generator), 0),
        lengths=ends[:, 0],
        loss_mask=action_ids > 0,
        action_ids=action_ids,
        answer_mask=action_ids == 2,
        rollout_logprobs=torch.zeros(rows, width),
        advantages=sign[:, None] * 1.1,
        rewards=(sign > 0).float(),
        correct=sign > 0,
        group_ids=torch.arange(rows) // 2,
        valid=torch.ones(rows, dtype=torch.bool),
    )


def a_recipe(penalty: str = "llds") -> Config:
    return validate(
        {
            "model": {"autocast": "none"},
            "loss": {"kl_coef": 0.0, "penalty": {"name": penalty}},
            "train": {"optimizer_steps_per_rollout": 2, "micro_batch_tokens": 64, "lr": 1e-3},
        }
    )


def update(learner: Learner, batch: TokenBatch, seed: int = 0) -> dict[str, float]:
    """Two optimizer steps; the penalty acts from the second on."""
    old = learner.old_pass(batch, learner.plan(batch, torch.Generator().manual_seed(seed)))
    return learner.step(old.minibatches, mean_searches=1.0)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_log_probs_and_entropy(device, model, autocast) -> None:
    batch, exact = a_batch(), copy.deepcopy(model).double()
    expected = LanguageModel(model=exact, tokenizer=None).logprobs(batch.token_ids, batch.loss_mask, entropy=True)
    measured = LanguageModel(model=model.to(device), tokenizer=None, autocast_dtype=autocast)
    found = measured.logprobs(batch.token_ids.to(device), batch.loss_mask.to(device), entropy=True)
    for there, here in zip(found[:2], expected[:2], strict=True):
        assert there.dtype == torch.float32
        difference = (there.cpu() - here).abs().max()
        assert difference < PRECISION[autocast]
        assert autocast is None or difference > 1e-4, "bfloat16 must be seen"


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("penalty", ["none", "llds", "sapo"])
def test_losses_and_gradients(device, model, autocast, penalty) -> None:
    config = a_recipe(penalty)

    def metrics_of(policy: LanguageModel) -> dict[str, float]:
        return update(make_learner(config, policy), a_batch().to(policy.device))

    expected = metrics_of(LanguageModel(model=copy.deepcopy(model).double(), tokenizer=None))
    found = metrics_of(LanguageModel(model=model.to(device), tokenizer=None, autocast_dtype=autocast))
    names = [name for name in expected if name.startswith(("loss/", "grad/norm"))]
    assert len(names) >= 3 and expected.keys() == found.keys()
    for name in names:
        assert found[name] == pytest.approx(expected[name], rel=10 * PRECISION[autocast], abs=PRECISION[autocast]), name


@pytest.mark.parametrize("there", [True, False])
def test_a_checkpoint_goes_on_elsewhere(device, model, tokenizer, tmp_path: Path, there: bool) -> None:
    """Saved on the device and continued on the CPU, or the other way round."""
    config = a_recipe()
    first, second = (device, torch.device("cpu")) if there else (torch.device("cpu"), device)
    learner = make_learner(config, ready(model, tokenizer, config.model, first))
    update(learner, a_batch().to(first))
    save_checkpoint(tmp_path / "c", learner.language_model, optimizer=learner.optimizer, state={})

    again = make_learner(config, load_model(config.model, tmp_path / "c" / "model", second))
    load_optimizer(tmp_path / "c", again.optimizer)
    states = zip(learner.optimizer.state.values(), again.optimizer.state.values(), strict=True)
    assert all(torch.equal(a[name].cpu(), b[name].cpu()) for a, b in states for name in a)
    stayed, moved = update(learner, a_batch().to(first), 1), update(again, a_batch().to(second), 1)
    assert moved["loss/policy"] == pytest.approx(stayed["loss/policy"], abs=1e-4)
    assert moved["grad/norm"] == pytest.approx(stayed["grad/norm"], rel=1e-2)
    weights: list[Any] = [learner.language_model.model.state_dict(), again.language_model.model.state_dict()]
    for name, value in weights[0].items():
        # An element whose gradient is nearly 0 may move by the learning rate in the other direction.
        assert (value.cpu() - weights[1][name].cpu()).abs().max() < 5e-3, name
