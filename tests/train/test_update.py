"""The update: its plan, its invariance to micro-batches, its objective against one composed by hand, what it skips."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.batch import TokenBatch
from holdfast.config import Loss, Penalty
from holdfast.penalties import penalty_of
from holdfast.train.forward import token_logprobs
from holdfast.train.update import objective, old_pass, plan_update, update_policy

Minis = list[list[TokenBatch]]


def a_batch(rows: int = 7, seed: int = 3, vocabulary: int = 280) -> TokenBatch:
    """Ragged rows: a prompt of 2 to 4 tokens, then one to three actions, the last one an answer; mixed advantages."""
    g = torch.Generator().manual_seed(seed)

    def between(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=g))

    width = 24
    names = ("token_ids", "attention_mask", "action_ids")
    fields = {name: torch.zeros(rows, width, dtype=torch.long) for name in names}
    answer_mask = torch.zeros(rows, width, dtype=torch.bool)
    for row in range(rows):
        t = between(2, 4)
        actions = 1 + row % 3
        for k in range(1, actions + 1):
            said = between(2, 4)
            fields["action_ids"][row, t : t + said] = k
            if k == actions:
                answer_mask[row, t + said - 2 : t + said] = True
            t += said + (between(1, 2) if k < actions else 0)
        fields["attention_mask"][row, :t] = 1
        fields["token_ids"][row, :t] = torch.randint(2, vocabulary, (t,), generator=g)
    return TokenBatch(
        **fields,
        answer_mask=answer_mask,
        loss_mask=fields["action_ids"] > 0,
        rollout_logprobs=torch.zeros(rows, width),
        advantages=torch.tensor([1.2, -0.8, 0.0, 0.7, -1.5, 0.4, -0.2, 0.9, -0.3])[:rows, None],
        rewards=torch.zeros(rows),
        correct=torch.tensor([True, False, False, True, False, True, False, True, False])[:rows],
        group_ids=torch.arange(rows) // 2,
        valid=torch.ones(rows, dtype=torch.bool),
    )


def double(model: Any) -> Callable[..., Any]:
    """A forward pass in float64, so that different shapes of a batch differ by 1e-12 and not by 1e-6."""

    def forward(ids: Tensor, mask: Tensor, entropy: bool = False, **_: Any) -> tuple[Tensor, Tensor | None]:
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].double()
        every = torch.nn.functional.pad(logits, (0, 0, 1, 0)).log_softmax(-1)
        picked = torch.where(mask, every.gather(-1, ids[..., None])[..., 0], 0.0)
        if not entropy:
            return picked, None
        return picked, torch.where(mask, -(every.exp() * every).sum(-1), 0.0)

    return forward


def run(
    model: Any, batch: TokenBatch, plan: list[list[list[int]]], loss: Loss, *, lr: float = 1e-2, **options: Any
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and new weights of an update of a copy of `model`, in float64."""
    model = copy.deepcopy(model).double()
    reference = double(copy.deepcopy(model)) if loss.kl_coef else None
    parameters = list(model.parameters())
    batch = replace(batch, rollout_logprobs=batch.rollout_logprobs.double())
    minis, _, _ = old_pass(batch, plan, double(model), reference)
    optimizer = torch.optim.SGD(parameters, lr=lr)
    settings = {"grad_clip": 1e9, "max_tokens": 12 if loss.reduction.endswith("norm") else None} | options
    metrics = update_policy(minis, double(model), optimizer, parameters, loss, **settings)
    return metrics, {name: p.detach() for name, p in model.named_parameters()}


# ---- the plan


@pytest.mark.parametrize("seed", range(30))
def test_a_plan_uses_every_row_once_in_even_mini_batches(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 60, (int(torch.randint(1, 40, (), generator=g)),), generator=g).tolist()
    steps, budget = int(torch.randint(1, 12, (), generator=g)), int(torch.randint(64, 200, (), generator=g))
    plan = plan_update(lengths, steps, budget, g)
    assert sorted(row for mini in plan for micro in mini for row in micro) == list(range(len(lengths)))
    assert len(plan) == min(steps, len(lengths))
    sizes = [sum(map(len, mini)) for mini in plan]
    assert max(sizes) - min(sizes) <= 1
    for micro in (micro for mini in plan for micro in mini):
        assert len(micro) * max(lengths[row] for row in micro) <= budget


def test_a_row_longer_than_the_budget_gets_a_micro_batch_of_its_own() -> None:
    plan = plan_update([100, 5, 5], 1, 64, torch.Generator().manual_seed(0))
    assert plan == [[[1, 2], [0]]]


def test_a_plan_depends_on_its_generator_alone() -> None:
    one, same, other = (plan_update([5] * 20, 4, 64, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert one == same != other


# ---- the old pass


def test_the_old_pass_puts_every_log_prob_where_its_row_is(make_model: Callable[..., Any]) -> None:
    model, batch = make_model(), a_batch()
    plan = plan_update(batch.lengths.tolist(), 3, 64, torch.Generator().manual_seed(0))

    minis, whole, metrics = old_pass(batch, plan, partial(token_logprobs, model), None)
    assert whole.old_logprobs is not None
    with torch.no_grad():
        expected, entropies = token_logprobs(model, batch.token_ids, batch.loss_mask, entropy=True)
    torch.testing.assert_close(whole.old_logprobs, expected, atol=1e-5, rtol=1e-5)
    assert entropies is not None
    assert metrics["entropy/mean"] == pytest.approx(float(entropies.sum() / batch.loss_mask.sum()), rel=1e-5)
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

    forward = partial(token_logprobs, model, autocast_dtype=dtype)
    minis, _, _ = old_pass(batch, [[[0, 1], [2]], [[3, 4], [5]], [[6]]], forward, None)
    model.train(checkpointing)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    metrics = update_policy(minis, forward, optimizer, list(model.parameters()), Loss(), grad_clip=1.0)
    assert metrics["penalty/noise_floor"] == 0.0
    assert metrics["penalty/active_fraction"] > 0 and metrics["ratio/max"] > 1
    assert metrics["optimizer_steps_per_rollout"] == 3 and metrics["grad/skipped"] == 0


def test_the_noise_floor_sees_an_old_pass_of_other_shapes(make_model: Callable[..., Any]) -> None:
    """The twin that must fail: old log-probs from elsewhere are not equal."""
    model, batch = make_model(), a_batch()

    forward = partial(token_logprobs, model)
    minis, _, _ = old_pass(batch, [[list(range(7))]], forward, None)
    first = minis[0][0]
    assert first.old_logprobs is not None
    off = [[replace(first, old_logprobs=first.old_logprobs - 0.25 * first.loss_mask)]]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    metrics = update_policy(off, forward, optimizer, list(model.parameters()), Loss(), grad_clip=1.0)
    assert metrics["penalty/noise_floor"] == pytest.approx(0.25, abs=1e-5)


# ---- micro-batches are an accident of memory

LOSSES = {
    "llds": Loss(),
    "llds, response, paper's normaliser": Loss(penalty=Penalty(gate="response", normalizer="paper")),
    "llds, token, correct, answers half": Loss(penalty=Penalty(gate="token", preserve="correct", answer_weight=0.5)),
    "sapo, sequence means": Loss(penalty=Penalty(name="sapo"), reduction="seq-mean-token-mean"),
    "nll, sequence sums": Loss(penalty=Penalty(name="nll"), reduction="seq-mean-token-sum"),
    "dr grpo": Loss(penalty=Penalty(name="none"), reduction="seq-mean-token-sum-norm"),
    "sums": Loss(penalty=Penalty(name="llds", threshold=0.001), reduction="token-sum"),
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


# ---- the objective, composed by hand


def by_hand(batch: TokenBatch, new: Tensor, old: Tensor, ref: Tensor | None, entropy: Tensor, loss: Loss) -> Tensor:
    """The minimised number for one mini-batch, token by token in plain Python floats' order, from the formulas."""
    n_rows, width = batch.token_ids.shape
    mask = batch.loss_mask
    penalty, answer_weight = loss.penalty, 0.5
    tokens = int(mask.sum())
    preserved = [
        {"nonnegative": float(a) >= 0, "positive": float(a) > 0, "correct": bool(c)}[str(penalty.preserve)]
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
        mean_move = -sum((drop[t] for t in mine), zero) / len(mine)
        for t in mine:
            if loss.ratio == "sequence":  # value of the sequence's ratio, gradient of this token's log-prob
                r = mean_move.detach().exp() * (new[row, t] - new[row, t].detach()).exp()
            else:
                r = (new[row, t] - old[row, t].detach()).exp()
            surrogate = torch.min(r * a, r.clamp(1 - loss.clip_low, 1 + loss.clip_high) * a)
            if loss.dual_clip is not None and a < 0:
                surrogate = torch.max(surrogate, zero + loss.dual_clip * a)
            policy[row, t] = -surrogate
            if ref is not None:
                d = ref[row, t].detach() - new[row, t]
                kl[row, t] = d.exp() - d - 1 if loss.kl_estimator == "k3" else d * d / 2
            bonus[row, t] = entropy[row, t]
            k = int(batch.action_ids[row, t])
            action = [u for u in mine if int(batch.action_ids[row, u]) == k]
            unit = {"action": action, "response": mine, "token": [t]}[penalty.gate]
            weight = answer_weight if bool(batch.answer_mask[row, t]) else 1.0
            opened = sum(fall[u] for u in unit) > penalty.threshold * len(unit)
            fell = fall[t] > penalty.threshold
            if penalty.name == "llds":
                counts = preserved[row] and fell and (opened or penalty.gate == "token")
            elif penalty.name == "sapo":
                counts, weight = preserved[row] and fall[t] > -math.log(penalty.tau), 1.0
            else:
                counts = False
            held[row, t] = weight * drop[t] if counts else 0 * new[row, t]
            if penalty.name == "nll":
                held[row, t] = -new[row, t] if a > 0 else 0 * new[row, t]
    total = reduce(policy) - loss.entropy_coef * reduce(bonus)
    if ref is not None:
        total = total + loss.kl_coef * reduce(kl)
    if penalty.name != "none":
        summed = sum(held.values(), zero) / preserved_tokens if penalty.normalizer == "paper" else reduce(held)
        total = total + float(penalty.coef or 0) * summed
    return total


BY_HAND = [
    *(Loss(kl_coef=0.05, penalty=Penalty(gate=gate, answer_weight=0.5)) for gate in ("action", "response", "token")),
    *(
        Loss(kl_coef=0.0, penalty=Penalty(name=name, normalizer=normalizer, preserve=preserve))
        for name in ("llds", "sapo", "nll")
        for normalizer in ("policy", "paper")
        for preserve in ("nonnegative", "positive", "correct")
        if name != "nll" or preserve == "positive"
    ),
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
    Loss(ratio="sequence", kl_coef=0.3, kl_estimator="k2", penalty=Penalty(name="none")),
    Loss(clip_low=0.01, clip_high=0.03, dual_clip=1.02, penalty=Penalty(name="sapo", tau=0.98)),
    Loss(penalty=Penalty(threshold=0.02, coef=0.7)),
]


@pytest.mark.parametrize("loss", BY_HAND, ids=lambda loss: f"{loss.penalty.name}-{loss.reduction}-{loss.ratio}")
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
    metrics, _ = run(make_model(), batch, [[[*range(7)]]], Loss(kl_coef=0.0, penalty=Penalty(name="none")))
    assert not {"loss/kl", "loss/penalty", "loss/entropy", "penalty/active_fraction"} & set(metrics)
    old = replace(batch, old_logprobs=torch.zeros_like(batch.rollout_logprobs))
    terms = objective(old, torch.zeros(7, 24), Loss(kl_coef=0.0, penalty=Penalty(name="none")), 1.0)
    assert terms.penalty is terms.kl is terms.preserved is None


# ---- gradients that are not finite


def test_a_step_without_a_finite_gradient_is_skipped_and_counted(make_model: Callable[..., Any]) -> None:
    """Weights and moments are those of a run in which the step never was."""
    batch = a_batch()

    def update(plan: list[list[list[int]]], poisoned: int | None) -> tuple[dict[str, float], Any, Any]:
        model, passes = make_model(), 0

        def forward(ids: Tensor, mask: Tensor, entropy: bool = False, **_: Any) -> tuple[Tensor, Tensor | None]:
            nonlocal passes
            logprobs, entropies = token_logprobs(model, ids, mask, entropy=entropy)
            passes += torch.is_grad_enabled()  # not the old pass
            return logprobs * (math.inf if passes == poisoned else 1.0), entropies

        minis, _, _ = old_pass(batch, plan, forward, None)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        metrics = update_policy(minis, forward, optimizer, list(model.parameters()), Loss(), grad_clip=1.0)
        return metrics, list(model.parameters()), optimizer

    metrics, weights, optimizer = update([[[0, 1]], [[2, 3]], [[4, 5, 6]]], poisoned=2)
    clean_metrics, clean_weights, clean_optimizer = update([[[0, 1]], [[4, 5, 6]]], poisoned=None)
    assert (metrics["grad/skipped"], metrics["optimizer_steps_per_rollout"]) == (1, 3)
    assert (clean_metrics["grad/skipped"], clean_metrics["optimizer_steps_per_rollout"]) == (0, 2)
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


# ---- the schedule of answer weights


@pytest.mark.parametrize(
    ("setting", "searches", "expected"),
    [
        (0.3, 5.0, 0.3),
        ("adaptive-paper", 1.0, 0.5),  # V / 2
        ("adaptive-paper", 3.0, 1.0),
        ("adaptive-code", 1.0, 0.0),  # V − 1
        ("adaptive-code", 1.5, 0.5),
    ],
)
def test_answer_weight(setting: float | str, searches: float, expected: float) -> None:
    penalty = penalty_of(Penalty.model_validate({"answer_weight": setting}))
    assert penalty is not None
    weight = penalty.weight_at(searches)
    assert weight == expected and type(weight) is float
