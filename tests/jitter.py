"""A pytest plugin that imitates another processor: JITTER=1 python -m pytest -p tests.jitter …

A processor rounds a sum in the order in which its kernels add, so elsewhere a linear layer has other last bits. Here
each output of one is scaled by up to two units in its last place. By how much depends on its column and on the seed,
JITTER, alone: as on a real processor the same row gives the same output, whatever is in its batch. A test that passes
with every seed hangs on no last bit, and on no model that happened to learn this rather than that. `make numerics` runs
them all with one.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

SEED = int(os.environ.get("JITTER", "0"))
"""0 leaves everything as it is."""
UNITS = 2.0
_linear = F.linear


@cache
def factors(width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What the columns of an output are multiplied with, `[width]`."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.inference_mode(False):  # kept, and needed for gradients later
        noise = 2 * torch.rand(width, generator=generator, dtype=torch.float64) - 1
        return (1 + UNITS * torch.finfo(dtype).eps * noise).to(dtype).to(device)


def jittered(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, rounded otherwise."""
    out = _linear(input, weight, bias)
    return out * factors(out.shape[-1], out.dtype, out.device)


if SEED:
    F.linear = jittered
