"""Supervised steps between those of reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from holdfast.methods.interleaved_sft import InterleavedSFT
from holdfast.recipe import Config

from .whole_runs import a_trainer

Recipe = Callable[..., Config]
ON = {"loss.methods.interleaved_sft.every": 2}


def test_a_supervised_step_makes_its_rollouts_likelier_and_returns_their_mean(recipe: Recipe) -> None:
    trainer = a_trainer(recipe({"train.lr": 1e-3, "train.micro_batch_tokens": 400}))
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(3))[0])
    chosen = batch.select(torch.arange(len(batch)) % 3 == 0)
    before = trainer.learner.logprobs(chosen.token_ids, chosen.loss_mask)[0].detach()
    loss = trainer.learner.supervise(chosen)
    torch.testing.assert_close(loss, -float(before[chosen.loss_mask].mean()), atol=1e-5, rtol=1e-5)
    after = trainer.learner.logprobs(chosen.token_ids, chosen.loss_mask)[0].detach()
    assert float(after.sum()) > float(before.sum())


@pytest.mark.parametrize("correct", [True, False])
def test_every_second_step_has_one_if_a_rollout_is_correct(correct: bool, recipe: Recipe) -> None:
    trainer = a_trainer(recipe(ON))
    make = trainer.make_batch
    trainer.make_batch = lambda groups: replace(  # type: ignore[method-assign]
        batch := make(groups), correct=torch.full((len(batch),), correct)
    )
    rows = [trainer.step().metrics for _ in range(4)]
    assert [("loss/supervised" in row) for row in rows] == [False, correct, False, correct]


def test_only_correct_rollouts_teach(recipe: Recipe) -> None:
    trainer = a_trainer(recipe())
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(2))[0])
    method = InterleavedSFT(every=3)
    assert method.lesson(batch, 4) is None
    assert torch.equal(method.lesson(batch, 6), batch.correct)
