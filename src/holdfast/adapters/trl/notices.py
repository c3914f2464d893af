"""Detects, while a trainer runs, what would make `with_penalties` do nothing, and reports it at once."""

from __future__ import annotations

import logging
import sys
from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import Penalty
from holdfast.model.support import dropouts

_logger = logging.getLogger("holdfast")

_BATCHES = 5
"""Rollout batches before a warning about rewards: a few may be all incorrect, or all correct, by chance."""
_NEARLY = 0.95
_LOW = 0.25
"""A threshold in the lowest quarter of the rewards' range separates the worst from the rest, not correct from
incorrect."""


def warn(text: str) -> None:
    """Log a warning on its own line, even while a progress bar is on the screen."""
    from tqdm import tqdm

    with tqdm.external_write_mode():
        _logger.warning("holdfast: %s", text)


def say(text: str) -> None:
    """Print what is neither asked for nor a warning."""
    print(f"holdfast: {text}", file=sys.stderr)


def dropout_noise(model: torch.nn.Module, penalty: Penalty | None) -> str | None:
    """A sentence on dropout while the model trains, which makes old and new log-probs differ before any update."""
    found = list(dropouts(model))
    if not found:
        return None
    name, module, key = found[0]
    layers = [name for name, _, key in found if key == "p"]
    ways = ["LoraConfig(lora_dropout=0)"] * any("lora_dropout" in layer for layer in layers)
    ways += ["disable_dropout=True"] * any("lora_dropout" not in layer for layer in layers)
    if numbers := sorted({key for _, _, key in found} - {"p"}):
        ways.append(f"model_init_kwargs={dict.fromkeys(numbers, 0.0)}")
    acts = "" if penalty is None or penalty.acts_without_drift else f", and {type(penalty).__name__} acts on that noise"
    return (
        f"the model has dropout, {getattr(module, key):g} in {name} ({len(found)} places in all). TRL trains with it, "
        f"so old and new log-probs differ before any update{acts}. Set {' and '.join(ways)}."
    )


def replaced_loss(trainer: Any, penalty: Any) -> ConfigError:
    """The error for a first optimizer step that did not pass through `_compute_loss`, where the penalty is added and
    the series are measured. A trainer that replaces `compute_loss`, as Unsloth's does, need not call it."""
    function = getattr(trainer.compute_loss, "__func__", trainer.compute_loss)
    if "compute_loss" in vars(trainer):
        owner = "set on the trainer itself"
    else:
        kind = next(base for base in type(trainer).__mro__ if "compute_loss" in vars(base))
        owner = f"of the class {kind.__module__}.{kind.__qualname__}"
    lost = "nothing is observed" if penalty is None else f"{penalty!r} is not added to the loss"
    return ConfigError(
        f"with_penalties: {lost}, because this step did not pass through `_compute_loss`, the method of TRL's "
        "GRPOTrainer that with_penalties extends. `compute_loss` is now "
        f"`{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}`, {owner}. If "
        "this is Unsloth, train without `import unsloth`; if the class is yours, let its compute_loss return "
        "`self._compute_loss(model, inputs)`; else remove with_penalties"
    )


class RewardWatch:
    """Whether `correct_above` separates correct from incorrect rollouts, over a trainer's first rollout batches."""

    def __init__(self, correct_above: float) -> None:
        self._above = correct_above
        self._batches = self._correct = self._count = 0
        self._low, self._high = float("inf"), float("-inf")

    def warning(self, rewards: Tensor, correct: Tensor, *, by_em: bool) -> str | None:
        """A sentence, once, if no rollout or nearly every rollout is correct though their rewards differ.

        Args:
            rewards: [N] of a rollout batch, weighted and summed; NaN where there is none.
            correct: bool [N].
            by_em: a reward function named `em` decides instead of `correct_above`.
        """
        if self._batches == _BATCHES:
            return None
        self._batches += 1
        known = rewards[torch.isfinite(rewards)]
        self._correct += int(correct.sum())
        self._count += correct.numel()
        if known.numel():
            self._low, self._high = min(self._low, float(known.min())), max(self._high, float(known.max()))
        if self._batches < _BATCHES or not self._low < self._high:
            return None
        given = f"of the first {self._count} rollouts (rewards from {self._low:.3g} to {self._high:.3g})"
        reads = "Metrics of correct rollouts and `preserve='correct'` depend on this"
        if not self._correct and by_em:
            return f"none {given} counts as correct: the reward function `em` gave none of them 1. {reads}"
        if not self._correct:
            return (
                f"none {given} counts as correct: correct is a reward above correct_above={self._above:g}. {reads}: "
                "pass with_penalties(..., correct_above=X), with X between the rewards of incorrect and correct ones"
            )
        share = self._correct / self._count
        if by_em or share < _NEARLY or self._above > self._low + _LOW * (self._high - self._low):
            return None
        return (
            f"{share:.0%} {given} count as correct: correct is a reward above correct_above={self._above:g}. {reads}: "
            "pass with_penalties(..., correct_above=X), with X between the rewards of incorrect and correct ones"
        )
