"""`score_centering` in the local trainer, beside the sampling mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.recipe import Config, load
from holdfast.train.trainer import Trainer

from .whole_runs import a_trainer

Recipe = Callable[..., Config]
CUT: dict[str, Any] = {"sampling.top_p": 0.7, "sampling.top_k": 12, "loss.penalty.name": "none"}
CENTRED = {"loss.methods.score_centering.on": True}
MASKED = {"sampling.mask_logprobs": True}


def gradient(trainer: Trainer) -> torch.Tensor:
    """Of the loss of a rollout batch, before anything moved."""
    learner = trainer.learner
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(4))[0])
    old = learner.old_pass(batch, [[list(range(len(batch)))]])
    (micro,) = old.minibatches[0]
    micro, logprobs, entropy = learner._current(micro)
    counts = learner.objective.count([micro])
    parts = learner.objective.reduce(learner.objective.terms(micro, logprobs), entropy, micro.learned_mask, counts)
    grads = torch.autograd.grad(torch.stack(list(parts.values())).sum(), learner.parameters, allow_unused=True)
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def test_the_first_step_is_that_of_the_sampling_mask(recipe: Recipe) -> None:
    plain, centred, masked = (gradient(a_trainer(recipe(CUT | extra))) for extra in ({}, CENTRED, MASKED))
    assert float((plain - masked).norm()) > 0.05 * float(masked.norm())
    torch.testing.assert_close(centred, masked, rtol=1e-3, atol=1e-5 * float(masked.abs().max()))


def test_a_run_logs_the_term_and_repeats_on_other_micro_batches(recipe: Recipe) -> None:
    wide, narrow = (a_trainer(recipe(CUT | CENTRED | {"train.micro_batch_tokens": n})) for n in (16384, 300))
    a, b = wide.step().metrics, narrow.step().metrics
    assert a["loss/score_centering"] == pytest.approx(b["loss/score_centering"], abs=1e-5)
    assert a["sampler/mask_mass"] < 0.95 and "sampler/mask_in_loss" not in a


@pytest.mark.parametrize(
    ("sampling", "sentence"),
    [
        (("--sampling.top_k", "0"), "there is nothing to take out"),
        (("--sampling.top_k", "0", "--sampling.top_p", "0.9"), "top_p alone does not bound that"),
        (("--sampling.top_k", "12", "--sampling.mask_logprobs"), "over the whole vocabulary, but this loss is not"),
    ],
)
def test_it_needs_a_truncated_sampler_and_a_loss_over_the_vocabulary(sampling: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(overrides=["--loss.methods.score_centering.on", *sampling])
