"""What the adapters for verl share: the base loss, a penalty's value per token, and the series beside it.

Needs torch and nothing of verl, so that forks of older versions are served by the same lines.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.verl_losses import LOSSES
from holdfast.errors import ConfigError
from holdfast.losses import penalty_stats, ratio_stats
from holdfast.metrics import per_token_mean
from holdfast.penalties import LLDS, Penalty

_PATIENCE = 1000  # micro-batches

logger = logging.getLogger("holdfast.adapters.verl")


def base_name(settings: Any, registered: Iterable[str]) -> str:
    """The loss the penalty is added to. Raises `ConfigError`, with the nearest name, for one that is not there."""
    base = settings.get("base_loss_mode") or "vanilla"
    known = sorted(set(registered) - set(LOSSES))
    if base in LOSSES:
        raise ConfigError(
            f"policy_loss.base_loss_mode = {base!r} is itself one of holdfast's, and a penalty is added once; name the "
            f"host's loss below it: {', '.join(known)}"
        )
    if base not in known:
        near = difflib.get_close_matches(base, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"registered are {', '.join(known)}"
        raise ConfigError(f"policy_loss.base_loss_mode = {base!r} is no registered policy loss; {hint}")
    return base


def refuse_cut_actions(penalty: Penalty | None, correction: Any) -> None:
    """Token-level rejection takes tokens out of `response_mask` before any loss sees it. What is left of an action then
    falls into pieces, and the action gate would open for each on its own.

    `correction` is verl's `rollout_correction`, or None where it is not known. In bypass mode the rejection happens
    inside the base loss, after us, and does no harm.
    """
    if not (isinstance(penalty, LLDS) and penalty.gate == "action") or not correction or correction.get("bypass_mode"):
        return
    levels = [level.strip() for level in str(correction.get("rollout_rs") or "").split(",")]
    if cutting := [level for level in levels if level.startswith("token")]:
        raise ConfigError(
            f"rollout_correction.rollout_rs = {cutting[0]!r} with loss_mode = 'holdfast_llds': rejecting tokens cuts "
            "actions into pieces before the loss sees them, and the gate of an action means nothing on a piece. Use "
            "sequence-level rejection (seq_…), or a gate that does not need whole actions (holdfast_llds_response, "
            "holdfast_lld)"
        )


def per_token(
    penalty: Penalty, log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, response_mask: Tensor
) -> Tensor:
    """The penalty, float [B, T], unreduced and not yet times its coefficient; `response_mask` is bool."""
    kept = penalty.preserved(advantages, response_mask)
    return penalty.per_token(log_prob, old_log_prob, advantages, response_mask, preserved=kept)


@dataclass(frozen=True, slots=True)
class Seen:
    """A mean over something, how much of it there was, and what stands for it before anything was seen."""

    value: Tensor
    count: Tensor
    otherwise: Tensor | float


@torch.no_grad()
def measure(
    penalty: Penalty | None,
    term: Tensor | None,
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
) -> dict[str, Seen]:
    """The series of one micro-batch. All but `response_mask` (bool) and `term` are float [B, T]; `term` is what
    `per_token` gave, None for `holdfast_observe`, which has no `penalty/active_fraction`."""
    mask = response_mask
    log_prob, old_log_prob, advantages = (_wide(x) for x in (log_prob, old_log_prob, advantages))
    rule = penalty if penalty is not None else LLDS()
    kept = rule.preserved(advantages, mask)
    pull = torch.zeros_like(log_prob) if term is None else term
    stats = penalty_stats(pull, log_prob, old_log_prob, mask, preserved=kept)
    stats |= ratio_stats(log_prob, old_log_prob, advantages, mask)
    tokens, preserved, sequences = stats["count/tokens"], stats["count/preserved"], stats["count/sequences"]
    seen = {
        "penalty/preserved_fraction": Seen(stats["penalty/preserved_fraction"], tokens, 0.0),
        "penalty/mean_decrease": Seen(stats["penalty/mean_decrease"], preserved, 0.0),
        "ratio/mean": Seen(stats["ratio/mean"], tokens, 1.0),
        "ratio/max": Seen(stats["ratio/max"], tokens, 1.0),
        "ratio/p01": Seen(stats["ratio/p01"], tokens, 1.0),
        "ratio/log_product": Seen(stats["ratio/log_product"], sequences, 0.0),
    }
    if term is not None:
        seen["penalty/active_fraction"] = Seen(stats["penalty/active_fraction"], preserved, 0.0)
    old = torch.where(mask, old_log_prob, 0.0)
    likelihood = per_token_mean(old, mask)
    drift = per_token_mean(torch.where(mask, log_prob, 0.0) - old, mask)
    sign = per_token_mean(torch.where(mask, advantages, 0.0), mask)
    for name, rows in (("positive", sign > 0), ("negative", sign < 0)):
        count = rows.sum()
        share = rows / count.clamp(min=1)
        everyone = likelihood.sum() / sequences.clamp(min=1)
        seen[f"likelihood/{name}"] = Seen((likelihood * share).sum(), count, everyone)
        seen[f"drift/{name}"] = Seen((drift * share).sum(), count, 0.0)
    return seen


class Log:
    """Turns what was measured into the one number per series and micro-batch that verl averages.

    verl takes the plain mean over micro-batches and ranks, and wants the same names, each with a finite number, from
    every one of them. A micro-batch in which a series has nothing to count (no rollout with A > 0, say) therefore
    repeats what this process saw last.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._idle = 0

    def numbers(self, name: str, measured: Mapping[str, Seen]) -> dict[str, float]:
        """`{"holdfast/…": number}`, with one transfer from the device. `name` is the loss, for the warning."""
        rows = [torch.stack([_scalar(x, seen.value) for x in _parts(seen)]) for seen in measured.values()]
        result: dict[str, float] = {}
        for series, (value, count, otherwise) in zip(measured, torch.stack(rows).tolist(), strict=True):
            if count > 0:
                self._last[series] = value
            result[f"holdfast/{series}"] = self._last.get(series, otherwise)
            if series == "penalty/active_fraction" and count > 0:
                self._watch(name, value)
        return result

    def _watch(self, name: str, active: float) -> None:
        if active > 0:
            self._idle = -1
        elif self._idle >= 0:
            self._idle += 1
            if self._idle == _PATIENCE:
                logger.warning(
                    "PEN001: %s was zero in all of %d micro-batches. On the first optimizer step after a rollout the "
                    "policy equals the old one, so with one step per rollout batch this penalty does nothing: set "
                    "actor.ppo_mini_batch_size to half of data.train_batch_size or less, or actor.ppo_epochs to 2",
                    name,
                    _PATIENCE,
                )


def _parts(seen: Seen) -> tuple[Tensor | float, ...]:
    return seen.value, seen.count, seen.otherwise


def _scalar(x: Tensor | float, like: Tensor) -> Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return x.to(dtype) if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype, device=like.device)


def _wide(x: Tensor) -> Tensor:
    """Under autocast verl's log-probs can be bfloat16, in which a sum over a rollout is worth nothing."""
    return x.float() if x.element_size() < 4 else x
