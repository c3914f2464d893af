"""The negative log-likelihood of positive rollouts, the plain alternative."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from holdfast.methods.penalty import NAME, Coefficient, Penalty

if TYPE_CHECKING:
    from torch import Tensor


class NLL(Penalty):
    """Negative log-likelihood of rollouts with A > 0; see `holdfast.losses.nll_loss`. Acts from the first step on."""

    name: Literal["nll"] = Field("nll", repr=False, description=NAME)
    coef: Coefficient = 0.1

    @property
    def acts_without_drift(self) -> bool:
        """True."""
        return True

    def per_token(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, **_: Any
    ) -> Tensor:
        """`nll_loss`."""
        from holdfast.losses import nll_loss

        return nll_loss(logprobs, advantages, loss_mask)
