"""Linear layers by oneDNN, where the matrix products that PyTorch calls leave half of the CPU unused.

For float32 PyTorch calls MKL, which takes its AVX-512 kernels on CPUs of Intel alone. On others oneDNN, which comes
with PyTorch too, is faster (`benchmarks/linear_layers.py`). Where a CPU has instructions for bf16, products of bf16
numbers take half the time of float32 again. Weights in oneDNN's own order save most where a pass has few rows.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_CPUINFO = Path("/proc/cpuinfo")


class OneDNNLinear(torch.nn.Linear):
    """A float32 linear layer on a CPU. What it gives is `Linear`'s up to rounding."""

    products = torch.float32
    """The dtype of the numbers that are multiplied. They are summed, given and passed back in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """`[…, in]` → `[…, out]`."""
        if self.weight.is_mkldnn:  # `prepared`; peft casts the input of adapters to the dtype of their weights
            return _product(input, self.weight, self.bias, self.products)
        usual = input.dtype == torch.float32 and input.device.type == "cpu" and input.numel() > 0
        if not usual or torch.is_autocast_enabled("cpu"):
            return super().forward(input)
        result: Tensor = _Product.apply(input, self.weight, self.bias, self.products)  # type: ignore[no-untyped-call]
        return result

    def prepared(self, weight: Tensor) -> Tensor:
        """A copy of the weight that saves time in passes without a gradient."""
        numbers = weight.detach().to(dtype=self.products)
        copy: Tensor = torch.ops.mkldnn._reorder_linear_weight(numbers)
        return copy


class BF16Linear(OneDNNLinear):
    """A float32 linear layer that multiplies in bf16 and sums in float32. Its results and gradients are rounded to
    bf16."""

    products = torch.bfloat16


def use_onednn(model: Any, kind: type[OneDNNLinear] = OneDNNLinear) -> None:
    """Let oneDNN compute the float32 linear layers of `model`, in place; in float32 only where it is faster than MKL.

    The output layer always multiplies in float32: bf16 has two or three digits, and a logit of 20 would be 0.06 off.
    """
    if kind is OneDNNLinear and not mkl_is_slow():
        return
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    for module in model.modules():
        # A subclass may compute otherwise.
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
            if module is not head:
                module.__class__ = kind
            elif mkl_is_slow():
                module.__class__ = OneDNNLinear


def mkl_is_slow() -> bool:
    """Whether PyTorch multiplies with MKL on a CPU with AVX-512 that is not of Intel."""
    return "avx512f" in _flags() and "GenuineIntel" not in _flags() and torch.backends.mkl.is_available()


def has_bf16() -> bool:
    """Whether this CPU multiplies bf16 numbers faster than float32 ones."""
    return not _flags().isdisjoint({"avx512_bf16", "amx_bf16"})


@cache
def _flags() -> frozenset[str]:
    """Vendor and instructions of an x86 CPU, as Linux calls them. None where oneDNN cannot be used."""
    known = platform.machine() in ("x86_64", "AMD64") and _CPUINFO.is_file() and torch.backends.mkldnn.is_available()
    return frozenset(_CPUINFO.read_text().split()) if known else frozenset()


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`[…, in]` and `[out, in]` → `[…, out]`, float32."""
    matrix = weight if weight.is_mkldnn else weight.to(dtype=dtype)
    offset = None if bias is None else bias.to(dtype)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows.to(dtype), matrix, offset, "none", [], "")
    return product.float()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows = input.to(dtype)
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias, dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        input, weight = ctx.saved_tensors
        dtype = input.dtype
        rows, gradients = input.reshape(-1, input.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
        of_input, of_weight, of_bias, _ = ctx.needs_input_grad
        own = gradients.to(dtype)
        return (
            _product(own, weight.t(), None, dtype).view(input.shape) if of_input else None,
            _product(own.t(), rows.t(), None, dtype) if of_weight else None,
            gradients.sum(0) if of_bias else None,
            None,
        )
