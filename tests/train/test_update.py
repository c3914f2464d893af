"""The objective of an update against one composed by hand, and its terms: logged, switched off, weighted."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.trajectory import Answer, Group, Search, Status, Trajectory, Turn
from holdfast.methods.negative_weight import NegativeWeight
from holdfast.methods.off_policy_mask import OffPolicyMask
from holdfast.methods.penalties import LLDS, NLL, SAPO, NoPenalty
from holdfast.methods.registry import Methods
from holdfast.model.language_model import LanguageModel
from holdfast.model.logprobs import token_logprobs
from holdfast.recipe import Loss
from holdfast.train.learner import Reference
from holdfast.train.objective import Objective
from holdfast.train.plan import Plan, in_order, plan_update, shuffled
from holdfast.train.rollouts import training_batch

from .one_update import a_batch, double, learner_of, run

# ---- composed by hand


def by_hand(batch: TokenBatch, new: Tensor, old: Tensor, ref: Tensor | None, entropy: Tensor, loss: Loss) -> Tensor:
    """The minimised number for one mini-batch, token by token in plain Python floats' order, from the formulas."""
    n_rows, width = batch.token_ids.shape
    mask = batch.loss_mask
    penalty, answer_weight = loss.penalty.term, 0.5
    tokens = int(mask.sum())
    preserved = [
        {"nonnegative": float(a) >= 0, "positive": float(a) > 0, "correct": bool(c)}[
            getattr(penalty, "preserve", "positive")
        ]
        for a, c in zip(batch.advantages[:, 0], batch.correct, strict=True)
    ]
    preserved_tokens = sum(int(mask[row].sum()) for row in range(n_rows) if preserved[row])
    zero = new.new_zeros(())

    def reduce(values: dict[tuple[int, int], Tensor]) -> Tensor:
        rows = [[values[row, t] for t in range(width) if mask[row, t]] for row in range(n_rows)]
        sums = [sum(row, zero) for row in rows]
        if loss.reduction == "token-mean":
            return sum(sums, zero) / tokens
        if loss.reduction == "token-sum":
            return sum(sums, zero)
        if loss.reduction == "seq-mean-token-sum":
            return sum(sums, zero) / n_rows
        if loss.reduction == "seq-mean-token-mean":
            return sum((s / len(row) for s, row in zip(sums, rows, strict=True)), zero) / n_rows
        return sum((s / 12 for s in sums), zero) / n_rows  # the largest number of tokens an episode may have

    policy, kl, bonus, held = {}, {}, {}, {}
    for row in range(n_rows):
        a = float(batch.advantages[row, 0])
        mine = [t for t in range(width) if mask[row, t]]
        drop = {t: old[row, t].detach() - new[row, t] for t in mine}
        fall = {t: float(drop[t].detach()) for t in mine}
        for t in mine:
            k = int(batch.action_ids[row, t])
            action = [u for u in mine if int(batch.action_ids[row, u]) == k]
            if loss.ratio != "token":  # value of the unit's ratio, gradient of this token's log-prob
                unit = mine if loss.ratio == "sequence" else action
                move = -sum((drop[u] for u in unit), zero) / len(unit)
                r = move.detach().exp() * (new[row, t] - new[row, t].detach()).exp()
            else:
                r = (new[row, t] - old[row, t].detach()).exp()
            surrogate = torch.min(r * a, r.clamp(1 - loss.clip_low, 1 + loss.clip_high) * a)
            if loss.surrogate == "cispo":
                surrogate = r.detach().clamp(1 - loss.clip_low, 1 + loss.clip_high) * a * new[row, t]
            elif loss.surrogate == "dppo":
                rise = float((new[row, t].exp() - old[row, t].exp()).detach())
                surrogate = r * a * float(not (rise > loss.clip_high if a > 0 else -rise > loss.clip_low))
            far, lighter = loss.methods.off_policy_mask, loss.methods.negative_weight
            if far.on and a < 0:
                surrogate = surrogate * float(sum(fall.values()) / len(mine) <= far.threshold)
            if lighter.on and a < 0:
                surrogate = surrogate * lighter.weight
            if loss.dual_clip is not None and a < 0:
                surrogate = torch.max(surrogate, zero + loss.dual_clip * a)
            policy[row, t] = -surrogate
            if ref is not None:
                d = ref[row, t].detach() - new[row, t]
                kl[row, t] = d.exp() - d - 1 if loss.kl_estimator == "k3" else d * d / 2
            bonus[row, t] = entropy[row, t]
            held[row, t] = 0 * new[row, t]
            if isinstance(penalty, LLDS):
                unit = {"action": action, "response": mine, "token": [t]}[penalty.gate]
                opened = sum(fall[u] for u in unit) > penalty.threshold * len(unit)
                if preserved[row] and fall[t] > penalty.threshold and (opened or penalty.gate == "token"):
                    held[row, t] = drop[t] * (answer_weight if bool(batch.answer_mask[row, t]) else 1.0)
            elif isinstance(penalty, SAPO) and preserved[row] and fall[t] > -math.log(penalty.tau):
                held[row, t] = drop[t]
            elif isinstance(penalty, NLL) and a > 0:
                held[row, t] = -new[row, t]
    total = reduce(policy) - loss.entropy_coef * reduce(bonus)
    if ref is not None:
        total = total + loss.kl_coef * reduce(kl)
    if penalty is not None:
        summed = sum(held.values(), zero) / preserved_tokens if penalty.normalizer == "preserved" else reduce(held)
        total = total + penalty.coef * summed
    return total


BY_HAND = [
    *(Loss(kl_coef=0.05, penalty=LLDS(gate=gate, answer_weight=0.5)) for gate in ("action", "response", "token")),
    *(
        Loss(kl_coef=0.0, penalty=method(normalizer=normalizer, preserve=preserve))
        for method in (LLDS, SAPO)
        for normalizer in ("policy", "preserved")
        for preserve in ("nonnegative", "positive", "correct")
    ),
    *(Loss(kl_coef=0.0, penalty=NLL(normalizer=normalizer)) for normalizer in ("policy", "preserved")),
    *(
        Loss(kl_coef=0.05, entropy_coef=0.02, reduction=reduction)
        for reduction in (
            "token-mean",
            "token-sum",
            "seq-mean-token-sum",
            "seq-mean-token-mean",
            "seq-mean-token-sum-norm",
        )
    ),
    Loss(ratio="sequence", kl_coef=0.3, kl_estimator="k2", penalty=NoPenalty()),
    Loss(clip_low=0.01, clip_high=0.03, dual_clip=1.02, penalty=SAPO(tau=0.98)),
    Loss(penalty=LLDS(threshold=0.02, coef=0.7)),
    Loss(ratio="action", clip_low=0.02, clip_high=0.02),
    Loss(surrogate="cispo", clip_low=0.03, clip_high=0.02, reduction="seq-mean-token-mean"),
    Loss(surrogate="dppo", clip_low=0.002, clip_high=0.001, penalty=NoPenalty()),
    Loss(methods=Methods(off_policy_mask=OffPolicyMask(threshold=0.001), negative_weight=NegativeWeight(weight=0.5))),
    Loss(methods=Methods(negative_weight=NegativeWeight(weight=0.0)), kl_coef=0.0, penalty=NoPenalty()),
]


@pytest.mark.parametrize("loss", BY_HAND, ids=lambda x: f"{x.penalty.name}-{x.reduction}-{x.ratio}-{x.surrogate}")
def test_the_second_step_is_the_objective_composed_by_hand(make_model: Callable[..., Any], loss: Loss) -> None:
    """Two SGD steps of the update against the same two steps on the number composed from the formulas.

    The first has Δ = 0; on the second every term of the objective is at work.
    """
    batch = a_batch()
    plan = [[[0, 3, 2], [1]], [[4, 6], [5]]]
    _, weights = run(make_model(), batch, plan, loss, lr=0.02, answer_weight=0.5)

    model = make_model().double()
    forward, start = double(model), double(copy.deepcopy(model))
    with torch.no_grad():
        old, _ = start(batch.token_ids, batch.loss_mask)
    for mini in ([0, 3, 2, 1], [4, 6, 5]):
        part = batch.select(mini)
        new, entropy = forward(part.token_ids, part.loss_mask, entropy=True)
        assert entropy is not None
        ref = old[mini] if loss.kl_coef else None
        value = by_hand(part, new, old[mini], ref, entropy, loss)
        model.zero_grad()
        value.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.02 * p.grad
    for name, p in model.named_parameters():
        torch.testing.assert_close(weights[name], p.detach(), atol=1e-10, rtol=1e-8, msg=name)


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


def test_a_term_that_is_off_is_absent(make_model: Callable[..., Any]) -> None:
    batch = a_batch()
    metrics, _ = run(make_model(), batch, [[[*range(7)]]], Loss(kl_coef=0.0, penalty=NoPenalty()))
    assert not {"loss/kl", "loss/penalty", "loss/entropy", "penalty/active_fraction"} & set(metrics)
    old = replace(batch, old_logprobs=torch.zeros_like(batch.rollout_logprobs))
    terms = Objective(Loss(kl_coef=0.0, penalty=NoPenalty())).terms(old, torch.zeros(7, 24))
    assert terms.penalty is terms.kl is terms.preserved is None


# ---- the plan


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_uses_every_row_once_in_even_mini_batches(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (int(torch.randint(1, 40, (), generator=g)),), generator=g).tolist()
    steps, budget = int(torch.randint(1, 12, (), generator=g)), int(torch.randint(64, 200, (), generator=g))
    for minibatches in (shuffled(len(lengths), steps, g), in_order(len(lengths), steps)):
        for device in ("cpu", "cuda"):
            check_plan(plan_update(lengths, minibatches, budget, torch.device(device)), lengths, steps, budget)


def check_plan(plan: Plan, lengths: list[int], steps: int, budget: int) -> None:
    assert sorted(row for mini in plan for micro in mini for row in micro) == list(range(len(lengths)))
    assert len(plan) == min(steps, len(lengths))
    sizes = [sum(map(len, mini)) for mini in plan]
    assert max(sizes) - min(sizes) <= 1
    for micro in (micro for mini in plan for micro in mini):
        assert len(micro) * max(lengths[row] for row in micro) <= budget


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


# ---- the gradient of an update


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


# ---- from groups of episodes to what the losses take


def episode(right: bool, searches: int, *, failed: bool = False) -> Trajectory:
    """Three tokens a search with four of feedback, then two for the answer."""
    turns = [
        Turn(tokens=(7, 8, 9), logprobs=(0.0,) * 3, observation=(4, 5, 6, 4), action=Search("lake"), text="s")
        for _ in range(searches)
    ]
    turns.append(Turn(tokens=(10, 11), logprobs=(0.0,) * 2, action=Answer("town"), text="a"))
    return Trajectory(
        example_id="q",
        prompt=(1, 2),
        turns=tuple(turns),
        status=Status.RETRIEVAL_FAILED if failed else Status.OK,
        reward=None if failed else float(right),
        reward_parts={} if failed else {"em": float(right)},
    )


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_baseline_by_length_counts_sampled_tokens_alone(kind: str) -> None:
    group = Group("q", (episode(True, 1), episode(False, 2), episode(False, 3), episode(False, 9, failed=True)))
    settings = Loss(advantage=kind, baseline="length")
    batch = training_batch([group], settings, pad_token_id=0, device=torch.device("cpu"))
    b = 5 / (5 + 8 + 11)  # feedback and the failed rollout count for nothing
    deviation = (1 / 3) ** 0.5 if kind == "grpo" else 1.0
    assert batch.advantages[:, 0].tolist() == pytest.approx([x / deviation for x in (1 - b, -b, -b)], 1e-4)
    assert float((batch.advantages * batch.loss_mask).sum()) == pytest.approx(0, abs=1e-5)
