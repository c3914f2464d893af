"""Rollouts by other weights than those that learn."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.train.one_update import a_batch, learner_of
from tests.train.whole_runs import a_trainer

from holdfast.model.language_model import LanguageModel
from holdfast.recipe import Config, Loss, Train
from holdfast.train.objective import centering_term
from holdfast.train.stale_sampler import StaleSampler, to_8_bits


def test_rollouts_come_from_the_weights_of_batches_ago() -> None:
    model = torch.nn.Linear(3, 2)
    sampler, seen = StaleSampler(Config(train=Train(staleness=2)), model), []
    for step in range(5):
        with torch.no_grad():
            model.weight.fill_(float(step))
        for _ in range(2):  # two rounds of rollouts are of one batch
            with sampler.in_place(step):
                seen.append(model.weight[0, 0].item())
        assert (model.weight == step).all(), "what learns is as it was"
    assert seen[::2] == seen[1::2] == [0.0, 0.0, 0.0, 1.0, 2.0]


def test_a_long_run_stays_in_the_memory_of_its_first_copies() -> None:
    """Copies that come and go leave holes in the heap, and a run of hours grows."""
    model, seen = torch.nn.Linear(3, 2, bias=False), []
    sampler = StaleSampler(Config(train=Train(staleness=2)), model)
    for step in range(9):
        with sampler.in_place(step):
            seen.append(model.weight.data)
    assert len({weight.data_ptr() for weight in seen}) == 3


def test_eight_bits_are_three_bits_behind_the_leading_one() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 500)
    rounded = to_8_bits(weight)
    large = weight.abs() > weight.abs().amax(-1, keepdim=True) / 2**12  # smaller ones lose bits
    relative = ((rounded - weight) / weight).abs()[large]
    assert 0.03 < relative.max() <= 2**-4 + 1e-6
    assert torch.equal(to_8_bits(rounded), rounded) and not to_8_bits(torch.zeros(2, 3)).any()


def test_score_centering_expects_over_everything_that_other_weights_could_draw(language_model: LanguageModel) -> None:
    """A·Σ_v q(v)·p(v) / p_old(v), with three different sets of weights."""
    model, batch = language_model.model, a_batch().trim()

    def weights(seed: int) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [p.detach() + 0.05 * torch.randn(p.shape, generator=generator) for p in model.parameters()]

    def put(values: list[torch.Tensor]) -> None:
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.data = value

    def probabilities() -> torch.Tensor:
        with torch.no_grad():
            logits = model(input_ids=batch.token_ids, use_cache=False).logits
        return torch.nn.functional.pad(logits[:, :-1].softmax(-1), (0, 0, 1, 0))

    sampled, old, now = (weights(seed) for seed in (1, 2, 3))
    by_weights = []
    for values in (sampled, old, now):
        put(values)
        by_weights.append(probabilities())
    q, p_old, p = by_weights

    @contextmanager
    def in_place() -> Iterator[None]:
        put(sampled)
        yield
        put(old)

    put(old)
    learner = learner_of(language_model, Loss.model_validate({"methods": {"score_centering": {"on": True}}}))
    (micro,) = learner.old_pass(batch, [[list(range(len(batch)))]], sampler=in_place).minibatches[0]
    put(now)
    current, _, _ = learner._current(micro)
    expected = batch.advantages * torch.where(micro.loss_mask[..., None], q * p / p_old, 0.0).sum(-1)
    torch.testing.assert_close(centering_term(current), expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(
        expected[micro.loss_mask], batch.advantages.expand_as(expected)[micro.loss_mask], atol=0.05
    )


@pytest.mark.usefixtures("told_what_to_say")
def test_a_step_with_old_rollouts_measures_the_drift_and_takes_it_out(recipe: Callable[..., Config]) -> None:
    changes = {"train.staleness": 1, "loss.penalty.name": "none", "loss.methods.score_centering.on": True}
    trainer = a_trainer(recipe(changes | {"train.optimizer_steps_per_rollout": 1}))
    first, second = trainer.step().metrics, trainer.step().metrics
    assert first["centering/drift"] < 1e-4 < second["centering/drift"]
    assert first["loss/score_centering"] == pytest.approx(first["advantage/token_mean"], abs=1e-4)
    assert second["sampler/logprob_gap"] != pytest.approx(0.0, abs=1e-5)
    assert second["sampler/ess"] < first["sampler/ess"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.usefixtures("told_what_to_say")
def test_all_other_weights_are_gone_before_the_final_evaluation(recipe: Callable[..., Config]) -> None:
    trainer = a_trainer(recipe({"train.staleness": 1, "loss.kl_coef": 0.1}))
    trainer.learner.renew_anchor()
    trainer.step()
    held = [weakref.ref(weights) for weights in (trainer._sampler, trainer.learner.reference, trainer.learner.anchor)]
    assert None not in [weights() for weights in held]
    trainer.free_training_state()
    assert [weights() for weights in held] == [None] * 3
