"""Faults of the sampler, on purpose: rollouts by other weights than those that are trained.

Rollouts in training come from the weights of some batches ago, as those of a trainer that does not wait for them; or
from weights rounded to 8 bits, as those of an inference engine. Evaluation has the weights as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from holdfast.recipe import Faults


class SamplerWeights:
    """What rollouts are sampled from, while `faults` ask for other weights than the model's.

    After a resume the past is empty: rollouts are as old as asked for again once that many batches are done.
    """

    def __init__(self, faults: Faults, model: Any) -> None:
        self._faults, self._model = faults, model
        self._past: deque[tuple[int, list[Tensor]]] = deque(maxlen=faults.stale_batches + 1)

    @contextmanager
    def in_place(self, step: int) -> Iterator[None]:
        """Within this context the model has the sampler's weights. `step` counts the batches that it has learned."""
        weights = [parameter.data for parameter in self._model.parameters()]
        if not self._past or self._past[-1][0] != step:  # a step may need several rounds of rollouts
            self._past.append((step, [weight.clone() for weight in weights]))
        sampled = self._past[0][1]
        try:
            for parameter, weight in zip(self._model.parameters(), sampled, strict=True):
                parameter.data = to_8_bits(weight) if self._faults.sampler_8_bits and weight.dim() == 2 else weight
            yield
        finally:
            for parameter, weight in zip(self._model.parameters(), weights, strict=True):
                parameter.data = weight


def to_8_bits(weight: Tensor) -> Tensor:
    """A matrix rounded to E4M3 (three bits behind the leading one), each row scaled to the format's range."""
    most = torch.finfo(torch.float8_e4m3fn).max
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / most
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale
