"""What an optimizer step minimises: the policy loss, the penalty, the KL and the entropy of a recipe, as one scalar.

`Objective` is a function of a micro-batch and its log-probs: the loss, and what to log of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast.agent.batch import TokenBatch
from holdfast.losses import (
    cispo_loss,
    clipped_policy_loss,
    dppo_mask,
    drift_stats,
    kl_loss,
    logged_stats,
    merge_stats,
    penalty_stats,
    ratio_stats,
    reduce_loss,
    score_centering_loss,
)
from holdfast.methods.operations import build
from holdfast.methods.penalties import ON_PRESERVED_ALONE
from holdfast.recipe import Loss


@dataclass(frozen=True, slots=True)
class Counts:
    """Divisors of the sums over the micro-batches of one optimizer step."""

    policy: float
    """Sampled tokens, or rollouts, depending on the reduction."""
    preserved: float
    """Tokens that the penalty preserves; 0 if it is not divided by them."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a micro-batch adds to the metrics of an update. Scalars without a graph."""

    parts: Mapping[str, Tensor]
    """Its share of each part of the loss, with its coefficient."""
    stats: dict[str, Tensor]
    """As `merge_stats` takes them."""
    dropped: Tensor | None
    """Tokens that masks took out of the policy loss; None without such a mask."""
    change: Tensor
    """Largest difference between a log-prob and the old one, in nats."""
    passed: bool = True
    """False where the update did not pass over it: its log-probs are the old ones."""


OF_PASSED = ("ratio/mean", "ratio/max", "ratio/p01", "ratio/log_product")
"""Statistics over the micro-batches that the update passed over. The others are the same without the rest."""


def may_skip(loss: Loss) -> bool:
    """Whether an update may skip rollouts that have no advantage and no preserved token: they then count in divisors
    alone.

    Not with a KL or an entropy term, which act on every token; with a penalty of the user's own; with a method that
    judges all tokens by the policy as it is now; with a critic, whose advantages come after the plan.
    """
    judged = any(operation.judges_by_policy for operation in build(loss.methods))
    return not (_acts_on_all(loss) or judged or loss.advantage == "gae")


def _acts_on_all(loss: Loss) -> bool:
    """Whether a term may give a gradient to rollouts that have no advantage and no preserved token."""
    return bool(loss.kl_coef or loss.entropy_coef) or type(loss.penalty) not in ON_PRESERVED_ALONE


class Objective:
    """A recipe's loss with its penalty. `max_tokens` is the constant of `seq-mean-token-sum-norm`."""

    def __init__(self, loss: Loss, max_tokens: int | None = None) -> None:
        self.loss = loss
        self.penalty, self.operations = loss.penalty.term, build(loss.methods)
        self._by_preserved = self.penalty is not None and self.penalty.normalizer == "preserved"
        self._max_tokens = max_tokens if loss.reduction == "seq-mean-token-sum-norm" else None

    def answer_weight(self, mean_searches: float) -> float | None:
        """The penalty's weight of answer tokens in a rollout batch with `mean_searches` valid searches per rollout;
        None if the penalty has no such weight."""
        return self.penalty.weight_at(mean_searches) if self.penalty is not None else None

    def learns(self, batch: TokenBatch) -> Tensor:
        """bool [B]: rollouts that can give the loss a gradient. A group without contrast has advantages of 0, and only
        a penalty, a KL or an entropy term gives it one."""
        if _acts_on_all(self.loss):
            return batch.learned_mask.any(-1)
        tokens = (batch.advantages != 0) & batch.learned_mask
        return (tokens if self.penalty is None else tokens | self._preserved(batch)).any(-1)

    def count(self, mini: Sequence[TokenBatch]) -> Counts:
        """Counts over the whole optimizer step, so that the gradient does not depend on the micro-batches."""
        by_token = self.loss.reduction == "token-mean"
        policy = sum(float(m.learned_mask.sum() if by_token else m.learned_mask.any(-1).sum()) for m in mini)
        preserved = sum(float(self._preserved(m).sum()) for m in mini) if self._by_preserved else 0.0
        return Counts(policy=max(policy, 1.0), preserved=preserved)

    def __call__(
        self,
        micro: TokenBatch,
        logprobs: Tensor,
        entropy: Tensor | None,
        counts: Counts,
        answer_weight: float | None = None,
    ) -> tuple[Tensor, Measured]:
        """The micro-batch's share of the loss, a scalar with a graph, and what to log of it.

        Args:
            micro: with all log-probs that the loss compares with.
            logprobs: float [B, T], those of the present weights, with their graph.
            entropy: float [B, T], or None without an entropy term.
            counts: of its optimizer step.
            answer_weight: of the method of that name.
        """
        assert micro.old_logprobs is not None
        loss, mask, now = self.loss, micro.learned_mask, logprobs.detach()

        def reduced(per_token: Tensor) -> Tensor:
            return reduce_loss(
                per_token,
                mask,
                mode=loss.reduction,
                denominator=None if loss.reduction == "token-sum" else counts.policy,
                max_tokens=self._max_tokens,
            )

        policy, dropped = self._policy(micro, logprobs)
        parts, stats = {"policy": reduced(policy)}, self._drift(micro, now)
        if micro.ref_logprobs is not None:
            kl = kl_loss(logprobs, micro.ref_logprobs, mask, estimator=loss.kl_estimator)
            parts["kl"] = loss.kl_coef * reduced(kl)
        if loss.methods.score_centering.on:
            parts["score_centering"] = reduced(centering_term(micro))
        if entropy is not None:
            parts["entropy"] = -loss.entropy_coef * reduced(entropy)
        if self.penalty is not None:
            preserved, old = self._preserved(micro), micro.penalty_logprobs
            penalty = self.penalty.per_token(
                logprobs,
                old,
                micro.advantages,
                mask,
                preserved=preserved,
                action_ids=micro.action_ids,
                answer_mask=micro.answer_mask,
                answer_weight=1.0 if answer_weight is None else answer_weight,
            )
            if self._by_preserved:
                parts["penalty"] = self.penalty.coef * penalty.sum() / max(counts.preserved, 1.0)
            else:
                parts["penalty"] = self.penalty.coef * reduced(penalty)
            stats |= penalty_stats(penalty.detach(), now, old, mask, preserved=preserved)
        return torch.stack(list(parts.values())).sum(), Measured(
            parts={name: part.detach() for name, part in parts.items()},
            stats=stats,
            dropped=dropped,
            change=(now - micro.old_logprobs).abs().max(),
        )

    @torch.no_grad()
    def skipped(self, micro: TokenBatch, counts: Counts) -> Measured:
        """What to log of a micro-batch without gradient that the update does not pass over, where `may_skip`."""
        assert micro.old_logprobs is not None
        still = replace(micro, log_mass=micro.old_log_mass)
        return replace(self(still, micro.old_logprobs, None, counts)[1], passed=False)

    def _policy(self, micro: TokenBatch, logprobs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weighted policy loss `[B, T]`, and how many tokens masks drop from it; None without a mask."""
        policy, keep = policy_loss(micro, logprobs, self.loss)
        for operation in self.operations:
            if (kept := operation.keeps(micro, logprobs)) is not None:
                keep = kept if keep is None else keep & kept
        if keep is not None:
            policy = torch.where(keep, policy, 0.0)
        if micro.policy_weights is not None:
            policy = policy * micro.policy_weights
        return policy, None if keep is None else (micro.learned_mask & ~keep).sum()

    def _preserved(self, micro: TokenBatch) -> Tensor:
        assert self.penalty is not None
        return self.penalty.preserved(micro.advantages, micro.learned_mask, micro.correct[:, None])

    def _drift(self, micro: TokenBatch, logprobs: Tensor) -> dict[str, Tensor]:
        """How far the policy is from the old one."""
        assert micro.old_logprobs is not None
        arguments = (logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask)
        clips, loss = self.loss.surrogate == "clip", self.loss  # others have no clip whose tokens could be counted
        return drift_stats(*arguments, query_mask=micro.query_mask, answer_mask=micro.answer_mask) | ratio_stats(
            *arguments,
            clip_low=loss.clip_low if clips else 1.0,
            clip_high=loss.clip_high if clips else math.inf,
            ratio=loss.ratio,
            action_ids=micro.action_ids,
        )


def policy_loss(micro: TokenBatch, logprobs: Tensor, loss: Loss) -> tuple[Tensor, Tensor | None]:
    """float [B, T], the policy loss that `loss.surrogate` chooses; and bool [B, T], the tokens it keeps, None: all."""
    assert micro.old_logprobs is not None
    tensors = (logprobs, micro.old_logprobs, micro.advantages, micro.learned_mask)
    if loss.surrogate == "cispo":
        return cispo_loss(*tensors, clip_low=loss.clip_low, clip_high=loss.clip_high), None
    if loss.surrogate == "dppo":
        keep = dppo_mask(*tensors, low=loss.clip_low, high=loss.clip_high)
        return clipped_policy_loss(*tensors, clip_low=1.0, clip_high=math.inf), keep
    clipped = clipped_policy_loss(
        *tensors,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        dual_clip=loss.dual_clip,
        ratio=loss.ratio,
        action_ids=micro.action_ids,
    )
    return clipped, None


def centering_term(micro: TokenBatch) -> Tensor:
    """float [B, T]: A·Σ q·p / p_old, the term of `score_centering`; of a sampler that is only truncated
    A·P(S) / P_old(S). Its gradient is proportional to A."""
    assert micro.log_mass is not None and micro.old_log_mass is not None
    drift = score_centering_loss(micro.log_mass, micro.old_log_mass, micro.advantages, micro.learned_mask)
    return drift if micro.policy_weights is None else drift * micro.policy_weights


def update_metrics(steps: Sequence[Sequence[Measured]], norms: Sequence[float]) -> dict[str, float]:
    """The metrics of an update; losses are means over the optimizer steps. Sums are divided once, so that no mean is of
    means.

    Args:
        steps: for each optimizer step, what its micro-batches measured.
        norms: of the gradient of each optimizer step.
    """
    every, finite = [measured for step in steps for measured in step], [norm for norm in norms if math.isfinite(norm)]
    stats = merge_stats([measured.stats for measured in every])
    passed = [measured.stats for measured in every if measured.passed]
    moved = merge_stats(passed) if passed else {}
    stats = {name: value for name, value in stats.items() if name not in OF_PASSED}
    stats |= {name: moved[name] for name in OF_PASSED if passed}
    metrics = {
        f"loss/{name}": float(sum(measured.parts[name] for measured in every)) / len(steps) for name in every[0].parts
    }
    metrics |= logged_stats(stats)
    if finite:
        metrics |= {"grad/norm": sum(finite) / len(finite), "grad/norm_max": max(finite)}
    if dropped := [measured.dropped for measured in every if measured.dropped is not None]:
        metrics["loss/dropped_fraction"] = float(torch.stack(dropped).sum()) / max(float(stats["count/tokens"]), 1.0)
    metrics["grad/skipped_steps"] = float(len(norms) - len(finite))
    # On the first optimizer step old equals new, so that any difference is numerical noise.
    metrics["penalty/noise_floor"] = float(torch.stack([measured.change for measured in steps[0]]).max())
    metrics["optimizer_steps_per_rollout"] = float(len(steps))
    return metrics
