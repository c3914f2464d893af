"""`sampling.mask_logprobs`: the loss speaks of the distribution that the truncated sampler drew from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.model.logprobs import masked_logprobs, token_logprobs
from holdfast.recipe import Config, load
from holdfast.train.trainer import Trainer

from .whole_runs import a_trainer

Recipe = Callable[..., Config]
CUT = {"sampling.top_p": 0.7, "sampling.top_k": 12, "sampling.temperature": 0.9}


def make_trainer(recipe: Recipe, **changes: Any) -> Trainer:
    return a_trainer(recipe(CUT | {"sampling.mask_logprobs": True} | changes))


def ragged() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(2, 280, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[0, 3:6] = mask[0, 9:12] = mask[1, 2:4] = True
    return ids, mask


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
        again, entropies = token_logprobs(model, ids, mask, temperature=0.7, sampling_mask=sampling_mask, entropy=True)
        whole, its_entropies = token_logprobs(model, ids, mask, temperature=0.7, entropy=True)
        logits = model(input_ids=ids, use_cache=False).logits / 0.7
    assert torch.equal(logprobs, again) and torch.equal(entropies, its_entropies)
    assert bool((logprobs[mask] > whole[mask]).all()) and bool((logprobs[~mask] == 0).all())
    for (row, t), drawable in zip(mask.nonzero().tolist(), torch.cat(sampling_mask.rows).tolist(), strict=True):
        among = [k for k in drawable if k >= 0]
        assert int(ids[row, t]) in among
        restricted = logits[row, t - 1, among].log_softmax(-1)
        assert float(logprobs[row, t]) == pytest.approx(float(restricted[among.index(int(ids[row, t]))]), abs=1e-5)


def test_nothing_pushes_on_what_was_not_kept(make_model: Callable[..., Any]) -> None:
    """Without the mask every token outside gains what a wrong token inside loses (research/docs/testbed.md)."""
    model, (ids, mask) = make_model(), ragged()
    _, sampling_mask = masked_logprobs(model, ids, mask, temperature=1.0, top_p=0.8, top_k=9)
    head = model.get_output_embeddings()
    grads = {}
    for name, its in (("masked", sampling_mask), ("whole", None)):
        seen: list[torch.Tensor] = []
        hook = head.register_forward_hook(lambda _, __, out, seen=seen: (out.retain_grad(), seen.append(out))[1])
        logprobs, _ = token_logprobs(model, ids, mask, sampling_mask=its)
        hook.remove()
        (-logprobs.sum()).backward()
        grads[name] = seen[0].grad[0]
    inside = torch.zeros_like(grads["masked"], dtype=torch.bool)
    rows = torch.cat(sampling_mask.rows).long()
    inside.scatter_(1, rows.clamp(min=0), True)
    inside[:, 0] = (rows == 0).any(-1)  # where -1 had been written to
    assert bool((grads["masked"][~inside] == 0).all()) and bool((grads["whole"][~inside] > 0).all())
    torch.testing.assert_close(grads["masked"].sum(-1), torch.zeros(len(rows)), atol=1e-5, rtol=0)


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


def test_the_reference_is_asked_about_the_same_tokens(recipe: Recipe) -> None:
    trainer = make_trainer(recipe, **{"loss.kl_coef": 0.1})
    groups, _ = trainer.roll_out(trainer.question_order.next(4))
    batch = trainer.make_batch(groups)
    minis, _, _ = trainer.learner.old_pass(batch, [[list(range(len(batch)))]])
    (micro,) = minis[0]
    assert micro.ref_logprobs is not None and torch.equal(micro.ref_logprobs, micro.old_logprobs)  # nothing moved yet


def test_rows_of_a_batch_take_their_mask_along(recipe: Recipe) -> None:
    trainer = make_trainer(recipe)
    batch = trainer.make_batch(trainer.roll_out(trainer.question_order.next(4))[0])
    (micro,) = trainer.learner.old_pass(batch, [[list(range(len(batch)))]]).minibatches[0]
    last, short = len(micro) - 1, int(micro.lengths.argmin())
    part = micro.select([last, short]).trim()
    same = micro.select(torch.arange(len(micro))).sampling_mask
    assert part.sampling_mask is not None and micro.sampling_mask is not None and same is not None
    assert all(torch.equal(a, b) for a, b in zip(same.rows, micro.sampling_mask.rows, strict=True))
    logprobs, _ = trainer.learner.logprobs(part.token_ids, part.loss_mask, sampling_mask=part.sampling_mask)
    torch.testing.assert_close(logprobs.detach(), part.old_logprobs, atol=1e-5, rtol=1e-5)
    picked = micro.select(torch.tensor([row == short for row in range(len(micro))]))
    assert picked.sampling_mask is not None
    assert [len(row) for row in picked.sampling_mask.rows] == [int(picked.loss_mask.sum())]
    with pytest.raises(ValueError, match="sampling_mask has 1 rows"):
        replace(micro, sampling_mask=micro.sampling_mask.select([0]))


@pytest.mark.parametrize("cut", [(), ("--sampling.top_p", "0.9")])
def test_a_mask_without_a_bound_is_refused(cut: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"sampling\.mask_logprobs = true with sampling\.top_k = 0: .*Set sampling\.top_k"
    ):
        load(overrides=["--sampling.mask_logprobs", *cut])
