"""The gradient of an update: a step without a finite one is skipped, and a long one is clipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.methods.penalties import NoPenalty
from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Loss
from holdfast.train.learner import Reference
from holdfast.train.objective import Objective

from .one_update import a_batch, learner_of, run


def test_a_step_without_a_finite_gradient_is_skipped_and_counted(make_model: Callable[..., Any]) -> None:
    """Weights and moments are those of a run in which the step never was."""
    batch = a_batch()

    def update(plan: list[list[list[int]]], poisoned: int | None) -> tuple[dict[str, float], Any, Any]:
        passes = 0

        class Poisoned(LanguageModel):
            def logprobs(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
                nonlocal passes
                logprobs, entropies = LanguageModel.logprobs(self, *args, **options)
                passes += torch.is_grad_enabled()  # not the old pass
                return logprobs * (math.inf if passes == poisoned else 1.0), entropies

        learner = learner_of(Poisoned(model=make_model(), tokenizer=None), lr=1e-2)
        minis, _, _ = learner.old_pass(batch, plan)
        metrics = learner.step(minis, mean_searches=1.0)
        return metrics, learner.parameters, learner.optimizer

    metrics, weights, optimizer = update([[[0, 1]], [[2, 3]], [[4, 5, 6]]], poisoned=2)
    clean_metrics, clean_weights, clean_optimizer = update([[[0, 1]], [[4, 5, 6]]], poisoned=None)
    assert (metrics["grad/skipped_steps"], metrics["optimizer_steps_per_rollout"]) == (1, 3)
    assert (clean_metrics["grad/skipped_steps"], clean_metrics["optimizer_steps_per_rollout"]) == (0, 2)
    assert metrics["grad/norm"] == clean_metrics["grad/norm"]  # a mean over the finite ones
    for one, other in zip(weights, clean_weights, strict=True):
        assert torch.equal(one, other)
        for key, value in clean_optimizer.state[other].items():
            assert torch.equal(optimizer.state[one][key], value), key


def test_the_gradient_is_clipped_to_its_norm(make_model: Callable[..., Any]) -> None:
    batch = a_batch()
    free, _ = run(make_model(), batch, [[[*range(7)]]], Loss(), lr=1.0)
    start = make_model().double()
    clipped, weights = run(make_model(), batch, [[[*range(7)]]], Loss(), lr=1.0, grad_clip=0.01)
    assert clipped["grad/norm"] == pytest.approx(free["grad/norm"])  # logged before clipping
    moved = [weights[name] - p.detach() for name, p in start.named_parameters()]
    assert float(torch.cat([m.flatten() for m in moved]).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    "loss",
    [
        Loss(kl_coef=0.0, penalty=NoPenalty()),
        Loss(kl_coef=0.0, penalty=NoPenalty(), entropy_coef=0.01),
        Loss(kl_coef=0.001, penalty=NoPenalty()),
    ],
)
def test_a_mini_batch_without_contrast_moves_as_one_with_a_gradient_of_zero(
    make_model: Callable[..., Any], loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the backward pass is left out, and only where nothing else gives a gradient. The moments move on."""
    batch = a_batch()
    batch = replace(batch, advantages=torch.where(torch.arange(7)[:, None] < 4, batch.advantages, 0.0))
    passes: list[bool] = []

    class Counted(LanguageModel):
        def logprobs(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
            logprobs, entropies = LanguageModel.logprobs(self, *args, **options)
            passes.append(logprobs.requires_grad)
            return logprobs, entropies

    def update() -> tuple[dict[str, float], Any]:
        passes.clear()
        policy = Counted(model=make_model(), tokenizer=None)
        learner = learner_of(policy, loss, reference=Reference(policy) if loss.kl_coef else None, lr=1e-2)
        minis, _, _ = learner.old_pass(batch, [[[0, 1], [2, 3]], [[4], [5, 6]]])
        return learner.step(minis, mean_searches=1.0), learner.parameters

    metrics, weights = update()
    alone = loss.entropy_coef == 0 and loss.kl_coef == 0
    assert sum(passes) == (2 if alone else 4)
    monkeypatch.setattr(Objective, "has_gradient", lambda self, micro: True)
    whole_metrics, whole_weights = update()
    assert metrics == whole_metrics
    for one, other in zip(weights, whole_weights, strict=True):
        assert torch.equal(one, other)
