"""What an optimizer step minimises: the policy loss, the penalty, the KL and the entropy of a recipe, as one scalar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.losses import kl_loss, reduce_loss
from holdfast.methods.surrogates import SURROGATES
from holdfast.recipe import Loss


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one micro-batch, each `[B, T]` and unreduced. A term that the recipe does not use is None."""

    policy: Tensor
    penalty: Tensor | None
    preserved: Tensor | None
    """bool: True on tokens that the penalty preserves."""
    kl: Tensor | None
    dropped: Tensor | None = None
    """bool: True on tokens that a mask which follows the policy takes out of the policy loss."""
    others: Mapping[str, Tensor] = field(default_factory=dict)
    """Terms of methods, by name, with their coefficients."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Divisors of the sums over the micro-batches of one optimizer step."""

    policy: float
    """Sampled tokens, or rollouts, depending on the reduction."""
    preserved: float
    """Tokens that the penalty preserves; 0 if it is not divided by them."""


class Objective:
    """A recipe's loss with its penalty. `max_tokens` is the constant of `seq-mean-token-sum-norm`."""

    def __init__(self, loss: Loss, max_tokens: int | None = None) -> None:
        self.loss = loss
        self.penalty, self.methods = loss.penalty.term, loss.methods.used
        self._policy_loss = SURROGATES[loss.surrogate].policy
        self._by_preserved = self.penalty is not None and self.penalty.normalizer == "preserved"
        self._max_tokens = max_tokens if loss.reduction == "seq-mean-token-sum-norm" else None

    def answer_weight(self, mean_searches: float) -> float | None:
        """The penalty's weight of answer tokens in a rollout batch with `mean_searches` valid searches per rollout;
        None if the penalty has no such weight."""
        return self.penalty.weight_at(mean_searches) if self.penalty is not None else None

    def has_gradient(self, micro: TokenBatch) -> bool:
        """Whether the micro-batch can have one. A group without contrast has advantages of 0, and only a penalty, a KL
        or an entropy term gives it a gradient."""
        return (
            self.penalty is not None
            or micro.ref_logprobs is not None
            or self.loss.entropy_coef != 0
            or any(method.learns_without_advantage() for method in self.methods)
            or bool((micro.advantages != 0).any())
        )

    def terms(self, micro: TokenBatch, logprobs: Tensor, answer_weight: float | None = None) -> Terms:
        """Unreduced terms. `logprobs` `[B, T]` are those of the present weights, with their graph."""
        policy, dropped = self._policy(micro, logprobs)
        kl = None
        if micro.ref_logprobs is not None:
            kl = kl_loss(logprobs, micro.ref_logprobs, micro.learned_mask, estimator=self.loss.kl_estimator)
        values = {method.name: method.term(micro, logprobs) for method in self.methods}
        others = {name: value for name, value in values.items() if value is not None}
        if self.penalty is None:
            return Terms(policy, None, None, kl, dropped, others)
        preserved = self._preserved(micro)
        penalty = self.penalty.per_token(
            logprobs,
            micro.penalty_logprobs,
            micro.advantages,
            micro.learned_mask,
            preserved=preserved,
            action_ids=micro.action_ids,
            answer_mask=micro.answer_mask,
            answer_weight=1.0 if answer_weight is None else answer_weight,
        )
        return Terms(policy, penalty, preserved, kl, dropped, others)

    def _policy(self, micro: TokenBatch, logprobs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weighted policy loss `[B, T]`, and which tokens a mask drops from it; None without such a mask."""
        policy, keep = self._policy_loss(micro, logprobs, self.loss)
        for method in self.methods:
            if (drop := method.drop_by_policy(micro, logprobs)) is not None:
                keep = ~drop if keep is None else keep & ~drop
        if keep is not None:
            policy = torch.where(keep, policy, 0.0)
        if micro.policy_weights is not None:
            policy = policy * micro.policy_weights
        return policy, None if keep is None else micro.learned_mask & ~keep

    def count(self, mini: Sequence[TokenBatch]) -> Counts:
        """Counts over the whole optimizer step, so that the gradient does not depend on the micro-batches."""
        by_token = self.loss.reduction == "token-mean"
        policy = sum(float(m.learned_mask.sum() if by_token else m.learned_mask.any(-1).sum()) for m in mini)
        preserved = sum(float(self._preserved(m).sum()) for m in mini) if self._by_preserved else 0.0
        return Counts(policy=max(policy, 1.0), preserved=preserved)

    def reduce(self, terms: Terms, entropy: Tensor | None, loss_mask: Tensor, counts: Counts) -> dict[str, Tensor]:
        """The micro-batch's share of each part of the loss, as scalars with their coefficients. Their sum is minimised.

        `entropy` is `[B, T]`, or None without an entropy term.
        """
        loss = self.loss

        def reduced(per_token: Tensor) -> Tensor:
            return reduce_loss(
                per_token,
                loss_mask,
                mode=loss.reduction,
                denominator=None if loss.reduction == "token-sum" else counts.policy,
                max_tokens=self._max_tokens,
            )

        parts = {"policy": reduced(terms.policy)}
        if terms.kl is not None:
            parts["kl"] = loss.kl_coef * reduced(terms.kl)
        parts |= {name: reduced(value) for name, value in terms.others.items()}
        if entropy is not None:
            parts["entropy"] = -loss.entropy_coef * reduced(entropy)
        if terms.penalty is not None:
            assert self.penalty is not None
            if self._by_preserved:
                parts["penalty"] = self.penalty.coef * terms.penalty.sum() / max(counts.preserved, 1.0)
            else:
                parts["penalty"] = self.penalty.coef * reduced(terms.penalty)
        return parts

    def _preserved(self, micro: TokenBatch) -> Tensor:
        assert self.penalty is not None
        return self.penalty.preserved(micro.advantages, micro.learned_mask, micro.correct[:, None])
