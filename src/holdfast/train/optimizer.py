"""What the optimizer steps of the policy and of the critic share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.model.language_model import LanguageModel

_FUSED = 10_000_000
"""Models at least this large use the fused step. Smaller ones do not, so that recorded runs replay exactly."""


def adamw(
    parameters: Sequence[Tensor], *, lr: float, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.Optimizer:
    """AdamW, by default as the published runs have it."""
    # One pass over weights, gradients and moments instead of a dozen. On a CPU it rounds differently.
    fused = parameters[0].device.type == "cuda" or sum(p.numel() for p in parameters) >= _FUSED
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay, betas=betas, fused=fused or None)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """For the next optimizer step."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def warmed_up(lr: float, completed_steps: int, warmup: int) -> float:
    """The learning rate of the next step, after a linear rise over `warmup` steps."""
    return lr * min(1.0, (completed_steps + 1) / (warmup + 1))


def clipped_step(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], grad_clip: float) -> float:
    """One optimizer step, skipped where the gradient is not finite. Returns the norm of the gradient."""
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, grad_clip))
    if math.isfinite(norm):
        optimizer.step()
    else:
        # The moments must not see it: one non-finite gradient would poison every later step.
        optimizer.zero_grad(set_to_none=True)
    return norm


@contextmanager
def training_mode(language_model: LanguageModel) -> Iterator[None]:
    """transformers recomputes activations only in training mode; dropout is 0 in both modes."""
    model = language_model.model
    model.train(language_model.gradient_checkpointing)
    try:
        yield
    finally:
        model.eval()


@contextmanager
def weights_in_place(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[None]:
    """Within this context the parameters have other weights. Do not differentiate passes in it."""
    current = [parameter.data for parameter in parameters]
    try:
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data = weight
        yield
    finally:
        for parameter, data in zip(parameters, current, strict=True):
            parameter.data = data
