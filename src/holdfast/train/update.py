"""One rollout batch becomes K optimizer steps: plan, old pass, objective, steps, and what they did to likelihoods.

All that changes weights is here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from holdfast.batch import TokenBatch
from holdfast.config import Config, Loss, Train
from holdfast.losses import (
    clipped_policy_loss,
    kl_loss,
    merge_stats,
    penalty_stats,
    ratio_stats,
    reduce_loss,
)
from holdfast.metrics import per_token_mean

Forward = Callable[..., tuple[Tensor, Tensor | None]]
"""`(token_ids, loss_mask, entropy=bool, kept=ids or None) -> (log-probs, entropies or None)`, bound to one model."""
Keeper = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(token_ids, loss_mask) -> (log-probs among the tokens kept, their ids)`, bound to one model and its sampler."""


_PASS = 256
"""What a forward and backward pass costs besides its tokens, in tokens: measured on a CPU with a tiny model."""


def plan_update(
    lengths: Sequence[int], steps: int, micro_batch_tokens: int, generator: torch.Generator
) -> list[list[list[int]]]:
    """Split rows into `steps` mini-batches at random, each into micro-batches of rows of similar length.

    A micro-batch holds at most `micro_batch_tokens` tokens, padding included (one longer row still gets its own). Every
    row is used exactly once; mini-batches differ by one row at most.

    >>> plan = plan_update([5, 9, 5, 9], 2, 10, torch.Generator().manual_seed(0))
    >>> sorted(row for mini in plan for micro in mini for row in micro)
    [0, 1, 2, 3]
    """
    order = torch.randperm(len(lengths), generator=generator).tolist()
    plan = []
    for k in range(min(steps, len(order))):
        rows = sorted(order[k::steps], key=lambda row: (lengths[row], row))
        bounds = _cheapest_cuts([lengths[row] for row in rows], micro_batch_tokens)
        plan.append([rows[start:end] for start, end in itertools.pairwise(bounds)])
    return plan


def _cheapest_cuts(lengths: Sequence[int], budget: int) -> list[int]:
    """Where to cut rows of ascending length so that padding and passes together cost least: [0, ..., len(lengths)].

    Passes hold at most `budget` tokens, or a single row. Of three short rows and a long one, the long one goes alone:

    >>> _cheapest_cuts([40, 41, 42, 500], budget=4000)
    [0, 3, 4]
    """
    best: list[tuple[int, list[int]]] = [(0, [0])]  # for the first n rows: cost in tokens, cuts
    for end, width in enumerate(lengths, start=1):
        start = max(0, min(end - 1, end - budget // max(width, 1)))
        ways = ((best[i][0] + (end - i) * width + _PASS, i) for i in range(start, end))
        cost, cut = min(ways)
        best.append((cost, [*best[cut][1], end]))
    return best[-1][1]


@torch.no_grad()
def old_pass(
    batch: TokenBatch,
    plan: list[list[list[int]]],
    forward: Forward,
    reference: Forward | None,
    keeper: Keeper | None = None,
) -> tuple[list[list[TokenBatch]], TokenBatch, dict[str, float]]:
    """Micro-batches with `old_logprobs` (and `ref_logprobs`), computed on the very shapes the update will use.

    Equal shapes make the log-probs of the first optimizer step equal to the old ones bit for bit, so that no gate opens
    on numerical noise. With a `keeper` they are among the tokens that the sampler kept, and so will those of the update
    be. Also returns the batch with its `old_logprobs` over the whole vocabulary, always, and the mean entropy.
    """
    old_logprobs = torch.zeros_like(batch.rollout_logprobs)
    minis, entropy_sum, tokens = [], 0.0, 0
    for mini in plan:
        micros = []
        for rows in mini:
            micro = batch.select(rows).trim()
            old, entropy = forward(micro.token_ids, micro.loss_mask, entropy=True)
            assert entropy is not None
            old_logprobs[rows, : old.shape[1]] = old
            kept = None
            if keeper is not None:
                old, kept = keeper(micro.token_ids, micro.loss_mask)
            ref = reference(micro.token_ids, micro.loss_mask, kept=kept)[0] if reference is not None else None
            micros.append(replace(micro, old_logprobs=old, ref_logprobs=ref, kept_ids=kept))
            entropy_sum += float(entropy.sum())
            tokens += int(micro.loss_mask.sum())
        minis.append(micros)
    return minis, replace(batch, old_logprobs=old_logprobs), {"entropy/mean": entropy_sum / max(tokens, 1)}


@dataclass(frozen=True)
class Objective:
    """What is minimised, term by term and unreduced; a term that is switched off is None."""

    policy: Tensor
    penalty: Tensor | None
    preserved: Tensor | None
    """`[B, T]` bool, the tokens of preserved rollouts."""
    kl: Tensor | None


def objective(micro: TokenBatch, logprobs: Tensor, loss: Loss, answer_weight: float) -> Objective:
    """The terms of the loss for one micro-batch. `answer_weight` is the number this rollout batch's schedule gave."""
    assert micro.old_logprobs is not None
    arguments = (logprobs, micro.old_logprobs, micro.advantages, micro.loss_mask)
    policy = clipped_policy_loss(
        *arguments, clip_low=loss.clip_low, clip_high=loss.clip_high, dual_clip=loss.dual_clip, ratio=loss.ratio
    )
    kl = None
    if micro.ref_logprobs is not None:
        kl = kl_loss(logprobs, micro.ref_logprobs, micro.loss_mask, estimator=loss.kl_estimator)
    penalty = loss.penalty.term
    if penalty is None:
        return Objective(policy, None, None, kl)
    preserved = penalty.preserved(micro.advantages, micro.loss_mask, micro.correct[:, None])
    per_token = penalty.per_token(
        *arguments,
        preserved=preserved,
        action_ids=micro.action_ids,
        answer_mask=micro.answer_mask,
        answer_weight=answer_weight,
    )
    return Objective(policy, per_token, preserved, kl)


def update_policy(
    minis: list[list[TokenBatch]],
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    parameters: list[Tensor],
    loss: Loss,
    *,
    grad_clip: float,
    answer_weight: float = 1.0,
    max_tokens: int | None = None,
) -> dict[str, float]:
    """One optimizer step per mini-batch. Each is exact whatever the micro-batches are: terms are summed over them and
    divided by the mini-batch's own count. A step whose gradient norm is not finite is skipped and counted.

    Returns the metrics of design §7 that only the update sees.
    """
    totals, penalty = _Totals(), loss.penalty.term
    for mini in minis:
        optimizer.zero_grad(set_to_none=True)
        counts = _denominators(mini, loss)
        for micro in mini:
            logprobs, entropy = forward(
                micro.token_ids, micro.loss_mask, entropy=loss.entropy_coef != 0, kept=micro.kept_ids
            )
            terms = objective(micro, logprobs, loss, answer_weight)

            def reduced(per_token: Tensor, micro: TokenBatch = micro, count: float = counts["policy"]) -> Tensor:
                return reduce_loss(
                    per_token,
                    micro.loss_mask,
                    mode=loss.reduction,
                    denominator=None if loss.reduction == "token-sum" else count,
                    max_tokens=max_tokens,
                )

            parts = {"policy": reduced(terms.policy)}
            if terms.kl is not None:
                parts["kl"] = loss.kl_coef * reduced(terms.kl)
            if entropy is not None:
                parts["entropy"] = -loss.entropy_coef * reduced(entropy)
            if penalty is not None and terms.penalty is not None:
                if penalty.normalizer == "preserved":
                    parts["penalty"] = penalty.coef * terms.penalty.sum() / max(counts["preserved"], 1.0)
                else:
                    parts["penalty"] = penalty.coef * reduced(terms.penalty)
            torch.stack(list(parts.values())).sum().backward()
            totals.add(micro, logprobs.detach(), terms, parts, loss)
        totals.step(_clipped_step(optimizer, parameters, grad_clip))
    return totals.metrics()


def make_optimizer(parameters: Sequence[Tensor], own: Train) -> torch.optim.Optimizer:
    """The optimizer of a recipe, at its full learning rate."""
    return torch.optim.AdamW(parameters, lr=own.lr, weight_decay=own.weight_decay, betas=(0.9, 0.999))


def update_by_recipe(
    minis: list[list[TokenBatch]],
    model: Any,
    forward: Forward,
    optimizer: torch.optim.Optimizer,
    parameters: list[Tensor],
    config: Config,
    *,
    mean_searches: float,
) -> dict[str, float]:
    """`update_policy` with the loss, the limits and the penalty's schedule of a recipe.

    `mean_searches` is the mean number of valid searches of the rollout batch: what an adaptive weight goes by.
    """
    loss, limits = config.loss, config.protocol
    penalty = loss.penalty.term
    answer_weight = None if penalty is None else penalty.weight_at(mean_searches)
    norm = loss.reduction == "seq-mean-token-sum-norm"
    with _training_mode(model, config.model.gradient_checkpointing):
        metrics = update_policy(
            minis,
            forward,
            optimizer,
            parameters,
            loss,
            grad_clip=config.train.grad_clip,
            answer_weight=1.0 if answer_weight is None else answer_weight,
            max_tokens=limits.max_turns * limits.max_turn_tokens if norm else None,
        )
    return metrics | ({} if answer_weight is None else {"penalty/answer_weight": answer_weight})


@contextmanager
def _training_mode(model: Any, checkpointing: bool) -> Iterator[None]:
    """transformers recomputes activations in training mode only; dropout is 0 in either."""
    model.train(checkpointing)
    try:
        yield
    finally:
        model.eval()


def likelihood_change(batch: TokenBatch, plan: list[list[list[int]]], forward: Forward) -> Tensor:
    """The rollouts of `batch` under the present weights minus under the old: `[B]`, nats per sampled token.

    Computed on the shapes of `plan`, which must name every row: with the plan of the old pass, no update is exactly 0.
    """
    return per_token_mean(token_change(batch, plan, forward), batch.loss_mask)


@torch.no_grad()
def token_change(batch: TokenBatch, plan: list[list[list[int]]], forward: Forward) -> Tensor:
    """`likelihood_change` token by token: `[B, T]`, nats, 0 on tokens that were not sampled."""
    change = torch.zeros(batch.token_ids.shape, device=batch.token_ids.device)
    for indices in (rows for mini in plan for rows in mini):
        micro = batch.select(indices).trim()
        assert micro.old_logprobs is not None
        new, _ = forward(micro.token_ids, micro.loss_mask)
        change[indices, : new.shape[1]] = torch.where(micro.loss_mask, new - micro.old_logprobs, 0.0)
    return change


def _clipped_step(optimizer: torch.optim.Optimizer, parameters: list[Tensor], grad_clip: float) -> float:
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip))
    if math.isfinite(norm):
        optimizer.step()
    else:
        # The moments must not see it: one non-finite gradient would poison every later step.
        optimizer.zero_grad(set_to_none=True)
    return norm


def _denominators(mini: list[TokenBatch], loss: Loss) -> dict[str, float]:
    """Counts over the whole optimizer step: what `reduce_loss` divides by, and the tokens a penalty protects."""
    by_token = loss.reduction == "token-mean"
    policy = sum(float(m.loss_mask.sum() if by_token else m.loss_mask.any(-1).sum()) for m in mini)
    preserved = 0.0
    penalty = loss.penalty.term
    if penalty is not None and penalty.normalizer == "preserved":
        preserved = sum(float(penalty.preserved(m.advantages, m.loss_mask, m.correct[:, None]).sum()) for m in mini)
    return {"policy": max(policy, 1.0), "preserved": preserved}


class _Totals:
    """Sums over micro-batches, reduced once at the end so that nobody averages averages."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}
        self.stats: list[dict[str, Tensor]] = []
        self.norms: list[float] = []
        self.noise: list[Tensor] = []

    def add(self, micro: TokenBatch, logprobs: Tensor, terms: Objective, parts: dict[str, Tensor], loss: Loss) -> None:
        assert micro.old_logprobs is not None
        old, mask = micro.old_logprobs, micro.loss_mask
        for name, value in parts.items():
            self.parts[name] = self.parts.get(name, 0) + value.detach()
        stats = ratio_stats(
            logprobs,
            old,
            micro.advantages,
            mask,
            clip_low=loss.clip_low,
            clip_high=loss.clip_high,
            ratio=loss.ratio,
        )
        if terms.penalty is not None:
            assert terms.preserved is not None
            stats |= penalty_stats(terms.penalty.detach(), logprobs, old, mask, preserve=terms.preserved)
        self.stats.append(stats)
        if not self.norms:  # first optimizer step: old equals new, so any difference is numerical noise
            self.noise.append((logprobs - old).abs().max())

    def step(self, norm: float) -> None:
        self.norms.append(norm)

    def metrics(self) -> dict[str, float]:
        """As plain numbers; the losses are means over the optimizer steps."""
        finite = [norm for norm in self.norms if math.isfinite(norm)]
        result = {f"loss/{name}": float(value) / len(self.norms) for name, value in self.parts.items()}
        merged = merge_stats(self.stats)
        result |= {name: float(value) for name, value in merged.items() if not name.startswith("count/")}
        if finite:
            result |= {"grad/norm": sum(finite) / len(finite), "grad/norm_max": max(finite)}
        result["grad/skipped"] = float(len(self.norms) - len(finite))
        result["penalty/noise_floor"] = float(torch.stack(self.noise).max())
        result["optimizer_steps_per_rollout"] = float(len(self.norms))
        return result
