"""Likelihoods of golden answers in the course of rollouts, which a method may ask the trainer for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from holdfast.recipe import Config

from .whole_runs import a_trainer

Recipe = Callable[..., Config]


def test_means_are_of_the_continuation_alone_whatever_is_passed_together(recipe: Recipe) -> None:
    learner = a_trainer(recipe({"train.micro_batch_tokens": 64})).learner
    probes = [((5, 6, 7), (8, 9)), ((5, 6, 7, 8), (9,)), (tuple(range(5, 30)), (3, 4, 5))]
    for (context, continuation), mean in zip(probes, learner.mean_logprobs(probes), strict=True):
        with torch.no_grad():
            logits = learner.language_model.model(torch.tensor([[*context, *continuation]])).logits[0]
        logprobs = (logits / learner.sampling.temperature).log_softmax(-1)
        wanted = [float(logprobs[len(context) - 1 + k, token]) for k, token in enumerate(continuation)]
        assert mean == pytest.approx(sum(wanted) / len(wanted), abs=1e-4)


def test_a_run_with_information_gains_learns_from_turns(recipe: Recipe) -> None:
    trainer = a_trainer(recipe({"loss.methods.igpo.on": True, "loss.penalty.name": "none"}))
    groups, _ = trainer.roll_out(trainer.question_order.next(4))
    batch = trainer.make_batch(groups)
    assert batch.advantages.shape == batch.token_ids.shape
    several = [t for group in groups for t in group.trajectories if len(t.turns) > 1]
    assert several and bool((batch.advantages != 0).any())
    assert trainer.step().metrics["loss/policy"] != 0
