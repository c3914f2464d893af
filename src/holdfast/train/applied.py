"""The methods of a recipe applied to a batch: which groups it learns from, which tokens, and with what weight.

What depends on the rollouts alone is applied before the old pass (`with_exclusions`), what depends on the old policy
after it (`with_weights`, `with_scores`). Masks and terms that follow the policy are in the objective.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch, sampling_log_mass
from holdfast.agent.trajectory import Group
from holdfast.methods.method import Method

Probed = Mapping[str, Sequence[float]]
"""Name of a method -> the likelihoods that it asked for."""


def selected(groups: Sequence[Group], methods: Sequence[Method]) -> list[bool]:
    """Which groups every method would learn from."""
    votes = [[True] * len(groups), *(method.select(groups) for method in methods)]
    return [all(of_group) for of_group in zip(*votes, strict=True)]


def with_credit(batch: TokenBatch, groups: Sequence[Group], methods: Sequence[Method], probed: Probed) -> TokenBatch:
    """The batch of all rollouts of `groups`, whose advantages are those of rollouts, with what methods add to them."""
    given = [method.credit(batch, groups, probed.get(method.name, ())) for method in methods]
    credits = [credit for credit in given if credit is not None]
    return replace(batch, advantages=batch.advantages + sum(credits)) if credits else batch


def with_exclusions(batch: TokenBatch, groups: Sequence[Group], methods: Sequence[Method]) -> TokenBatch:
    """The batch of all rollouts of `groups`, with the tokens that methods leave out, and the sampler's log-probs if a
    method needs them."""
    if any("sampler" in method.needs for method in methods):
        # A truncated sampler draws with the vocabulary's probability over the mass that it keeps.
        log_mass = sampling_log_mass(batch, [t for group in groups for t in group.trajectories])
        batch = replace(batch, sampler_logprobs=batch.rollout_logprobs - log_mass)
    for method in methods:
        batch = _exclude(batch, method.drop_by_rollout(batch, groups))
    return batch


def with_weights(micro: TokenBatch, methods: Sequence[Method]) -> TokenBatch:
    """A micro-batch, whose `old_logprobs` are those of the loss, with what methods reject and the factors they give."""
    for method in methods:
        micro = _multiply_weights(_exclude(micro, method.drop_by_old_policy(micro)), method.weights(micro))
    return micro


def with_scores(micro: TokenBatch, rows: Sequence[int], scores: Sequence[Tensor]) -> TokenBatch:
    """A micro-batch with its rows of further factors [B, T] of the whole batch."""
    for factors in scores:
        micro = _multiply_weights(micro, factors[list(rows), : micro.loss_mask.shape[1]])
    return micro


def method_metrics(minibatches: Iterable[Iterable[TokenBatch]], methods: Sequence[Method]) -> dict[str, float]:
    """What methods left out of the loss, the mean weight of what stayed, and the series of each method."""
    micros = [micro for mini in minibatches for micro in mini]
    sampled = sum(int(micro.loss_mask.sum()) for micro in micros)
    learned = sum(int(micro.learned_mask.sum()) for micro in micros)
    metrics = {}
    if any(micro.excluded is not None for micro in micros):
        metrics["loss/excluded_fraction"] = 1 - learned / max(sampled, 1)
    if any(micro.policy_weights is not None for micro in micros):
        total = sum(
            float(torch.where(micro.learned_mask, micro.policy_weights, 0.0).sum())
            for micro in micros
            if micro.policy_weights is not None
        )
        metrics["loss/mean_weight"] = total / max(learned, 1)
    for method in methods:
        metrics |= method.measured(micros)
    return metrics


def lessons(batch: TokenBatch, methods: Sequence[Method], *, step: int) -> Iterator[Tensor]:
    """For each method that has one at this step, the rows to learn from by their likelihood."""
    for method in methods:
        if (rows := method.lesson(batch, step)) is not None and bool(rows.any()):
            yield rows


def rows_to_score(batch: TokenBatch, methods: Sequence[Method]) -> Mapping[str, list[bool]]:
    """By the name of each method that needs hidden states: for each row, whether it needs that row's."""
    rows = {method.name: method.hidden_rows(batch) for method in methods}
    return {name: mask.tolist() for name, mask in rows.items() if mask is not None}


def _exclude(batch: TokenBatch, tokens: Tensor | None) -> TokenBatch:
    if tokens is None:
        return batch
    return replace(batch, excluded=tokens if batch.excluded is None else batch.excluded | tokens)


def _multiply_weights(batch: TokenBatch, factors: Tensor | None) -> TokenBatch:
    if factors is None:
        return batch
    return replace(batch, policy_weights=factors if batch.policy_weights is None else batch.policy_weights * factors)
