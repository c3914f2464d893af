"""The parts of prime-rl and of slime that holdfast calls, with their names, arguments and results, and other contents.

They stand in where the packages are not installed. The tests run against the packages too where they are, and against a
checkout of prime-rl: HOLDFAST_PRIME_RL names it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, create_model
from torch import Tensor


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CustomLossConfig(_Strict):
    type: Literal["custom"] = "custom"
    import_path: str
    kwargs: dict[str, Any] = {}


@dataclass
class LossOutputs:
    loss: Tensor
    metrics: dict[str, Tensor]


def _custom(config: CustomLossConfig) -> Callable[[Any], LossOutputs]:
    """The loss that a dotted path names."""
    module, _, name = config.import_path.rpartition(".")
    loss = getattr(import_module(module), name)
    return lambda inputs: loss(inputs, **config.kwargs)


def _masked(inputs: Any, adv_tau: float, kl_tau: float = 0.0) -> LossOutputs:
    """A loss of one rollout in place of prime-rl's, as a sum over its tokens."""
    keep = inputs.loss_mask
    change = (inputs.trainer_logprobs - inputs.inference_logprobs)[keep]
    each = kl_tau * change**2 - adv_tau * inputs.advantages[keep] * change.exp()
    if inputs.loss_weights is not None:
        each = each * inputs.loss_weights[keep]
    return LossOutputs(each.sum(), {"is_masked": (change.abs() > 0.3).float().mean()})


@dataclass
class LossInputs:
    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None = field(default=None)


def _functions() -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """What `configs.trainer` and `trainer.rl.loss` of prime-rl 0.8 have: losses are functions."""

    class DefaultLossConfig(_Strict):
        type: Literal["default"] = "default"
        adv_tau: float = Field(1.0, ge=0)
        kl_tau: float = Field(1e-3, ge=0)

    class IPOLossConfig(_Strict):
        type: Literal["ipo"] = "ipo"
        adv_tau: float = Field(1.0, ge=0)
        kl_tau: float = Field(1e-3, ge=0)

    def setup_rl_loss_fn(loss_config: Any) -> Callable[[Any], LossOutputs]:
        if isinstance(loss_config, CustomLossConfig):
            return _custom(loss_config)
        return lambda inputs: _masked(inputs, loss_config.adv_tau, loss_config.kl_tau)

    return {"DefaultLossConfig": DefaultLossConfig, "IPOLossConfig": IPOLossConfig}, setup_rl_loss_fn


def _objects() -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """The same of prime-rl's main branch since September 2026: losses are objects, and IPO is the default."""

    class IPOLossConfig(_Strict):
        type: Literal["ipo"] = "ipo"
        adv_tau: float = Field(1.0, ge=0)
        score_centering: bool = False

    class IcePopLossConfig(_Strict):
        type: Literal["icepop"] = "icepop"
        adv_tau: float = Field(1.0, ge=0)

    class Loss:
        def __init__(self, config: Any) -> None:
            adv_tau = getattr(config, "adv_tau", 0.0)
            custom = isinstance(config, CustomLossConfig)
            self.loss = _custom(config) if custom else lambda inputs: _masked(inputs, adv_tau)

    return {"IPOLossConfig": IPOLossConfig, "IcePopLossConfig": IcePopLossConfig}, Loss


def compute_loss(rl_loss_fn: Any, *, rl_scale: float, **rows: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The sum over rollouts / rl_scale, and the metrics of all rollouts joined. The other components are left out."""
    loss = getattr(rl_loss_fn, "loss", rl_loss_fn)
    names = ("trainer_logprobs", "inference_logprobs", "advantages", "loss_mask")
    outputs = [
        loss(LossInputs(ref_logprobs=None, **dict(zip(names, row, strict=True))))
        for row in zip(*(rows[name] for name in names), strict=True)
    ]
    metrics = {key: torch.cat([x.metrics[key].reshape(-1) for x in outputs]) for key in outputs[0].metrics}
    return torch.stack([x.loss for x in outputs]).sum() / rl_scale, metrics


PRIME_RL = {"functions": _functions, "objects": _objects}


def prime_rl(interface: str) -> dict[str, ModuleType]:
    """Name -> module, for an interface of `PRIME_RL`."""
    loss, trainer = ModuleType("prime_rl.trainer.rl.loss"), ModuleType("prime_rl.configs.trainer")
    configs, setup_rl_loss_fn = PRIME_RL[interface]()
    union = Annotated[
        functools.reduce(operator.or_, [*configs.values(), CustomLossConfig]), Field(discriminator="type")
    ]
    default = next(iter(configs.values()))()
    settings = create_model("TrainerConfig", loss=(union, default))
    vars(trainer).update(configs, CustomLossConfig=CustomLossConfig, LossConfig=union, TrainerConfig=settings)
    vars(loss).update(LossInputs=LossInputs, LossOutputs=LossOutputs)
    vars(loss).update(setup_rl_loss_fn=setup_rl_loss_fn, compute_loss=compute_loss)
    packages = {
        name: ModuleType(name) for name in ("prime_rl", "prime_rl.trainer", "prime_rl.trainer.rl", "prime_rl.configs")
    }
    return packages | {loss.__name__: loss, trainer.__name__: trainer}


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
