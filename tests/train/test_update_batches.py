"""Mini- and micro-batches of an update: their plan, the old pass over them, and that only mini-batches matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.methods.penalties import LLDS, NLL, SAPO, NoPenalty
from holdfast.model.language_model import LanguageModel
from holdfast.model.logprobs import token_logprobs
from holdfast.recipe import Loss
from holdfast.train.plan import Plan, in_order, plan_update, shuffled

from .one_update import a_batch, learner_of, run

# ---- the plan


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_uses_every_row_once_in_even_mini_batches(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (int(torch.randint(1, 40, (), generator=g)),), generator=g).tolist()
    steps, budget = int(torch.randint(1, 12, (), generator=g)), int(torch.randint(64, 200, (), generator=g))
    for minibatches in (shuffled(len(lengths), steps, g), in_order(len(lengths), steps)):
        check_plan(plan_update(lengths, minibatches, budget), lengths, steps, budget)


def check_plan(plan: Plan, lengths: list[int], steps: int, budget: int) -> None:
    assert sorted(row for mini in plan for micro in mini for row in micro) == list(range(len(lengths)))
    assert len(plan) == min(steps, len(lengths))
    sizes = [sum(map(len, mini)) for mini in plan]
    assert max(sizes) - min(sizes) <= 1
    for micro in (micro for mini in plan for micro in mini):
        assert len(micro) * max(lengths[row] for row in micro) <= budget


def test_a_row_longer_than_the_budget_gets_a_micro_batch_of_its_own() -> None:
    plan = plan_update([100, 5, 5], [[0, 1, 2]], 64)
    assert plan == [[[1, 2], [0]]]


def test_shuffled_mini_batches_depend_on_their_generator_alone() -> None:
    one, same, other = (shuffled(20, 4, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert one == same != other


def test_mini_batches_in_order_keep_the_rollouts_of_a_question_together(language_model: LanguageModel) -> None:
    batch = replace(a_batch(9), group_ids=torch.arange(9) // 3)
    learner = learner_of(language_model, minibatches="in-order", optimizer_steps_per_rollout=3)
    plan = learner.plan(batch, torch.Generator())
    assert [sorted(row for micro in mini for row in micro) for mini in plan] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    drawn = learner_of(language_model, optimizer_steps_per_rollout=3).plan(batch, torch.Generator().manual_seed(0))
    assert any(len({row // 3 for micro in mini for row in micro}) > 1 for mini in drawn)


# ---- the old pass


def test_the_old_pass_puts_every_log_prob_where_its_row_is(make_model: Callable[..., Any]) -> None:
    model, batch = make_model(), a_batch()
    plan = plan_update(batch.lengths.tolist(), shuffled(7, 3, torch.Generator().manual_seed(0)), 64)

    minis, whole, entropy = learner_of(LanguageModel(model=model, tokenizer=None)).old_pass(batch, plan)
    assert whole.old_logprobs is not None
    with torch.no_grad():
        expected, entropies = token_logprobs(model, batch.token_ids, batch.loss_mask, entropy=True)
    torch.testing.assert_close(whole.old_logprobs, expected, atol=1e-5, rtol=1e-5)
    assert entropies is not None
    assert entropy == pytest.approx(float(entropies.sum() / batch.loss_mask.sum()), rel=1e-5)
    for rows, micro in zip((r for mini in plan for r in mini), (m for mini in minis for m in mini), strict=True):
        assert micro.ref_logprobs is None and micro.old_logprobs is not None
        assert torch.equal(micro.old_logprobs, whole.old_logprobs[rows, : micro.token_ids.shape[1]])


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_nothing_has_changed_on_the_first_optimizer_step(
    make_model: Callable[..., Any], dtype: torch.dtype | None, checkpointing: bool
) -> None:
    """Bit for bit, or gates would open on noise; on later steps it has."""
    model, batch = make_model(), a_batch()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    policy = LanguageModel(model=model, tokenizer=None, autocast_dtype=dtype, gradient_checkpointing=checkpointing)
    learner = learner_of(policy, lr=1e-2, weight_decay=0.01)
    minis, _, _ = learner.old_pass(batch, [[[0, 1], [2]], [[3, 4], [5]], [[6]]])
    metrics = learner.step(minis, mean_searches=1.0)
    assert metrics["penalty/noise_floor"] == 0.0
    assert metrics["penalty/active_fraction"] > 0 and metrics["ratio/max"] > 1
    assert metrics["optimizer_steps_per_rollout"] == 3 and metrics["grad/skipped_steps"] == 0


def test_the_noise_floor_sees_an_old_pass_of_other_shapes(make_model: Callable[..., Any]) -> None:
    """The twin that must fail: old log-probs from elsewhere are not equal."""
    model, batch = make_model(), a_batch()

    learner = learner_of(LanguageModel(model=model, tokenizer=None))
    minis, _, _ = learner.old_pass(batch, [[list(range(7))]])
    first = minis[0][0]
    assert first.old_logprobs is not None
    off = [[replace(first, old_logprobs=first.old_logprobs - 0.25 * first.loss_mask)]]
    metrics = learner.step(off, mean_searches=1.0)
    assert metrics["penalty/noise_floor"] == pytest.approx(0.25, abs=1e-5)


# ---- micro-batches are an accident of memory


LOSSES = {
    "llds": Loss(),
    "llds, response, over preserved tokens": Loss(penalty=LLDS(gate="response", normalizer="preserved")),
    "llds, token, correct, answers half": Loss(penalty=LLDS(gate="token", preserve="correct", answer_weight=0.5)),
    "sapo, sequence means": Loss(penalty=SAPO(), reduction="seq-mean-token-mean"),
    "nll, sequence sums": Loss(penalty=NLL(), reduction="seq-mean-token-sum"),
    "dr grpo": Loss(penalty=NoPenalty(), reduction="seq-mean-token-sum-norm"),
    "sums": Loss(penalty=LLDS(threshold=0.001), reduction="token-sum"),
    "gspo, entropy, k2": Loss(ratio="sequence", entropy_coef=0.01, kl_coef=0.1, kl_estimator="k2"),
    "clip higher, dual clip": Loss(clip_low=0.001, clip_high=0.002, dual_clip=1.001),
}


@pytest.mark.parametrize("name", LOSSES)
def test_micro_batches_do_not_matter(make_model: Callable[..., Any], name: str) -> None:
    model, batch = make_model(), a_batch()
    minis = [[0, 1, 2, 3], [4, 5, 6]]
    whole, apart, mixed = (
        run(model, batch, plan, LOSSES[name], answer_weight=0.5)
        for plan in (
            [[rows] for rows in minis],
            [[[row] for row in rows] for rows in minis],
            [[[2, 0], [3, 1]], [[6], [5, 4]]],
        )
    )
    for metrics, weights in (apart, mixed):
        for key, value in whole[1].items():
            torch.testing.assert_close(weights[key], value, atol=1e-11, rtol=1e-9, msg=key)
        # The percentile is a mean over micro-batches (`merge_stats`), and noise differs with the shapes.
        for key in set(whole[0]) - {"ratio/p01", "penalty/noise_floor"}:
            assert metrics[key] == pytest.approx(whole[0][key], abs=1e-9), key


def test_mini_batches_do_matter(make_model: Callable[..., Any]) -> None:
    """The twin that must fail."""
    model, batch = make_model(), a_batch()
    _, one = run(model, batch, [[[0, 1, 2, 3]], [[4, 5, 6]]], Loss())
    _, other = run(model, batch, [[[4, 5, 6]], [[0, 1, 2, 3]]], Loss())
    assert any(not torch.allclose(one[key], other[key], atol=1e-11) for key in one)
