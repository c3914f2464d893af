"""Rollouts by other weights than those that are trained.

Training rollouts come from the weights of some batches ago, as in a trainer that does not wait for them; or from
weights rounded to 8 bits, as in an inference engine. Evaluation has the weights as they are.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from holdfast.recipe import Config
from holdfast.train.optimizer import weights_in_place


class StaleSampler:
    """What rollouts are sampled from, where the recipe asks for other weights than the model's.

    After a resume the past is empty: rollouts are as old as asked for again once that many batches are done.
    """

    def __init__(self, config: Config, model: Any) -> None:
        self._8_bits, self._model = config.faults.sampler_8_bits, model
        # In the host's memory: a card that holds the weights of nine batches has no room for a second run.
        self._past: deque[tuple[int, list[Tensor]]] = deque(maxlen=config.train.staleness + 1)
        self._on_device: tuple[int, list[Tensor]] | None = None

    def in_place(self, step: int) -> AbstractContextManager[None]:
        """Within this context the model has the sampler's weights. `step` counts the batches that it has learned."""
        parameters = list(self._model.parameters())
        weights = [parameter.data for parameter in parameters]
        if not self._past or self._past[-1][0] != step:  # a step may need several rounds of rollouts
            self._keep(step, weights)
        return weights_in_place(parameters, self._sampled(weights))

    def _keep(self, step: int, weights: list[Tensor]) -> None:
        """Copy these weights; once the past is full, into the memory of those that are too old for any rollout."""
        full = len(self._past) == self._past.maxlen
        copies = self._past.popleft()[1] if full else [torch.empty_like(weight, device="cpu") for weight in weights]
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(to_8_bits(weight) if self._8_bits and weight.dim() == 2 else weight)
        self._past.append((step, copies))

    def _sampled(self, like: list[Tensor]) -> list[Tensor]:
        """The oldest weights, on the model's device: always at one address, to which CUDA graphs are bound."""
        step, weights = self._past[0]
        if all(weight.device.type == "cpu" for weight in like):
            return weights
        if self._on_device is None or self._on_device[0] != step:
            here = self._on_device[1] if self._on_device else [torch.empty_like(weight) for weight in like]
            for place, weight in zip(here, weights, strict=True):
                place.copy_(weight)
            self._on_device = step, here
        return self._on_device[1]


def to_8_bits(weight: Tensor) -> Tensor:
    """A matrix rounded to E4M3 (three bits behind the leading one), each row scaled to the format's range."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = weight.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny) / largest
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale
