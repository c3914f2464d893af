"""NTHR: tokens of negative rollouts that hurt positive ones weigh less, found from hidden states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.base.errors import ModelError
from holdfast.losses import nthr_weights, token_influence
from holdfast.model.language_model import LanguageModel
from holdfast.model.passes.onednn import OneDNNLinear

_MAX_ROUNDING = 0.5
"""Nats by which a log-prob may differ when it is computed again from hidden states; bf16 needs about 0.1."""
ASKED = "[loss.methods.nthr]"
"""Begins the sentences about a model."""


def output_layer(language_model: LanguageModel, asked: str = ASKED) -> Tensor:
    """The output layer's weight `[V, d]`, for scores that are its part of the gradient.

    A weight that is tied to the embeddings is fine: the scores are the output side's part of its gradient, as in the
    paper, whose smaller models are tied. Raises `ModelError` where the layer alone does not make the logits, or is
    frozen; `asked` begins its sentence.
    """
    head = language_model.model.get_output_embeddings()
    if type(head) not in (torch.nn.Linear, OneDNNLinear):
        raise ModelError(
            f"{asked}: the output layer of this model is a {type(head).__name__}, such as LoRA's wrapper around the "
            "layer, but the scores need a plain layer. Merge the adapters, or leave it out"
        )
    if head.bias is not None:
        raise ModelError(f"{asked}: the output layer of this model has a bias, which the scores leave out")
    weight: Tensor = head.weight
    if type(weight.data) is not torch.Tensor or tuple(weight.shape) != (head.out_features, head.in_features):
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
    positive, negative = (
        torch.zeros(groups, device=sign.device).index_add_(0, batch.group_ids, (sign == one).float()) > 0
        for one in (1, -1)
    )
    return (positive & negative)[batch.group_ids]


def nthr_factors(
    batch: TokenBatch,
    hidden: Mapping[int, Tensor],
    language_model: LanguageModel,
    temperature: float,
    asked: str = ASKED,
) -> Tensor:
    """float32 [B, T]: NTHR's factors on the policy loss, 1 where it leaves a token as it is.

    Args:
        batch: with `old_logprobs` over the whole vocabulary. Rollouts with A > 0 are the correct ones.
        hidden: by row, float [n, d], the states that predict its n sampled tokens; of the rows of `rows_for_nthr`.
        language_model: its output layer makes the logits. Raises `ModelError` where the layer alone does not.
        temperature: of the log-probs.
        asked: begins the sentence of an error.
    """
    assert batch.old_logprobs is not None
    unembedding = output_layer(language_model, asked)
    unembedding = unembedding / temperature if temperature != 1.0 else unembedding  # else no copy
    row, states = next(iter(hidden.items()))
    mask = batch.loss_mask[row]
    check_logits(states, unembedding, batch.token_ids[row][mask], batch.old_logprobs[row][mask], asked)
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


def check_logits(hidden: Tensor, unembedding: Tensor, token_ids: Tensor, logprobs: Tensor, asked: str = ASKED) -> None:
    """Raise `ModelError` where `logprobs` [N] of tokens are not those of `hidden` [N, d] times the output layer.

    A soft cap or a scale after the output layer would make the scores wrong in silence.
    """
    computed = (hidden.float() @ unembedding.float().T).log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    gap = float((computed - logprobs).abs().max()) if len(hidden) else 0.0
    if not gap < _MAX_ROUNDING:
        raise ModelError(
            f"{asked}: log-probs of this model differ by {gap:.2f} nats from the log-probs of its output layer. The "
            "model changes its logits afterwards, by a cap or a scale, so the scores would be wrong. Leave it out"
        )
