"""An update: its terms as they are logged, its plan, its old pass and its gradient, whatever the micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Trajectory
from holdfast.methods.penalties import LLDS, NLL, SAPO, NoPenalty
from holdfast.methods.registry import M2PO, Methods
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.logprobs import TokenLogprobs, token_logprobs
from holdfast.recipe import Loss
from holdfast.train.learner import Reference
from holdfast.train.objective import Objective
from holdfast.train.plan import in_order, plan_update, shuffled
from holdfast.train.rollouts import training_batch

from ..rollouts import rollout, turn
from .one_update import a_batch, double, learner_of, run

# ---- its terms


def test_the_metrics_are_the_losses_of_the_steps(make_model: Callable[..., Any]) -> None:
    """Logged is what was minimised, term by term, as a mean over the optimizer steps."""
    batch, loss = a_batch(), Loss(kl_coef=0.05, entropy_coef=0.02)
    metrics, _ = run(make_model(), batch, [[[0, 1, 2, 3]], [[4, 5, 6]]], loss, lr=1e-12)
    model = make_model().double()
    with torch.no_grad():
        _, entropy = double(model)(batch.token_ids, batch.loss_mask, entropy=True)
    assert entropy is not None
    # With such a step nothing moves: the ratio is 1, the policy loss −mean A, KL and penalty 0.
    means = [
        float(-(part.advantages * part.loss_mask).sum() / part.loss_mask.sum())
        for part in (batch.select([0, 1, 2, 3]), batch.select([4, 5, 6]))
    ]
    assert metrics["loss/policy"] == pytest.approx(sum(means) / 2, abs=1e-6)
    spread = [float(entropy[rows].sum() / batch.loss_mask[rows].sum()) for rows in ([0, 1, 2, 3], [4, 5, 6])]
    assert metrics["loss/entropy"] == pytest.approx(-0.02 * sum(spread) / 2, abs=1e-6)
    assert metrics["loss/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["loss/penalty"] == pytest.approx(0, abs=1e-6)
    assert set(metrics) >= {"ratio/mean", "ratio/max", "ratio/p01", "ratio/log_product", "clip/fraction", "grad/norm"}


# ---- the plan


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_uses_every_row_once_in_even_mini_batches(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (int(torch.randint(1, 40, (), generator=g)),), generator=g).tolist()
    steps, budget = int(torch.randint(1, 12, (), generator=g)), int(torch.randint(64, 200, (), generator=g))
    for minibatches in (shuffled(len(lengths), steps, g), in_order(len(lengths), steps)):
        for device in ("cpu", "cuda"):
            plan = plan_update(lengths, minibatches, budget, torch.device(device))
            assert sorted(row for mini in plan for micro in mini for row in micro) == list(range(len(lengths)))
            sizes = [sum(map(len, mini)) for mini in plan]
            assert len(plan) == min(steps, len(lengths)) and max(sizes) - min(sizes) <= 1
            assert all(len(micro) * max(lengths[row] for row in micro) <= budget for mini in plan for micro in mini)


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
    plan = plan_update(
        batch.lengths.tolist(), shuffled(7, 3, torch.Generator().manual_seed(0)), 64, batch.token_ids.device
    )

    minis, whole, entropy = learner_of(LanguageModel(model=model, tokenizer=None)).old_pass(batch, plan)
    assert whole.old_logprobs is not None
    with torch.no_grad():
        expected, entropies, _ = token_logprobs(model, batch.token_ids, batch.loss_mask, entropy=True)
    torch.testing.assert_close(whole.old_logprobs, expected, atol=1e-5, rtol=1e-5)
    assert entropies is not None
    assert entropy == pytest.approx(float(entropies.sum() / batch.loss_mask.sum()), rel=1e-5)
    for rows, micro in zip((r for mini in plan for r in mini), (m for mini in minis for m in mini), strict=True):
        assert micro.ref_logprobs is None and micro.old_logprobs is not None
        assert torch.equal(micro.old_logprobs, whole.old_logprobs[rows, : micro.token_ids.shape[1]])


def test_the_loss_can_compare_with_the_sampler(make_model: Callable[..., Any]) -> None:
    """What it compares with are the rollouts' own log-probs; what is logged is the policy before the update."""
    batch = a_batch()
    batch = replace(batch, rollout_logprobs=-2.0 * batch.loss_mask)
    learner = learner_of(LanguageModel(model=make_model(), tokenizer=None), Loss(old_policy="sampler"))
    own = learner_of(LanguageModel(model=make_model(), tokenizer=None))
    ((micro,),), whole, _ = learner.old_pass(batch, [[list(range(7))]])
    assert micro.old_logprobs is not None and whole.old_logprobs is not None
    assert torch.equal(micro.old_logprobs, batch.rollout_logprobs[:, : micro.token_ids.shape[1]])
    assert torch.equal(whole.old_logprobs, own.old_pass(batch, [[list(range(7))]]).batch.old_logprobs)
    change = torch.where(batch.loss_mask, whole.old_logprobs + 2.0, 0.0)
    metrics = learner.step([[micro]], mean_searches=1.0)
    assert metrics["ratio/mean"] == pytest.approx(float(change[batch.loss_mask].exp().mean()), rel=1e-5)
    fell = (change < 0) & (batch.advantages >= 0)
    assert fell.any() and metrics["penalty/active_fraction"] > 0
    assert metrics["penalty/noise_floor"] == pytest.approx(float(change.abs().max()), rel=1e-5)


@pytest.mark.parametrize(("dtype", "checkpointing"), [(None, False), (torch.bfloat16, True)])
def test_nothing_has_changed_on_the_first_optimizer_step(
    make_model: Callable[..., Any], dtype: torch.dtype | None, checkpointing: bool
) -> None:
    """Bit for bit, or gates would open on noise; on later steps it has."""
    model, batch = make_model(), a_batch()
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})

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
    "m2po": Loss(penalty=NoPenalty(), old_policy="sampler", methods=Methods(m2po=M2PO(on=True, bound=1e-3))),
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
    assert name != "m2po" or 0 < whole[0]["loss/dropped_fraction"] < 1
    for metrics, weights in (apart, mixed):
        for key, value in whole[1].items():
            torch.testing.assert_close(weights[key], value, atol=1e-11, rtol=1e-9, msg=key)
        # The percentile is a mean over micro-batches (`merge_stats`), and noise differs with the shapes.
        for key in set(whole[0]) - {"ratio/p01", "penalty/noise_floor"}:
            assert metrics[key] == pytest.approx(whole[0][key], abs=1e-9), key


# ---- the gradient of an update


def test_a_step_without_a_finite_gradient_is_skipped_and_counted(make_model: Callable[..., Any]) -> None:
    """Weights and moments are those of a run in which the step never was."""
    batch = a_batch()

    def update(plan: list[list[list[int]]], poisoned: int | None) -> tuple[dict[str, float], Any, Any]:
        passes = 0

        class Poisoned(LanguageModel):
            def logprobs(self, *args: Any, **options: Any) -> TokenLogprobs:
                nonlocal passes
                found = LanguageModel.logprobs(self, *args, **options)
                passes += torch.is_grad_enabled()  # not the old pass
                return found._replace(logprobs=found.logprobs * (math.inf if passes == poisoned else 1.0))

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
    advantages = [1.0, 0.5, -1.0, -0.5, 0.0, 0.0, 0.0]  # the second micro-batch only pushes down
    batch = replace(batch, advantages=torch.tensor(advantages)[:, None])
    passes: list[bool] = []

    class Counted(LanguageModel):
        def logprobs(self, *args: Any, **options: Any) -> TokenLogprobs:
            found = LanguageModel.logprobs(self, *args, **options)
            passes.append(found.logprobs.requires_grad)
            return found

    def update() -> tuple[dict[str, float], Any]:
        passes.clear()
        policy = Counted(model=make_model(), tokenizer=None)
        learner = learner_of(policy, loss, reference=Reference(policy) if loss.kl_coef else None, lr=1e-2)
        minis, _, _ = learner.old_pass(batch, [[[0, 1], [2, 3]], [[4], [5, 6]]])
        return learner.step(minis, mean_searches=1.0), learner.parameters

    metrics, weights = update()
    alone = loss.entropy_coef == 0 and loss.kl_coef == 0
    assert sum(passes) == (2 if alone else 4)
    monkeypatch.setattr(Objective, "learns", lambda self, micro: micro.loss_mask.any(-1))
    whole_metrics, whole_weights = update()
    assert metrics == whole_metrics
    for one, other in zip(weights, whole_weights, strict=True):
        assert torch.equal(one, other)


# ---- from groups of episodes to what the losses take


def episode(right: bool, searches: int, *, failed: bool = False) -> Trajectory:
    """Three tokens a search with four of feedback, then two for the answer."""
    search = turn(Search("lake"), (7, 8, 9), observation=(4, 5, 6, 4))
    return rollout(*[search] * searches, turn(Answer("town"), (10, 11)), right=right, failed=failed)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_baseline_by_length_counts_sampled_tokens_alone(kind: str) -> None:
    group = Group("q", (episode(True, 1), episode(False, 2), episode(False, 3), episode(False, 9, failed=True)))
    objective = Objective(Loss(advantage=kind, baseline="length"))
    batch = training_batch([group], objective, pad_token_id=0, device=torch.device("cpu"))
    b = 5 / (5 + 8 + 11)  # feedback and the failed rollout count for nothing
    deviation = (1 / 3) ** 0.5 if kind == "grpo" else 1.0
    assert batch.advantages[:, 0].tolist() == pytest.approx([x / deviation for x in (1 - b, -b, -b)], 1e-4)
    assert float((batch.advantages * batch.loss_mask).sum()) == pytest.approx(0, abs=1e-5)


def test_a_pad_token_that_was_sampled_is_a_token_like_any_other() -> None:
    """Masks are by position, never by id."""
    groups = [Group("q", (episode(True, 1), episode(False, 3)))]
    plain, padded = (TokenBatch.from_trajectories(groups, pad_token_id=pad) for pad in (0, 8))
    assert bool(((padded.token_ids == 8) & padded.loss_mask).any()) and bool((padded.token_ids[0, 11:] == 8).all())
    for name in ("loss_mask", "lengths", "action_ids", "answer_mask"):
        assert torch.equal(getattr(plain, name), getattr(padded, name))
