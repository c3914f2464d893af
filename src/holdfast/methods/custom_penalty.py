"""A penalty class of the user's, given by its import path, and tried before a run begins."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from holdfast.base.errors import ConfigError
from holdfast.base.importing import import_named, is_import_path, running
from holdfast.methods.penalty import NAME, Penalty, PenaltySection


class CustomPenalty(PenaltySection):
    """A penalty class outside holdfast, given by its import path."""

    name: Literal["custom"] = Field("custom", description=NAME)
    path: str = ""
    """`module:Class`, a class derived from `holdfast.penalties.Penalty`; see docs/reference/losses.md."""
    coef: float | None = Field(None, ge=0)
    """Coefficient of the penalty in the loss. Unset: the default of the class."""
    settings: dict[str, Any] = Field({})
    """Other arguments of the class."""

    def refusals(self) -> Iterator[str]:
        """What cannot work, known without importing the class."""
        if not is_import_path(self.path):
            yield (
                f"loss.penalty.path = {self.path!r}: a custom penalty needs the import path of its class, as "
                "module:Class. Set loss.penalty.path, for example to my_code:Hinge"
            )
        if "coef" in self.settings:
            yield "loss.penalty.settings holds coef, which is a separate setting; set loss.penalty.coef"

    @cached_property
    def term(self) -> Penalty:
        """The penalty, imported, constructed and tried. Raises `ConfigError`."""
        arguments = self.settings if self.coef is None else {"coef": self.coef, **self.settings}
        try:
            return load_penalty(self.path, arguments)
        except ConfigError as error:
            raise ConfigError(f"loss.penalty: {error}") from error


def load_penalty(path: str, arguments: dict[str, Any]) -> Penalty:
    """A penalty whose class is given by its import path, tried on a small batch. Raises `ConfigError`."""
    kind = import_named(path)
    if not (isinstance(kind, type) and issubclass(kind, Penalty)):
        raise ConfigError(f"{path!r} is not a penalty: derive the class from holdfast.penalties.Penalty")
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"{path!r} lacks the method {missing[0]}; see holdfast.penalties.Penalty")
    penalty = kind(**arguments)
    try_out(penalty)
    return penalty


def try_out(penalty: Penalty) -> None:
    """Compute a penalty on a batch of two rollouts, so that one that cannot work is refused before a run begins.

    Raises:
        ConfigError: a method raises; `preserved` or `per_token` returns something other than one value per token;
            `per_token` is detached, not finite, or not 0 outside the mask.
    """
    import torch

    class_name = type(penalty).__name__
    loss_mask = torch.tensor([[False, True, True, False, True, True], [False, True, True, True, False, False]])
    old = torch.linspace(-3.0, -0.25, 12).view(2, 6)
    logprobs = (old + torch.tensor([0.5, -0.5]).repeat(2, 3)).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]])
    action_ids = torch.tensor([[0, 1, 1, 0, 2, 2], [0, 1, 1, 1, 0, 0]])
    with running(f"{class_name} fails on a batch of two rollouts"):
        weight = penalty.weight_at(1.0)
        preserved = penalty.preserved(advantages, loss_mask, advantages > 0)
        value = penalty.per_token(
            logprobs,
            old,
            advantages,
            loss_mask,
            preserved=preserved,
            action_ids=action_ids,
            answer_mask=action_ids == 2,
            answer_weight=1.0 if weight is None else float(weight),
        )
    for method, tensor, dtype in (("preserved", preserved, torch.bool), ("per_token", value, logprobs.dtype)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != loss_mask.shape or tensor.dtype != dtype:
            raise ConfigError(
                f"{class_name}.{method} must return a {str(dtype).removeprefix('torch.')} tensor [B, T], here [2, 6]; "
                f"it returned {_described(tensor)}"
            )
    if not value.requires_grad:
        raise ConfigError(
            f"{class_name}.per_token returns a tensor without a gradient, so it would train nothing; compute it from "
            "logprobs, without detach() or no_grad()"
        )
    if not bool(value.isfinite().all()):
        raise ConfigError(f"{class_name}.per_token returns NaN or infinity on a batch of two rollouts")
    if bool((value[~loss_mask] != 0).any()):
        raise ConfigError(
            f"{class_name}.per_token is not 0 outside the loss mask, where nothing is learned; return "
            "torch.where(loss_mask, value, 0.0)"
        )


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} {value!r}"
