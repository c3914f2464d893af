"""Steps of decoding as CUDA graphs.

A step launches some 40 kernels for each layer. In small models each kernel is shorter than its launch, so the device
waits for the host. A CUDA graph launches them all in one call, but has fixed sizes and addresses. So the number of rows
is rounded up to few sizes, and each size has its graph.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from holdfast.model.sampler.sampling import Sampled

Advance = Callable[[Tensor], Sampled]
"""One step: moves the state of its rows on in place, `[values, R]`, and says what was sampled. It must not wait for the
device."""
Replay = Callable[[Tensor], tuple[Sampled, Tensor]]


def rounded_rows(rows: int) -> int:
    """At least as many: 8, 12, 16, 24, 32, 48, 64, 96 …"""
    size = 8
    while size < rows:
        size = size * 3 // 2 if size * 3 // 2 >= rows else size * 2
    return size


class StepGraphs:
    """A graph for each number of rows: they hold the addresses of the weights and of the keys.

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

    def step(self, advance: Advance, state: Tensor, storage: tuple[int, int]) -> tuple[Sampled, Tensor]:
        """What `advance` samples, valid until the next step; and the state to go on with.

        `storage` is the size of the cache; another size has other addresses.
        """
        size = (state.shape[1], *storage)
        if size not in self._graphs or not self._works:
            self._graphs[size] = None
            return advance(state), state
        replay = self._graphs[size]
        if replay is None:
            try:
                replay = self._graphs[size] = self._capture(advance, state)
            except RuntimeError as error:
                self._works = False
                warnings.warn(f"rollouts decode without CUDA graphs, which is slower: {error}", stacklevel=2)
                return advance(state), state
        return replay(state)

    def _capture(self, advance: Advance, state: Tensor) -> Replay:
        graph, kept = torch.cuda.CUDAGraph(), state.clone()
        here, aside = torch.cuda.current_stream(state.device), _capture_stream(state.device)
        aside.wait_stream(here)
        # Not `torch.cuda.graph`: it returns all unused memory to the driver, which the next allocations pay for.
        with torch.cuda.stream(aside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                sampled = advance(kept)
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(aside)
        self._pool = graph.pool()

        def replay(state: Tensor) -> tuple[Sampled, Tensor]:
            if state is not kept:
                kept.copy_(state)
            graph.replay()
            return sampled, kept

        return replay


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: PyTorch keeps the workspace of its matrix products for every stream that has had one."""
    return torch.cuda.Stream(device)
