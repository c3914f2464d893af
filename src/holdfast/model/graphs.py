"""Steps of decoding as CUDA graphs.

A step launches some 60 kernels for each layer. In small models each kernel is shorter than its launch, so the device
waits for the host. A CUDA graph launches them all in one call, but has fixed sizes and addresses. So slots and visible
positions are rounded up to few sizes, and each size has its graph.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from holdfast.model.sampling import Sampled

LENGTHS = 128
"""Visible positions are rounded up to a multiple of this."""

Decode = Callable[[Tensor, Tensor, Tensor, int], Sampled]
"""One step: token, position and key of each slot, and the visible positions -> what is sampled. It must not wait for
the device."""
Replay = Callable[[Tensor, Tensor, Tensor], Sampled]


def rounded_slots(slots: int) -> int:
    """At least as many: 8, 12, 16, 24, 32, 48, 64, 96 …"""
    size = 8
    while size < slots:
        size = size * 3 // 2 if size * 3 // 2 >= slots else size * 2
    return size


def rounded_length(length: int) -> int:
    """At least as many visible positions."""
    return -(-length // LENGTHS) * LENGTHS


class StepGraphs:
    """The graphs of one batch of rollouts: they hold the addresses of its weights and its cache.

    The first step of a size runs as it is, since kernels that it loads cannot be loaded during a capture. The second is
    captured. A model that cannot be captured, because it waits for the device, decodes as it is.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, ...], Replay | None] = {}
        self._pool: Any = None
        self._works = True

    @property
    def captured(self) -> int:
        """Number of sizes that have a graph."""
        return sum(replay is not None for replay in self._graphs.values())

    def step(
        self, decode: Decode, state: tuple[Tensor, Tensor, Tensor], length: int, storage: tuple[int, int]
    ) -> Sampled:
        """What `decode` samples for the tokens, positions and keys of `state`.

        It is valid until the next step. `storage` is the size of the cache; another size has other addresses.
        """
        size = (len(state[0]), length, *storage)
        if size not in self._graphs or not self._works:
            self._graphs[size] = None
            return decode(*state, length)
        replay = self._graphs[size]
        if replay is None:
            try:
                replay = self._graphs[size] = self._capture(decode, state, length)
            except RuntimeError as error:
                self._works = False
                warnings.warn(f"rollouts decode without CUDA graphs, which is slower: {error}", stacklevel=2)
                return decode(*state, length)
        return replay(*state)

    def _capture(self, decode: Decode, state: tuple[Tensor, Tensor, Tensor], length: int) -> Replay:
        graph, inputs = torch.cuda.CUDAGraph(), tuple(tensor.clone() for tensor in state)
        here, aside = torch.cuda.current_stream(inputs[0].device), _capture_stream(inputs[0].device)
        aside.wait_stream(here)
        # Not `torch.cuda.graph`: it returns all unused memory to the driver, which the next allocations pay for.
        with torch.cuda.stream(aside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = decode(inputs[0], inputs[1], inputs[2], length)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(aside)
        self._pool = graph.pool()

        def replay(*values: Tensor) -> Sampled:
            for kept, value in zip(inputs, values, strict=True):
                kept.copy_(value)
            graph.replay()
            return outputs

        return replay


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: PyTorch keeps the workspace of its matrix products for every stream that has had one."""
    return torch.cuda.Stream(device)
