"""Weights of linear layers, made ready once for many forward passes.

Autocast casts the float32 weights of every linear layer in every forward pass. A step of decoding reads each weight for
one token a row, so on a GPU it is bound by the bytes it moves: 4 to read a weight, 2 to write its cast and 2 to read
that. A cast that stays leaves 2 of these 8. On a CPU, oneDNN would reorder a weight in every pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from holdfast.model.passes.onednn import OneDNNLinear, prepared


class CastWeights:
    """Copies of the parameters of a model's linear layers: in the dtype of autocast, or as oneDNN reads a weight.

    With them in place, a forward pass under autocast gives the same bits as without: they are what autocast makes.
    oneDNN's are the same up to rounding. Parameters outside linear layers, such as embeddings and norms, are not cast
    by autocast and not here. The copies follow later changes of the weights only by `refresh`. They take 2 bytes for
    each parameter; for a float32 layer of oneDNN 4.
    """

    def __init__(self, model: torch.nn.Module, dtype: torch.dtype | None) -> None:
        copies: dict[Tensor, Tensor] = {}
        self._places: list[tuple[dict[str, Any], str, Tensor]] = []
        for module in model.modules():
            if type(module) not in (torch.nn.Linear, OneDNNLinear):  # another subclass may compute otherwise
                continue
            for name, parameter in module._parameters.items():
                prepares = isinstance(module, OneDNNLinear) and name == "weight"
                if parameter is None or parameter.dtype != torch.float32 or not (prepares or dtype):
                    continue
                if parameter not in copies:
                    make = prepared if prepares else Tensor.to
                    copies[parameter] = make(parameter.detach(), dtype or torch.float32)
                self._places.append((module._parameters, name, copies[parameter]))

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(copy.nbytes for copy in {id(copy): copy for _, _, copy in self._places}.values())

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the present weights, into the same memory."""
        for parameters, name, copy in self._places:
            copy.copy_(parameters[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the linear layers have the copies. Do not differentiate passes in it."""
        originals = [parameters[name] for parameters, name, _ in self._places]
        try:
            for parameters, name, copy in self._places:
                parameters[name] = copy
            yield
        finally:
            for (parameters, name, _), original in zip(self._places, originals, strict=True):
                parameters[name] = original
