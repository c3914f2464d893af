"""A float32 linear layer by MKL, as PyTorch computes it, against oneDNN, as `holdfast.model.passes.onednn` does; and
one in bf16 against itself with a weight prepared for oneDNN, where the CPU has bf16.

    python benchmarks/linear_layers.py

On one thread, in CPU seconds: the layers of a model of 135 million parameters, over the rows of a decoding step and of
a training pass. A ratio above 1 says that oneDNN is faster; `holdfast.model.passes.onednn` says whether it is used
here.
Needs no network. Takes half a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from holdfast.model.passes.onednn import OneDNNLinear, mkl_is_slow, multiplies_bf16, prepared
from measuring import table

SHAPES = ((8, 576, 1536), (24, 576, 1536), (96, 576, 1536), (700, 576, 1536), (700, 1536, 576), (400, 576, 49152))
"""Rows, inputs, outputs."""


def seconds(work: Callable[[], object], times: int = 7) -> float:
    """The median CPU time."""
    work()
    taken = []
    for _ in range(times):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return sorted(taken)[times // 2]


def forward(layer: torch.nn.Linear, given: torch.Tensor) -> None:
    with torch.inference_mode():
        layer(given)


def forward_and_backward(layer: torch.nn.Linear, given: torch.Tensor) -> None:
    layer(given).sum().backward()


def ready(layer: torch.nn.Linear) -> torch.nn.Linear:
    """The layer with its weight prepared."""
    other = OneDNNLinear(1, 1, bias=False)
    other._parameters = {"weight": prepared(layer.weight.detach(), layer.weight.dtype), "bias": None}
    return other


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for count, inputs, outputs in SHAPES:
        by_mkl, by_onednn = (torch.nn.Linear(inputs, outputs, bias=False) for _ in range(2))
        by_onednn.__class__ = OneDNNLinear
        given = torch.randn(count, inputs, requires_grad=True)
        ratios = [
            seconds(partial(work, by_mkl, given)) / seconds(partial(work, by_onednn, given))
            for work in (forward, forward_and_backward)
        ]
        ratios.append(seconds(partial(forward, by_mkl, given)) / seconds(partial(forward, ready(by_onednn), given)))
        if multiplies_bf16():
            half, given = by_mkl.bfloat16(), given.detach().bfloat16()
            ratios.append(seconds(partial(forward, half, given)) / seconds(partial(forward, ready(half), given)))
        rows.append([f"{count} × {inputs} → {outputs}", *(f"{ratio:.2f}" for ratio in ratios)])
    columns = ["forward", "forward and backward", "forward, weight prepared", "the same in bf16"]
    print(table(["rows × in → out", *columns][: len(rows[0])], rows))
    print("oneDNN is used here" if mkl_is_slow() else "oneDNN is not used here")


if __name__ == "__main__":
    main()
