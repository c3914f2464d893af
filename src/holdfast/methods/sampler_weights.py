"""Importance weights for a sampler that differs from the old policy: TIS, IcePop, Geo-RS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch

_NAME = "loss.methods.sampler_weights"


class SamplerWeights(Method):
    """Weight the policy loss by w = old policy / sampler (`holdfast.losses.sampler_weights`)."""

    level: Literal["token", "action", "sequence"] = "token"
    """Whether w is of each token, action or sequence."""
    aggregate: Literal["product", "mean"] = "product"
    """How token ratios become the w of an action or sequence: their product, or their geometric mean (Geo-RS)."""
    keep: Literal["truncate", "mask", "reject"] = "truncate"
    """Outside the bounds: `truncate` cuts w to the bounds (TIS); `mask` sets it to 0 (IcePop); `reject` leaves the
    tokens out of the loss and sets all other weights to 1 (Geo-RS)."""
    low: float = Field(0.0, ge=0)
    """Lower bound of w."""
    high: float = Field(2.0, gt=0)
    """Upper bound of w."""

    name: ClassVar = "sampler_weights"
    source: ClassVar = "TIS; IcePop, [arXiv 2510.18855](https://arxiv.org/abs/2510.18855); Geo-RS"
    needs: ClassVar = frozenset({"sampler"})
    metrics: ClassVar = {
        "sampler/weight_p05": "Fifth percentile, over sampled tokens, of the weights of `sampler_weights` before they "
        "are bounded. Absent without it.",
        "sampler/weight_p95": "The same, 95th percentile.",
    }

    def problems(self) -> Iterator[str]:
        """Bounds and levels that contradict each other."""
        if not self.low < self.high:
            yield (
                f"{_NAME}.low = {self.low:g} must be below {_NAME}.high = {self.high:g}: they are the bounds of the "
                "weights"
            )
        if self.level == "token" and self.aggregate == "mean":
            yield (
                f"{_NAME}.aggregate = 'mean' with {_NAME}.level = 'token': a token has only one ratio, so there is "
                f"nothing to average. Set {_NAME}.level to 'action' or 'sequence'"
            )

    def drop_by_old_policy(self, micro: TokenBatch) -> Tensor | None:
        """With `keep = "reject"`, tokens whose w is outside the bounds."""
        return micro.loss_mask & (self._weights(micro) == 0) if self.keep == "reject" else None

    def weights(self, micro: TokenBatch) -> Tensor | None:
        """w within the bounds; None with `keep = "reject"`."""
        return None if self.keep == "reject" else self._weights(micro)

    def measured(self, micros: Sequence[TokenBatch]) -> dict[str, float]:
        """Two percentiles of w before its bounds."""
        import numpy as np
        import torch

        unbounded = {"keep": "truncate", "low": 0.0, "high": math.inf}
        weights = torch.cat([self._weights(m, **unbounded)[m.loss_mask].cpu() for m in micros])
        if not len(weights):
            return {}
        low, high = np.quantile(weights.numpy(), (0.05, 0.95)).tolist()
        return {"sampler/weight_p05": low, "sampler/weight_p95": high}

    def _weights(self, micro: TokenBatch, **bounds: Any) -> Tensor:
        """float [B, T]: w. `bounds` replace `keep`, `low` and `high` of the method."""
        from holdfast.losses import sampler_weights

        assert micro.old_logprobs is not None and micro.sampler_logprobs is not None
        return sampler_weights(
            micro.old_logprobs,
            micro.sampler_logprobs,
            micro.loss_mask,
            level=self.level,
            aggregate=self.aggregate,
            action_ids=micro.action_ids,
            **{"keep": self.keep, "low": self.low, "high": self.high, **bounds},
        )
