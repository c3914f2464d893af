"""A pytest plugin that imitates another processor: JITTER=1 python -m pytest -p tests.jitter …

A processor rounds a sum in the order in which its kernels add, so elsewhere a linear layer has other last bits. Here
each output of one is scaled by up to two units in its last place, and by half a unit in half precision, whose sums are
kept in float32. By how much depends on its column and on the seed, JITTER, alone: as on a real processor the same row
gives the same output, whatever is in its batch. A test that passes with every seed hangs on no last bit, and on no
model that happened to learn this rather than that. `make numerics` runs them all with one.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

SEED = int(os.environ.get("JITTER", "0"))
"""0 leaves everything as it is."""
UNITS = {torch.float64: 2.0, torch.float32: 2.0, torch.bfloat16: 0.5, torch.float16: 0.5}
_linear = F.linear


@cache
def factors(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What the columns of an output of this dtype are multiplied with, `[width]`, float32 or float64."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode(False):  # kept, and needed for gradients later
        noise = 2 * torch.rand(width, generator=generator, dtype=torch.float64) - 1
        result = 1 + UNITS[dtype] * torch.finfo(dtype).eps * noise
        return result.to(torch.promote_types(dtype, torch.float32)).to(device)


def jittered(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, rounded otherwise."""
    out = _linear(input, weight, bias)
    return (out * factors(out.shape[-1], out.dtype, out.device)).to(out.dtype)


if SEED:
    F.linear = jittered
