"""Series by which rival explanations of a collapse can be told apart, from what a step has computed anyway.

docs/reference/metrics.md says which series belongs to which.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch, sampling_log_mass
from holdfast.agent.metrics.rollouts import per_token_mean
from holdfast.agent.trajectory import Group, with_tokens
from holdfast.losses import drift_and_covariance


def mean_advantages(advantages: Tensor, group_ids: Tensor, action_ids: Tensor, loss_mask: Tensor) -> Tensor:
    """float [B, T]: at each sampled token, the mean advantage over the sampled tokens of the same action of the same
    question. It estimates the mean at the prefix, which hardly two rollouts share behind their first words.

    Args:
        advantages: [B, 1] or [B, T].
        group_ids: [B].
        action_ids, loss_mask: [B, T].
    """
    cells = (group_ids[:, None] * (int(action_ids.max()) + 1) + action_ids).flatten()
    values = torch.where(loss_mask, advantages.expand(loss_mask.shape), 0.0).flatten()
    sums, counts = (
        torch.zeros(int(cells.max()) + 1, dtype=values.dtype, device=values.device).index_add_(0, cells, weights)
        for weights in (values, loss_mask.flatten().to(values.dtype))
    )
    return (sums / counts.clamp(min=1))[cells].view(loss_mask.shape)


def centering_metrics(batch: TokenBatch, groups: Sequence[Group], *, other_weights: bool = False) -> dict[str, float]:
    """`centering/drift` and `centering/covariance`, means over sampled tokens; see `drift_and_covariance`.

    Of a sampler with other weights, all of whose distribution is not known, the L1 norm of q − p is |p(y) / q(y) − 1|
    for the y that was drawn, which has that norm as its mean.

    They are those of a loss over the whole vocabulary, whatever the recipe does about the drift. `batch` has old
    log-probs, and the rows of `groups` that have sampled tokens.
    """
    assert batch.old_logprobs is not None
    mask = batch.loss_mask
    mean = mean_advantages(batch.advantages, batch.group_ids, batch.action_ids, mask)
    log_mass = sampling_log_mass(batch, with_tokens(groups))
    drift, covariance = drift_and_covariance(batch.old_logprobs, log_mass, batch.advantages, mean, mask)
    if other_weights:
        drift = torch.where(mask, mean.abs() * (batch.old_logprobs - batch.rollout_logprobs).expm1().abs(), 0.0)
    tokens = mask.sum().clamp(min=1)
    return {"centering/drift": float(drift.sum() / tokens), "centering/covariance": float(covariance.sum() / tokens)}


def observation_metrics(batch: TokenBatch) -> dict[str, float]:
    """Mean entropy and log-prob, under the old policy, of the tokens before and after a rollout's first observation.

    What follows the first action follows an observation: passages, or the note on an invalid turn.
    """
    assert batch.old_logprobs is not None and batch.old_entropy is not None
    result: dict[str, float] = {}
    for part, tokens in (("before", batch.action_ids == 1), ("after", batch.action_ids > 1)):
        tokens = tokens & batch.loss_mask
        if bool(tokens.any()):
            result[f"entropy/{part}_observation"] = float(batch.old_entropy[tokens].mean())
            result[f"likelihood/{part}_observation"] = float(batch.old_logprobs[tokens].mean())
    return result


def long_and_unlikely(lengths: Tensor, logprobs: Tensor, correct: Tensor) -> Tensor:
    """bool [B]: incorrect rollouts longer than the median and with a mean log-prob below the median, of all rollouts.

    Args:
        lengths: tokens, [B].
        logprobs: mean log-prob per token, [B].
        correct: bool, [B].
    """
    return ~correct & (lengths > lengths.quantile(0.5)) & (logprobs < logprobs.quantile(0.5))


def negative_metrics(micros: Sequence[TokenBatch], *, reduction: str) -> dict[str, float]:
    """Which share of the push on rollouts with A < 0 lies on long, unlikely, incorrect ones. Absent without a push.

    A token's push is |A| times its weight in the policy loss. `reduction` decides what divides it: the length of its
    response, or a number that is the same for all tokens. The rollout batch is taken as one optimizer step.
    """
    rows = []
    for micro in micros:
        assert micro.old_logprobs is not None
        mask = micro.learned_mask
        push = torch.where(mask, micro.advantages.clamp(max=0).abs().expand(mask.shape), 0.0)
        if micro.policy_weights is not None:
            push = push * micro.policy_weights
        rows.append(
            torch.stack([push.sum(-1), mask.sum(-1), per_token_mean(micro.old_logprobs, mask), micro.correct], -1)
        )
    push, lengths, logprobs, correct = torch.cat(rows).double().unbind(-1)
    if not bool(push.sum() > 0):
        return {}
    here = long_and_unlikely(lengths, logprobs, correct > 0)
    by_response = push / lengths.clamp(min=1)
    own = by_response if reduction == "seq-mean-token-mean" else push
    return {
        "negative/long_unlikely_rollouts": float((here & (push > 0)).sum() / (push > 0).sum()),
        "negative/long_unlikely_share": float(own[here].sum() / own.sum()),
        "negative/long_unlikely_share_by_response": float(by_response[here].sum() / by_response.sum()),
    }
