"""`train.anchor_every`: the penalty compares with an older policy, so it acts with one optimizer step per batch too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from holdfast.base.run_folder import step_folder
from holdfast.evaluate.probes import arms_of, open_run
from holdfast.losses import llds_penalty
from holdfast.methods.penalties import LLDS
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss
from holdfast.train.listener import Listener
from holdfast.train.run import train
from holdfast.train.trainer import Trainer

from .one_update import a_batch, learner_of
from .whole_runs import Recipe, a_trainer

ONE_STEP = {"train.optimizer_steps_per_rollout": 1, "train.lr": 3e-3, "reward": {"em": 1.0, "format": 0.5}}


def weights(trainer: Trainer) -> list[Tensor]:
    return [p.detach().clone() for p in trainer.learner.language_model.model.parameters()]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_with_one_optimizer_step_it_acts_from_the_second_batch_on(recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ONE_STEP | {"train.anchor_every": 1, "train.micro_batch_tokens": 100_000}))
    before = copy.deepcopy(trainer.learner.language_model.model)
    first = trainer.step().metrics
    assert first["loss/penalty"] == first["penalty/mean_decrease"] == first["penalty/active_fraction"] == 0

    now = LanguageModel(model=copy.deepcopy(trainer.learner.language_model.model), tokenizer=None)
    second = trainer.step()
    batch = trainer.make_batch(second.groups)
    inputs = (batch.token_ids, batch.loss_mask)
    with torch.no_grad():
        new, _ = now.logprobs(*inputs)
        anchor, _ = LanguageModel(model=before, tokenizer=None).logprobs(*inputs)
    penalty = llds_penalty(new, anchor, batch.advantages, batch.loss_mask, action_ids=batch.action_ids)
    expected = 0.2 * float(penalty.sum() / (batch.loss_mask & (batch.advantages >= 0)).sum())
    assert second.metrics["loss/penalty"] == pytest.approx(expected, rel=1e-3) and expected > 1e-5
    assert second.metrics["penalty/active_fraction"] > 0
    assert second.metrics["penalty/noise_floor"] == 0, "the ratio of the policy loss is to the sampling policy"
    assert second.metrics["ratio/max"] == 1


def test_the_anchor_is_one_to_n_batches_old(recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ONE_STEP | {"train.anchor_every": 2}))
    policies = []
    assert trainer.learner.anchor is None
    for anchor in (0, 0, 2, 2, 4):  # the policy before that batch's update, after this one
        policies.append(weights(trainer))
        trainer.step()
        assert trainer.learner.anchor is not None and same(trainer.learner.anchor.weights, policies[anchor])


def test_an_anchor_that_is_the_sampling_policy_changes_nothing(make_model: Callable[..., Any]) -> None:
    plan = [[[0, 3, 2], [1]], [[4, 6], [5]]]
    found = []
    for anchored in (False, True):
        learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(kl_coef=0.0), lr=1e-2)
        if anchored:
            learner.renew_anchor()
        minibatches, _, _ = learner.old_pass(a_batch(), plan)
        assert all((micro.anchor_logprobs is not None) == anchored for mini in minibatches for micro in mini)
        found.append((learner.step(minibatches, mean_searches=0.0), learner.language_model.model.state_dict()))
    (plain, one), (metrics, other) = found
    assert metrics == plain and plain["loss/penalty"] > 0
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_policy_loss_and_its_statistics_keep_the_sampling_policy(make_model: Callable[..., Any]) -> None:
    """Only the penalty sees an anchor, here one under which every token was likelier by 0.3 nats."""
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(kl_coef=0.0, penalty=LLDS(coef=1.0)))
    minibatches, _, _ = learner.old_pass(a_batch(), [[[*range(7)]]])
    assert minibatches[0][0].old_logprobs is not None
    plain = learner.step(minibatches, mean_searches=0.0)
    higher = [
        [replace(m, anchor_logprobs=m.penalty_logprobs + 0.3 * m.loss_mask) for m in mini] for mini in minibatches
    ]
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(kl_coef=0.0, penalty=LLDS(coef=1.0)))
    metrics = learner.step(higher, mean_searches=0.0)
    assert metrics["loss/penalty"] == pytest.approx(0.3, rel=1e-4)
    assert metrics["penalty/mean_decrease"] == pytest.approx(0.3, rel=1e-4)
    changed = {"loss/penalty", "penalty/mean_decrease", "penalty/active_fraction", "grad/norm", "grad/norm_max"}
    assert {name for name in plain if metrics[name] != plain[name]} == changed


def test_a_probe_of_a_checkpoint_compares_with_its_anchor(recipe: Recipe, tmp_path: Path) -> None:
    config = recipe(ONE_STEP | {"train.anchor_every": 2, "checkpoint.every": 1, "train.steps": 3})
    train(config, tmp_path / "run")
    subject = open_run(tmp_path / "run", "last", (), Listener(), with_reference=False)
    first = load_file(step_folder(tmp_path / "run", 2) / "anchor.safetensors")
    last = load_file(step_folder(tmp_path / "run", 3) / "anchor.safetensors")
    assert any(not torch.equal(first[name], last[name]) for name in first), "renewed at the third batch"
    learner = subject.learner()
    assert learner.anchor is not None
    assert same(learner.anchor.weights, [last[str(i)] for i in range(len(last))])
    arms = arms_of(config, ["none", "llds", "sapo"])
    assert [arm.train.anchor_every for arm in arms.values()] == [0, 2, 2]
    assert subject.learner(arms["none"]).anchor is None
