"""Score centering: takes out of the policy gradient what only moves probability towards what the sampler can draw."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class ScoreCentering(Method):
    """Subtract from the gradient of every token its expectation under a sampler that differs from the policy.

    With a truncated sampler, `sampling.mask_logprobs` removes the same at the first optimizer step, by another
    distribution in the loss. Here the loss stays over the whole vocabulary. PPO's clip is not in the expectation.
    """

    name: ClassVar = "score_centering"
    source: ClassVar = "Score centering, [arXiv 2609.20807](https://arxiv.org/abs/2609.20807)"
    needs: ClassVar = frozenset({"all log-probs", "sampler's distribution"})
    metrics: ClassVar = {
        "loss/score_centering": "Mean of A·Σ q·p / p_old, the term of `score_centering`, over what the sampler q can "
        "draw. Absent without it."
    }

    def term(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """A·Σ q·p / p_old; of a sampler that is only truncated A·P(S) / P_old(S)."""
        from holdfast.losses import score_centering_loss

        assert micro.log_mass is not None and micro.old_log_mass is not None
        drift = score_centering_loss(micro.log_mass, micro.old_log_mass, micro.advantages, micro.learned_mask)
        return drift if micro.policy_weights is None else drift * micro.policy_weights

    @classmethod
    def learns_without_advantage(cls) -> bool:
        """No: its gradient is proportional to A."""
        return False
