"""The parts of prime-rl and of slime that holdfast calls, with their names, arguments and results, and other contents.

They stand in where the packages are not installed. The tests run against the packages too where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor


class DefaultLossConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["default"] = "default"
    kl_tau: float = Field(1e-3, ge=0)


class CustomLossConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["custom"] = "custom"
    import_path: str
    kwargs: dict[str, Any] = {}


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = field(default=None)


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


def setup_rl_loss_fn(config: Any) -> Callable[[LossInputs], LossOutputs]:
    """One kind of loss, and a custom one by its dotted path."""
    if isinstance(config, CustomLossConfig):
        from importlib import import_module

        module, _, name = config.import_path.rpartition(".")
        custom = getattr(import_module(module), name)
        return lambda inputs: custom(inputs, **config.kwargs)

    def plain(inputs: LossInputs) -> LossOutputs:
        change = inputs.trainer_logprobs - inputs.inference_logprobs
        each = inputs.loss_mask * (config.kl_tau * change**2 - inputs.advantages * change.exp())
        if inputs.loss_weights is not None:
            each = each * inputs.loss_weights
        return LossOutputs(each.sum(), {"change": change[inputs.loss_mask].mean().detach()})

    return plain


def prime_rl() -> dict[str, ModuleType]:
    """Name -> module."""
    loss, configs = ModuleType("prime_rl.trainer.rl.loss"), ModuleType("prime_rl.configs.trainer")
    vars(configs).update(
        DefaultLossConfig=DefaultLossConfig,
        CustomLossConfig=CustomLossConfig,
        LossConfig=DefaultLossConfig | CustomLossConfig,
    )
    vars(loss).update(LossInputs=LossInputs, LossOutputs=LossOutputs, setup_rl_loss_fn=setup_rl_loss_fn)
    packages = {
        name: ModuleType(name) for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.configs")
    }
    return packages | {loss.__name__: loss, configs.__name__: configs}


_SLIME = """
import torch

def get_log_probs_and_entropy(logits, *, args, unconcat_tokens, total_lengths, response_lengths, **_):
    rows, end = [], 0
    for tokens, total, response in zip(unconcat_tokens, total_lengths, response_lengths):
        end += total
        of_row = (logits[0, end - response - 1 : end - 1] / args.rollout_temperature).log_softmax(-1)
        rows.append(of_row.gather(-1, tokens[-response:, None])[:, 0])
    return RESULT

def policy_loss_function(args, batch, logits, sum_of_sample_mean):
    names = ("unconcat_tokens", "total_lengths", "response_lengths")
    found = get_log_probs_and_entropy(logits, args=args, **{name: batch[name] for name in names})
    new = (found[1] if isinstance(found, tuple) else found)["log_probs"]
    old = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch.get("log_probs")
    old = old or [row.detach() for row in new]
    ratio = (torch.cat(new) - torch.cat(old)).exp()
    loss = sum_of_sample_mean(-ratio * torch.cat(batch["advantages"]))
    return loss, {"loss": loss.detach().clone()}
"""


def slime_like(name: str) -> ModuleType:
    """The module of `policy_loss_function`: slime returns its log-probs in a tuple, miles in a dict."""
    module = ModuleType(name)
    result = "(torch.empty(0), {'log_probs': rows})" if name.startswith("slime") else "{'log_probs': rows}"
    exec(_SLIME.replace("RESULT", result), vars(module))
    return module


def sum_of_sample_mean(batch: dict[str, Any], per_token: bool) -> Callable[[Tensor], Tensor]:
    """slime's and miles' reduction: by each rollout's denominator, or none if Megatron divides by tokens."""

    def reduce(x: Tensor) -> Tensor:
        total = torch.zeros((), dtype=x.dtype)
        rows = zip(x.split(batch["response_lengths"]), batch["loss_masks"], batch["rollout_mask_sums"], strict=True)
        for row, mask, denominator in rows:
            total = total + (row * mask).sum() / (1 if per_token else denominator.clamp(min=1))
        return total

    return reduce
