"""Unsloth's GRPOTrainer: what `with_penalties` does differently there.

    import unsloth  # first
    from trl import GRPOTrainer

    Trainer = with_penalties(GRPOTrainer, LLDS(coef=0.2))

`import unsloth` replaces TRL's GRPOTrainer by a generated one, whose `compute_loss` never calls `_compute_loss`. Its
loss is computed by `UnslothEfficientGRPO.apply`, a global of the generated module. While a loss is computed, an object
replaces that global: it calls the original and adds the penalty. No code of Unsloth is copied, and the original is
restored.

Source: unsloth 2026.10.9 and unsloth_zoo 2026.10.9, `rl_replacements.py` of both.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.trl.mask import Truncation, warning
from holdfast.adapters.trl.observe import Observer, has_images
from holdfast.adapters.trl.penalty_mixin import PenaltyMixin
from holdfast.base.errors import ConfigError
from holdfast.base.tested import TESTED, installed_version

_LOSS = "UnslothEfficientGRPO"
_SUPPORT = "UNSLOTH_GRPO_TRUNCATED_SUPPORT"
"""The variable with which Unsloth takes log-probs over the tokens that vLLM could draw. Unset, it does so by itself
where vLLM's log-probs weight the loss, or says why not."""

_INSTALL = "pip install -U unsloth unsloth_zoo"


def unsloth_mixin(trainer_class: type) -> type[PenaltyMixin]:
    """What `with_penalties` adds to a class of Unsloth.

    Raises:
        ConfigError: this Unsloth computes its loss in another way, or is older: those divide the loss of `dapo` by
            another number.
    """
    installed = str(installed_version("unsloth_zoo"))
    for base in trainer_class.__mro__:
        namespace: dict[str, Any] = getattr(vars(base).get("compute_loss"), "__globals__", {})
        if hasattr(namespace.get(_LOSS), "apply") and TESTED["unsloth_zoo"].works_with(installed):
            return type("UnslothMixin", (_UnslothMixin,), {"_namespace": namespace})
    raise ConfigError(
        f"with_penalties({trainer_class.__name__}): the loss of unsloth_zoo {installed} cannot be extended; 2026.10 or "
        f"newer is needed. Run `{_INSTALL}`, or train without `import unsloth`"
    )


def completion_columns(ids: Tensor, completion: int, width: int, pad: int) -> Tensor:
    """int [B, T]: the columns of the T completion tokens in Unsloth's tensors [B, `width`].

    Unsloth moves the padding of a row to its end and keeps the last `width` columns.

    Args:
        ids: int [B, L], prompt and completion.
        completion: T.
        width: T plus the longest padding before a prompt.
        pad: the id of padding.
    """
    order = (ids == pad).to(torch.int8).argsort(dim=1, stable=True)
    return order.argsort(dim=1)[:, -completion:] - (ids.size(1) - width)


def _of_completion(packed: Tensor, batch: dict[str, Any], pad: int) -> Tensor:
    """[B, T] of Unsloth's [B, W]; prompts with images are not moved, and W is T."""
    width, completion = packed.size(1), batch["completion_ids"].size(1)
    if has_images(batch):
        return packed[:, -completion:]
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    return packed.gather(1, completion_columns(ids, completion, width, pad))


class _Observer(Observer):
    """Reads log-probs in Unsloth's layout."""

    def rollout_batch(self, batch: dict[str, Any], *arguments: Any) -> None:
        """See the parent's."""
        old = batch.get("old_per_token_logps")
        pad = self.trainer.processing_class.pad_token_id
        batch = batch if old is None else batch | {"old_per_token_logps": _of_completion(old, batch, pad)}
        super().rollout_batch(batch, *arguments)

    def _likelihood(self, forward: tuple[Any, ...], mask: Tensor, action_ids: Tensor) -> Tensor:
        ids, _, completion = forward
        pad = self.trainer.processing_class.pad_token_id
        width = completion + int((ids[:, :-completion] == pad).sum(1).max())
        columns = completion_columns(ids, completion, width, pad)
        packed = (x.new_zeros(len(x), width).scatter(1, columns, x) for x in (mask, action_ids))
        return super()._likelihood(forward, *packed)

    def _log_mass(self, batch: dict[str, Any], mask: Tensor) -> None:
        """Only what is known without a forward pass: Unsloth's models do not take the positions as a tensor."""
        if not Truncation.of(self.trainer.args).active:
            self._log({"sampler/mask_mass": 1.0})


class _UnslothMixin(PenaltyMixin):
    """The methods that `with_penalties` adds to Unsloth's trainer."""

    _namespace: dict[str, Any]
    """The globals in which Unsloth's `compute_loss` finds its loss."""
    _observer_class = _Observer

    def _truncation(self) -> str | None:
        """As the parent's. With vLLM it is Unsloth's own to say."""
        args = self.args
        if args.use_vllm and (_SUPPORT in os.environ or args.vllm_importance_sampling_correction):
            return None
        return warning(args, f"Sample with vLLM and {_SUPPORT}=1")

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Unsloth's loss plus the penalty; in evaluation Unsloth's alone."""
        if not self.model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        if self.holdfast_settings.penalty is not None and inputs.get("unsloth_sample_weight") is not None:
            raise ConfigError(
                "UNSLOTH_GRPO_ZERO_VARIANCE_EXCLUDE or UNSLOTH_GRPO_LOSS_AGGREGATION is set: Unsloth then weights "
                "each rollout in its loss, but would divide a penalty by another number. Unset both"
            )
        pad = self.processing_class.pad_token_id

        original = self._namespace[_LOSS]

        def apply(logprobs: Tensor, old: Tensor | None, *arguments: Any) -> tuple[Any, ...]:
            """As the original, whose first value is the loss. Its seventh argument is the mask; all are [B, W]."""
            loss, *more = original.apply(logprobs, old, *arguments)
            self._loss_was_computed = True
            inside = _of_completion(arguments[4], inputs, pad).bool()
            old = None if old is None else torch.where(inside, _of_completion(old, inputs, pad), 0.0)
            logprobs = torch.where(inside, _of_completion(logprobs, inputs, pad), 0.0)
            return self._extended(loss, inputs | {"old_per_token_logps": old}, logprobs, inside), *more

        self._namespace[_LOSS] = SimpleNamespace(apply=apply)
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            self._namespace[_LOSS] = original
