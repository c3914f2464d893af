"""Linear layers by oneDNN, where the matrix products that PyTorch calls leave half of the CPU unused.

For float32 PyTorch calls MKL, which takes its AVX-512 kernels on CPUs of Intel alone. On others oneDNN, which comes
with PyTorch too, is faster (`benchmarks/patches.py`). In bf16 PyTorch calls it anyway. It brings the weight into
an order of its own in every call. That is most of the work where rows are few, and `prepared` does it once for many
calls.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CPUINFO = Path("/proc/cpuinfo")
_KEPT = 128
"""For so many shapes of a product oneDNN and PyTorch keep the code they made; by default for 1,024. That takes 0.6 MB a
shape, and packed rows have other shapes in each pass. Making it again takes a millisecond."""


class OneDNNLinear(torch.nn.Linear):
    """A float32 linear layer on a CPU, under autocast or not. What it gives is `Linear`'s up to rounding."""

    def forward(self, input: Tensor) -> Tensor:
        """`[…, in]` → `[…, out]`."""
        if self.weight.is_mkldnn:  # `prepared`; peft casts the input of adapters to the dtype of their weights
            return _product(input.to(self.weight.dtype), self.weight, self.bias)
        usual = input.dtype == torch.float32 and input.device.type == "cpu" and input.numel() > 0
        if not usual or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        result: Tensor = _Product.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


def prepared(weight: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """A copy of a layer's weight that saves time in passes without a gradient; in bf16 under autocast."""
    copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype))
    return copy


def use_onednn(model: torch.nn.Module, *, bf16: bool = False) -> None:
    """Let oneDNN compute the float32 linear layers of `model`, in place, on a CPU where it is faster than MKL; or, for
    passes under autocast, where it has bf16."""
    if not (multiplies_bf16() if bf16 else mkl_is_slow()):
        return
    for capacity in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read at the first product
        os.environ.setdefault(capacity, str(_KEPT))
    for module in model.modules():
        # A subclass may compute otherwise.
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
            module.__class__ = OneDNNLinear


@cache
def mkl_is_slow() -> bool:
    """Whether PyTorch multiplies with MKL on a CPU with AVX-512 that is not of Intel."""
    if platform.machine() not in ("x86_64", "AMD64") or not _CPUINFO.is_file():
        return False
    cpu = _CPUINFO.read_text()
    return (
        "avx512f" in cpu
        and "GenuineIntel" not in cpu
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
    )


def multiplies_bf16() -> bool:
    """Whether oneDNN multiplies in bf16 on this CPU."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return x86 and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`[…, in]` and `[out, in]` → `[…, out]`."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _product(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        rows, gradients = input.reshape(-1, input.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        of_input, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradients, weight.t()).view(input.shape) if of_input else None,
            _product(gradients.t(), rows.t()) if of_weight else None,
            gradients.sum(0) if of_bias else None,
        )
