"""The saving forward pass against the plain one: values and gradients, whatever the padding, model and precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.model.passes.logprobs import masked_logprobs, token_logprobs
from holdfast.recipe import Config
from holdfast.train.trainer import Trainer

from .whole_runs import a_trainer


def plain(model: Any, ids: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Row by row without padding: log_softmax over all positions, then what the mask asks for."""
    logprobs, entropies = torch.zeros(ids.shape), torch.zeros(ids.shape)
    for row, (tokens, sampled) in enumerate(zip(ids, mask, strict=True)):
        length = int(sampled.nonzero().max()) + 1 if bool(sampled.any()) else 1
        logits = model(input_ids=tokens[None, :length], use_cache=False).logits[0].double() / temperature
        every = logits.log_softmax(-1)
        for t in range(1, length):
            if sampled[t]:
                logprobs[row, t] = every[t - 1, tokens[t]]
                entropies[row, t] = -(every[t - 1].exp() * every[t - 1]).sum()
    return logprobs, entropies


def ragged(vocabulary: int = 280) -> tuple[Tensor, Tensor]:
    """Three rows: two turns around an observation; one short turn, then padding; nothing sampled at all."""
    ids = torch.randint(2, vocabulary, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[0, 3:6] = mask[0, 9:12] = mask[1, 2:4] = True
    ids[1, 4:] = ids[2, 7:] = 0
    return ids, mask


MODELS = {
    "qwen2": ("Qwen2", {}),
    "tied": ("Qwen2", {"tie_word_embeddings": True}),
    "soft-capped": ("Gemma2", {"final_logit_softcapping": 5.0, "head_dim": 8, "attention": "eager"}),
    "scaled logits": ("Cohere", {"logit_scale": 0.25}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_equals_the_plain_forward(make_model: Callable[..., Any], kind: str) -> None:
    (family, settings), temperature = MODELS[kind], 0.7
    model = make_model(family, **settings)
    ids, mask = ragged()
    with torch.no_grad():
        logprobs, entropies, _ = token_logprobs(model, ids, mask, temperature=temperature, entropy=True)
        expected, expected_entropies = plain(model, ids, mask, temperature)
    assert entropies is not None
    assert float(expected.min()) < -3  # the model has opinions, so that equality says something
    torch.testing.assert_close(logprobs, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, atol=2e-5, rtol=1e-5)
    assert bool((logprobs[~mask] == 0).all()) and bool((entropies[~mask] == 0).all())


def test_gradients_equal_the_plain_forwards(make_model: Callable[..., Any]) -> None:
    ids, mask = ragged()
    weights = torch.linspace(-1, 2, ids.numel()).view(ids.shape)
    grads = []
    for forward in (lambda m: token_logprobs(m, ids, mask, entropy=True), lambda m: plain(m, ids, mask, 1.0)):
        model = make_model()
        logprobs, entropies, *_ = forward(model)
        (weights * logprobs + weights.flip(0) * entropies).sum().backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    for name, grad in grads[0].items():
        torch.testing.assert_close(grad, grads[1][name], atol=1e-4, rtol=1e-4, msg=name)


def test_the_output_layer_sees_sampled_positions_only(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    seen = []
    hook = model.get_output_embeddings().register_forward_hook(lambda _, args, out: seen.append(out.shape))
    token_logprobs(model, ids, mask)
    hook.remove()
    assert seen == [(1, 8, model.config.vocab_size)]  # 3 + 3 + 2 sampled tokens of 36 positions


def test_the_hook_goes_even_when_the_model_fails(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, mask = ragged()
    with pytest.raises(IndexError):
        token_logprobs(model, ids + 10_000, mask)
    assert model(input_ids=ids).logits.shape == (3, 12, model.config.vocab_size)


def test_nothing_sampled_is_zero_with_a_gradient(make_model: Callable[..., Any]) -> None:
    model = make_model()
    ids, _ = ragged()
    logprobs, entropies, _ = token_logprobs(model, ids, torch.zeros_like(ids, dtype=torch.bool), entropy=True)
    assert entropies is not None
    (logprobs.sum() + entropies.sum()).backward()
    assert not logprobs.any() and not entropies.any()
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


# ---- sampling masks


Recipe = Callable[..., Config]
CUT = {"sampling.top_p": 0.7, "sampling.top_k": 12, "sampling.temperature": 0.9}


def make_trainer(recipe: Recipe, **changes: Any) -> Trainer:
    return a_trainer(recipe(CUT | {"sampling.mask_logprobs": True} | changes))


def test_the_old_log_probs_are_the_samplers_own(recipe: Recipe) -> None:
    """Of real rollouts: what the sampler said over the vocabulary, divided by the mass it kept."""
    trainer = make_trainer(recipe)
    groups, _ = trainer.roll_out(trainer.question_order.next(4))
    batch = trainer.make_batch(groups)
    minis, whole, _ = trainer.learner.old_pass(batch, [[[row] for row in range(len(batch))]])
    episodes = [episode for group in groups for episode in group.trajectories]
    masses = [torch.tensor([mass for turn in one.turns for mass in turn.mask_mass or ()]) for one in episodes]
    assert whole.old_logprobs is not None and float(torch.cat(masses).min()) < 0.9
    for row, (micro, mass) in enumerate(zip(minis[0], masses, strict=True)):
        mask = micro.loss_mask
        assert micro.old_logprobs is not None
        wanted = micro.rollout_logprobs[mask] - mass.log()
        torch.testing.assert_close(micro.old_logprobs[mask], wanted, atol=1e-4, rtol=1e-4)
        # What is reported of likelihoods stays over the whole vocabulary, so that runs can be compared.
        here = whole.old_logprobs[row, : mask.shape[1]][mask[0]]
        torch.testing.assert_close(here, micro.rollout_logprobs[mask], atol=1e-4, rtol=1e-4)


def test_the_kept_log_probs_sum_to_one_and_are_those_of_every_later_pass(make_model: Callable[..., Any]) -> None:
    model, (ids, mask) = make_model(), ragged()
    with torch.no_grad():
        logprobs, sampling_mask = masked_logprobs(model, ids, mask, temperature=0.7, top_p=0.8, top_k=9)
        options: dict[str, Any] = {"temperature": 0.7, "entropy": True}
        again, entropies, _ = token_logprobs(model, ids, mask, sampling_mask=sampling_mask, **options)
        whole, its_entropies, _ = token_logprobs(model, ids, mask, **options)
        logits = model(input_ids=ids, use_cache=False).logits / 0.7
    assert torch.equal(logprobs, again) and torch.equal(entropies, its_entropies)
    assert bool((logprobs[mask] > whole[mask]).all()) and bool((logprobs[~mask] == 0).all())
    for (row, t), drawable in zip(mask.nonzero().tolist(), torch.cat(sampling_mask.rows).tolist(), strict=True):
        among = [k for k in drawable if k >= 0]
        assert int(ids[row, t]) in among
        restricted = logits[row, t - 1, among].log_softmax(-1)
        assert float(logprobs[row, t]) == pytest.approx(float(restricted[among.index(int(ids[row, t]))]), abs=1e-5)


def test_a_step_sees_no_gap_and_no_noise(recipe: Recipe) -> None:
    kept = make_trainer(recipe).step()
    metrics = kept.metrics
    assert metrics["sampler/mask_in_loss"] == 1 and abs(metrics["sampler/logprob_gap"]) < 1e-4
    assert metrics["penalty/noise_floor"] == 0 and metrics["sampler/mask_mass"] < 0.95
    whole = make_trainer(recipe, **{"sampling.mask_logprobs": False}).step()
    mismatched = whole.metrics
    assert whole.groups == kept.groups, "the first rollouts are the same"
    assert mismatched["sampler/logprob_gap"] > 0.05 and "sampler/mask_in_loss" not in mismatched
    assert mismatched["likelihood/incorrect"] == metrics["likelihood/incorrect"]
    assert mismatched["displacement/incorrect"] != metrics["displacement/incorrect"]
    assert all(math.isfinite(value) for value in metrics.values())


# ---- `score_centering` in the local trainer


TRUNCATED: dict[str, Any] = {"sampling.top_p": 0.7, "sampling.top_k": 12, "loss.penalty.name": "none"}
CENTRED = {"loss.methods.score_centering.on": True}
MASKED = {"sampling.mask_logprobs": True}


def gradient(trainer: Trainer) -> torch.Tensor:
    """Of the loss of a rollout batch, before anything moved. Every other rollout counts as right."""
    learner = trainer.learner
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(4))[0])
    batch = replace(batch, advantages=(1.0 - 2.0 * (torch.arange(len(batch)) % 2))[:, None])
    old = learner.old_pass(batch, [[list(range(len(batch)))]])
    (micro,) = old.minibatches[0]
    loss, _ = learner.objective(*learner._current(micro), learner.objective.count([micro]))
    grads = torch.autograd.grad(loss, learner.parameters, allow_unused=True)
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def test_the_first_step_is_that_of_the_sampling_mask(recipe: Recipe) -> None:
    plain, centred, masked = (gradient(a_trainer(recipe(TRUNCATED | extra))) for extra in ({}, CENTRED, MASKED))
    assert float((plain - masked).norm()) > 0.05 * float(masked.norm())
    torch.testing.assert_close(centred, masked, rtol=1e-3, atol=1e-5 * float(masked.abs().max()))
