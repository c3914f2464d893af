"""Importance weights for a sampler that differs from the old policy: TIS, IcePop, Geo-RS."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from holdfast.methods.method import Method, Option, Translation

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

    # ---- hosts

    def translated(self, host: str, config: Any) -> Translation:
        """TRL's vLLM correction; verl's `rollout_correction`."""
        if host == "trl":
            return Translation(
                options=tuple(self._trl()),
                problems=tuple(self._trl_problems()),
                notes=("TRL computes these weights only for rollouts of vLLM, so the script sets use_vllm",),
            )
        problems = tuple(self._verl_problems(getattr(config.loss.penalty, "gate", "")))
        return Translation(options=() if problems else tuple(self._verl()), problems=problems)

    def _trl(self) -> Iterator[Option]:
        yield Option("use_vllm", True, f"{_NAME}: TRL has weights for rollouts of vLLM only (pip install vllm)")
        yield Option("vllm_importance_sampling_correction", True, f"{_NAME}.on")
        yield Option("vllm_importance_sampling_mode", f"{self.level}_{self.keep}", f"{_NAME}.level, {_NAME}.keep")
        yield Option("vllm_importance_sampling_clip_min", self.low or None, f"{_NAME}.low")
        yield Option("vllm_importance_sampling_clip_max", self.high, f"{_NAME}.high")

    def _trl_problems(self) -> Iterator[str]:
        if self.level == "action":
            yield (
                f"{_NAME}.level = 'action': TRL's loss does not know actions. The nearest are 'token' and 'sequence'"
            )
        if self.aggregate == "mean":
            yield (
                f"{_NAME}.aggregate = 'mean': TRL's weight of a sequence is the product of its ratios. Leave it at "
                "'product'"
            )
        if self.keep == "reject":
            yield (
                f"{_NAME}.keep = 'reject': TRL also weights the tokens that it keeps. The nearest is 'mask', which "
                "does so too"
            )

    def _verl(self) -> Iterator[Option]:
        prefix = "algorithm.rollout_correction"
        yield Option("actor_rollout_ref.rollout.calculate_log_probs", True, f"{_NAME}.on: the sampler's log-probs")
        if self.keep == "reject":
            kind = "token" if self.level == "token" else "seq_mean" if self.aggregate == "mean" else "seq_sum"
            yield Option(f"{prefix}.rollout_rs", f"{kind}_k1", f"{_NAME}.level, {_NAME}.aggregate, {_NAME}.keep")
            band = f"{1 / self.high:.6g}_{1 / self.low:.6g}"
            yield Option(
                f"{prefix}.rollout_rs_threshold", band, f"1 / {_NAME}.high, 1 / {_NAME}.low: verl's are of 1 / w"
            )
            return
        yield Option(f"{prefix}.rollout_is", self.level, f"{_NAME}.level, {_NAME}.aggregate")
        band = f"{self.low:g}_{self.high:g}" if self.keep == "mask" else f"{self.high:g}"
        yield Option(f"{prefix}.rollout_is_threshold", band, f"{_NAME}.keep, {_NAME}.low, {_NAME}.high")

    def _verl_problems(self, gate: str) -> Iterator[str]:
        if self.level == "action":
            yield (
                f"{_NAME}.level = 'action': verl's correction does not know actions. The nearest are 'token' and "
                "'sequence'"
            )
        if self.aggregate == "mean" and self.keep != "reject":
            yield (
                f"{_NAME}.aggregate = 'mean' with {_NAME}.keep = {self.keep!r}: verl's weight of a sequence is the "
                f"product of its ratios. Set {_NAME}.keep = 'reject', or {_NAME}.aggregate = 'product'"
            )
        if self.keep == "truncate" and self.low:
            yield (
                f"{_NAME}.low = {self.low:g} with {_NAME}.keep = 'truncate': verl's cut has no lower bound. Set it to 0"
            )
        if self.keep != "truncate" and not self.low:
            yield (
                f"{_NAME}.low = 0 with {_NAME}.keep = {self.keep!r}: verl needs two bounds above 0. Set {_NAME}.low, "
                "for example 0.5"
            )
        if self.keep == "reject" and self.level == "token" and gate == "action":
            yield (
                f"{_NAME}.keep = 'reject' with {_NAME}.level = 'token' and loss.penalty.gate = 'action': verl takes "
                "rejected tokens out of the mask, which splits actions before the gate sees them. Set the level to "
                "'sequence', or the gate to 'response' or 'token'"
            )
