"""Remedies that leave sampled tokens out of the loss, or weight them in the policy loss: masks and factors of a batch.

What depends on the rollouts alone is known before the old pass (`filtered`), what depends on the old policy after it
(`weighed`, `nthr_factors`). Masks that follow the policy while it is updated are in the objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.agent.language_model import LanguageModel
from holdfast.agent.metrics import first_action_matches
from holdfast.agent.onednn import OneDNNLinear
from holdfast.agent.trajectory import Group, Invalid, Trajectory
from holdfast.base.errors import ModelError
from holdfast.losses import (
    first_action_mask,
    nthr_weights,
    sampler_weights,
    token_influence,
    void_turn_mask,
)
from holdfast.recipe import Loss

_MOST_ROUNDING = 0.5
"""Nats by which a log-prob may differ when it is computed again from hidden states; bf16 needs about 0.1."""


def filtered(batch: TokenBatch, groups: Sequence[Group], loss: Loss) -> TokenBatch:
    """The batch of all rollouts of `groups`, with what the loss leaves out and whom the sampler drew from."""
    trajectories = [t for group in groups for t in group.trajectories]
    keep = batch.loss_mask
    if loss.drop_void:
        void = [any(isinstance(turn.action, Invalid) for turn in t.turns) for t in trajectories]
        keep = keep & void_turn_mask(batch.loss_mask, torch.tensor(void)[:, None])
    if loss.drop_first_actions:
        matched = torch.tensor([bool(match) for group in groups for match in first_action_matches(group)])
        keep = keep & first_action_mask(batch.loss_mask, batch.action_ids, matched[:, None])
    if keep is not batch.loss_mask:
        batch = replace(batch, excluded=batch.loss_mask & ~keep)
    if loss.sampler_weights.level != "none":
        batch = replace(batch, sampler_logprobs=_sampler_logprobs(batch, trajectories))
    return batch


def _sampler_logprobs(batch: TokenBatch, trajectories: Sequence[Trajectory]) -> Tensor:
    """float [B, T]: a truncated sampler draws with the vocabulary's probability over the mass that it keeps."""
    logprobs = batch.rollout_logprobs.clone()
    for row, trajectory in enumerate(trajectories):
        if masses := [mass for turn in trajectory.turns for mass in turn.mask_mass or ()]:
            logprobs[row, batch.action_ids[row] > 0] -= torch.tensor(masses).clamp(min=1e-30).log()
    return logprobs


def weighed(micro: TokenBatch, loss: Loss) -> TokenBatch:
    """The batch, whose `old_logprobs` are those of the loss, with the factors of its policy loss."""
    weights: Tensor | None = None
    settings = loss.sampler_weights
    if settings.level != "none":
        weights = _sampler_weights(micro, loss, keep=settings.keep, low=settings.low, high=settings.high)
        if settings.keep == "reject":
            rejected = micro.loss_mask & (weights == 0)
            micro = replace(micro, excluded=rejected if micro.excluded is None else micro.excluded | rejected)
            weights = None
    if loss.negative_weight != 1:
        factor = torch.where(micro.advantages < 0, loss.negative_weight, 1.0).expand(micro.loss_mask.shape)
        weights = factor if weights is None else weights * factor
    return micro if weights is None else replace(micro, policy_weights=weights)


def _sampler_weights(micro: TokenBatch, loss: Loss, **bounds: Any) -> Tensor:
    """float [B, T]: the weights of `loss.sampler_weights`, within these bounds."""
    assert micro.old_logprobs is not None and micro.sampler_logprobs is not None
    settings = loss.sampler_weights
    assert settings.level != "none"
    return sampler_weights(
        micro.old_logprobs,
        micro.sampler_logprobs,
        micro.loss_mask,
        level=settings.level,
        aggregate=settings.aggregate,
        action_ids=micro.action_ids,
        **bounds,
    )


def weight_metrics(minibatches: Iterable[Iterable[TokenBatch]], loss: Loss) -> dict[str, float]:
    """What the remedies in use left out of the loss, the mean weight of what stayed, and what the sampler's weights are
    before their bounds."""
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
    if loss.sampler_weights.level != "none" and sampled:
        unbounded = torch.cat([_sampler_weights(m, loss, low=0.0, high=math.inf)[m.loss_mask].cpu() for m in micros])
        low, high = np.quantile(unbounded.numpy(), (0.05, 0.95)).tolist()
        metrics |= {"sampler/weight_p05": low, "sampler/weight_p95": high}
    return metrics


# ---- NTHR


NTHR = "loss.nthr = true"


def output_layer(language_model: LanguageModel, asked: str = NTHR) -> Tensor:
    """The output layer's weight `[V, d]`, for scores that are its part of the gradient.

    A weight that is tied to the embeddings is fine: the scores are the output side's part of its gradient, as in the
    paper, whose smaller models are tied. Raises `ModelError` where the layer alone does not make the logits, or is
    frozen; `asked` begins its sentence.
    """
    head = language_model.model.get_output_embeddings()
    if type(head) not in (torch.nn.Linear, OneDNNLinear):
        raise ModelError(
            f"{asked}: the output layer of this model is a {type(head).__name__}, such as LoRA's around the layer, and "
            "the scores are the gradient of a plain one. Merge the adapters, or leave it out"
        )
    if head.bias is not None:
        raise ModelError(f"{asked}: the output layer of this model has a bias, which the scores leave out")
    weight: Tensor = head.weight
    if type(weight.data) is not Tensor or tuple(weight.shape) != (head.out_features, head.in_features):
        raise ModelError(
            f"{asked}: the output layer of this model is sharded, here {list(weight.shape)} of "
            f"{[head.out_features, head.in_features]}, and the scores need it whole. Leave it out"
        )
    if not weight.requires_grad:
        raise ModelError(
            f"{asked}: the output layer of this model is frozen, as LoRA leaves it, and the scores are that layer's "
            "part of the gradient. Train all weights, or leave it out"
        )
    return weight.detach()


def rows_for_nthr(batch: TokenBatch) -> Tensor:
    """bool [B]: rows of groups with both positive and negative rollouts, whose hidden states NTHR needs."""
    sign = batch.advantages.sign()[:, 0]
    groups = int(batch.group_ids.max()) + 1
    present = [torch.zeros(groups, device=sign.device).index_add_(0, batch.group_ids, (sign == s).float()) > 0
               for s in (1, -1)]  # fmt: skip
    return (present[0] & present[1])[batch.group_ids]


def nthr_factors(batch: TokenBatch, hidden: dict[int, Tensor], unembedding: Tensor) -> Tensor:
    """float32 [B, T]: NTHR's factors on the policy loss, 1 where it leaves a token as it is.

    Args:
        batch: with `old_logprobs` over the whole vocabulary. Rollouts with A > 0 are the correct ones.
        hidden: by row, float [n, d], the states that predict its n sampled tokens; of the rows of `rows_for_nthr`.
        unembedding: float [V, d], divided by the temperature of the log-probs.
    """
    assert batch.old_logprobs is not None
    factors = torch.ones(batch.loss_mask.shape, device=batch.loss_mask.device)
    by_group: dict[int, list[int]] = {}
    for row in sorted(hidden):
        by_group.setdefault(int(batch.group_ids[row]), []).append(row)
    for rows in by_group.values():
        mask, learned = batch.loss_mask[rows], batch.learned_mask[rows]
        places = learned[mask]  # among the sampled tokens of these rows, those in the loss
        states = torch.cat([hidden[row] for row in rows])[places]
        correct = (batch.advantages[rows] > 0).expand(mask.shape)[learned]
        if not len(states):
            continue
        influence = token_influence(
            states, unembedding, batch.token_ids[rows][learned], correct, logprobs=batch.old_logprobs[rows][learned]
        )
        rollout = torch.arange(len(rows), device=mask.device)[:, None].expand(mask.shape)[learned]
        group = torch.ones(mask.shape, device=mask.device)
        group[learned] = nthr_weights(influence, correct, rollout).float()
        factors[rows] = group
    return factors


def check_logits(hidden: Tensor, unembedding: Tensor, token_ids: Tensor, logprobs: Tensor, asked: str = NTHR) -> None:
    """Raise `ModelError` where `logprobs` [N] of tokens are not those of `hidden` [N, d] times the output layer.

    A soft cap or a scale after the output layer would make the scores wrong in silence.
    """
    computed = (hidden.float() @ unembedding.float().T).log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    gap = float((computed - logprobs).abs().max()) if len(hidden) else 0.0
    if not gap < _MOST_ROUNDING:
        raise ModelError(
            f"{asked}: log-probs of this model differ by {gap:.2f} nats from those of its output layer, so it changes "
            "logits afterwards, by a cap or a scale, and the scores would be wrong. Leave it out"
        )
