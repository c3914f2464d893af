"""What the optimizer steps of the policy and of the critic share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from holdfast.language_model import LanguageModel


def adamw(parameters: Sequence[Tensor], *, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW as the published runs have it."""
    return torch.optim.AdamW(
        parameters,
        lr=lr,
        weight_decay=weight_decay,
        betas=(0.9, 0.999),
        # One pass over weights, gradients and moments instead of a dozen. On a CPU it would round otherwise.
        fused=parameters[0].device.type == "cuda" or None,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """For the next optimizer step."""
    for group in optimizer.param_groups:
        group["lr"] = lr


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
