"""SAPO (Search Agent Policy Optimization), arXiv 2603.10069: a conditional KL on positive tokens whose ratio fell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from holdfast.methods.penalty import NAME, Coefficient, Preserve, RolloutPenalty

if TYPE_CHECKING:
    from torch import Tensor


class SAPO(RolloutPenalty):
    """Search Agent Policy Optimization's conditional KL; see `holdfast.losses.sapo_penalty`.

    Not Soft Adaptive Policy Optimization, which TRL and verl call `sapo`.
    """

    name: Literal["sapo"] = Field("sapo", repr=False, description=NAME)
    coef: Coefficient = 0.1
    preserve: Preserve = "positive"
    tau: float = Field(1.0, gt=0)
    """The penalty acts on tokens whose importance ratio is below this."""

    @property
    def acts_without_drift(self) -> bool:
        """True for tau above 1: then tokens that did not move (ratio 1) count as well."""
        return self.tau > 1

    def per_token(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        *,
        preserved: Tensor,
        **_: Any,
    ) -> Tensor:
        """`sapo_penalty`."""
        from holdfast.losses import sapo_penalty

        return sapo_penalty(logprobs, old_logprobs, advantages, loss_mask, tau=self.tau, preserved=preserved)
