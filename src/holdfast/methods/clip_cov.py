"""Clip-Cov: some of the tokens that lower the entropy most are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from holdfast.methods.method import Method

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.agent.batch import TokenBatch


class ClipCov(Method):
    """Leave tokens out of the policy loss whose log-prob and advantage have a large covariance over the micro-batch,
    drawn at random at every optimizer step."""

    share: float = Field(2e-4, gt=0, lt=1)
    """At most this share of the sampled tokens of a micro-batch is left out, but at least one token."""
    low: float = 1.0
    """Tokens with a smaller covariance stay."""
    high: float = 5.0
    """Tokens with a larger covariance stay too."""

    name: ClassVar = "clip_cov"
    source: ClassVar = "Clip-Cov, [arXiv 2505.22617](https://arxiv.org/abs/2505.22617)"

    def problems(self) -> Iterator[str]:
        """Bounds that leave nothing between them."""
        if not self.low < self.high:
            yield f"{self.table()}.low = {self.low:g} must be below {self.table()}.high = {self.high:g}"

    def drop_by_policy(self, micro: TokenBatch, logprobs: Tensor) -> Tensor:
        """The tokens that are drawn. The draw depends on the micro-batch alone, so a resumed run repeats it."""
        import torch

        from holdfast.losses import clip_cov_mask

        generator = torch.Generator().manual_seed(int(micro.token_ids.sum()))
        draws = torch.rand(micro.token_ids.shape, generator=generator).to(logprobs.device)
        mask, bounds = micro.learned_mask, {"share": self.share, "low": self.low, "high": self.high}
        return mask & ~clip_cov_mask(logprobs, micro.advantages, mask, draws, **bounds)
