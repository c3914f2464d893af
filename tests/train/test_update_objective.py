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
from holdfast.methods.negative_weight import NegativeWeight
from holdfast.methods.off_policy_mask import OffPolicyMask
from holdfast.methods.penalties import LLDS, NLL, SAPO, NoPenalty
from holdfast.methods.registry import Methods
from holdfast.recipe import Loss
from holdfast.train.objective import Objective

from .one_update import a_batch, double, run

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
    weight = LLDS(answer_weight=setting).weight_at(searches)  # type: ignore[arg-type]
    assert weight == expected and type(weight) is float
