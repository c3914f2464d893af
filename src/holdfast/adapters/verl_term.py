"""The part of verl's losses that does not import verl: the base loss, answers and searches, and the numbers to log."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.host_losses import CountedMean
from holdfast.adapters.verl_losses import ANSWER_SPAN, LAST_ACTION, LOSSES
from holdfast.base.errors import ConfigError, nearest_name
from holdfast.hosts.host import COEF
from holdfast.losses import action_ids_from_mask
from holdfast.losses._tensors import upcast
from holdfast.methods.penalties import LLDS, Penalty

_PATIENCE = 1000  # micro-batches

logger = logging.getLogger("holdfast.adapters.verl")


def base_name(settings: Any, registered: Iterable[str]) -> str:
    """The loss that the penalty is added to. Raises `ConfigError`, with the nearest name, for an unknown one."""
    base = settings.get("base_loss_mode") or "vanilla"
    known = sorted(set(registered) - set(LOSSES))
    if base in LOSSES:
        raise ConfigError(
            f"policy_loss.base_loss_mode = {base!r} is one of holdfast's losses, which cannot be stacked; name one of "
            f"verl's: {', '.join(known)}"
        )
    if base not in known:
        hint = nearest_name(base, known, f"registered are {', '.join(known)}")
        raise ConfigError(f"policy_loss.base_loss_mode = {base!r} is not a registered policy loss; {hint}")
    return base


def refuse_split_actions(penalty: Penalty | None, correction: Any, answer: str | None = None) -> None:
    """Raise `ConfigError` for token-level rejection with the action gate, or with a weight of the last action.

    Rejection removes tokens from `response_mask` before any loss sees it. That splits an action into pieces. The gate
    would open for each piece separately, and the last piece would pass for the last action.

    `correction` is verl's `rollout_correction`, or None if unknown; `answer` is `penalty_answer`. In bypass mode the
    rejection happens in the base loss, after the penalty, and does no harm.
    """
    by_gate = isinstance(penalty, LLDS) and penalty.gate == "action"
    by_answer = answer == LAST_ACTION and penalty is not None and penalty.uses_answer_mask
    if not (by_gate or by_answer) or not correction or correction.get("bypass_mode"):
        return
    levels = [level.strip() for level in str(correction.get("rollout_rs") or "").split(",")]
    rejecting = [level for level in levels if level.startswith("token")]
    if not rejecting:
        return
    if by_gate:
        harm = "the gate of an action is meaningless on a piece"
        instead = "a gate that does not need whole actions (holdfast_llds_response, holdfast_lld)"
    else:
        harm = "a piece would count as the last action"
        instead = f"policy_loss.penalty_answer = {ANSWER_SPAN!r}"
    raise ConfigError(
        f"rollout_correction.rollout_rs = {rejecting[0]!r} with {penalty!r}: rejecting tokens splits actions before "
        f"the loss sees them, and {harm}. Use sequence-level rejection (seq_…), or {instead}"
    )


def stale_and_uncorrected(config: Mapping[str, Any], steps: int) -> str | None:
    """A sentence for an asynchronous trainer whose ratios do not see how old its rollouts are; else None.

    In verl 0.9 this is the default of V1's `separate_async` and `colocate_async`.

    Args:
        config: a composed configuration.
        steps: its optimizer steps between two versions of the sampler's weights.
    """
    correction = config["algorithm"].get("rollout_correction") or {}
    if any(correction.get(key) for key in ("bypass_mode", "rollout_is", "rollout_rs")):
        return None
    trainer, fully = config["trainer"], config.get("async_training")
    v1: Mapping[str, Any] = (trainer.get("v1") if trainer.get("use_v1", True) else None) or {}
    mode = v1.get("trainer_mode")
    if fully:
        what, limit = "the fully asynchronous trainer", "async_training.staleness_threshold"
        versions = 1 + fully["staleness_threshold"]
    elif mode in ("separate_async", "colocate_async"):
        what, limit = f"trainer.v1.trainer_mode={mode}", "trainer.v1.sampler.max_off_policy_threshold"
        versions = v1["sampler"]["max_off_policy_threshold"]
    else:
        return None
    age = (
        f"up to {versions:g} versions × {steps} = {round(versions * steps)} optimizer steps ({limit})"
        if versions
        else f"without a limit ({limit})"
    )
    return (
        f"note: {what} with algorithm.rollout_correction.bypass_mode=false and no correction: ratios use recomputed "
        f"log-probs, so they do not reflect how old a rollout is, {age}. In our runs, rollouts 4 steps old had no "
        f"measurable cost. With rollouts 32 steps old, plain GRPO made a pretrained model collapse; LLDS at {COEF} "
        "prevented it. Set bypass_mode=true with actor_rollout_ref.rollout.calculate_log_probs=true, lower the "
        f"limit, or train with holdfast_llds, whose default is {COEF} (docs/reference/advice.md)"
    )


@dataclass(frozen=True, slots=True)
class Answers:
    """Where the answers of a micro-batch are, and how often each rollout searched."""

    mask: Tensor
    """bool [B, T]"""
    searches: Sequence[int]
    """Of the rows with a sampled token."""

    @classmethod
    def by_last_action(cls, response_mask: Tensor) -> Answers:
        """The answer is the last run of ones of a row of `response_mask`, bool [B, T], and ends its rollout.

        A rollout with n actions counts as n - 1 searches, which is right where each turn but the last searches.

        >>> answers = Answers.by_last_action(torch.tensor([[1, 1, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]]).bool())
        >>> answers.mask.int().tolist(), answers.searches
        ([[0, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]], [1, 0])
        """
        actions = action_ids_from_mask(response_mask)
        last = actions.amax(-1, keepdim=True)
        return cls(response_mask & (actions == last), [n - 1 for n in last.flatten().tolist() if n])

    @classmethod
    def of_agent(cls, data: Any, response_mask: Tensor) -> Answers:
        """As the agent loop has written them into `extra_fields`.

        Args:
            data: the TensorDict of verl's `ppo_loss`; None outside of it. The current trainer has a dict for each
                rollout under `extra_fields`, older ones a field for each of its keys.
            response_mask: bool [B, T].

        Raises:
            ConfigError: an agent loop that writes no `answer_span` or no `searches`.
        """
        spans, searches = (_extra(data, name) for name in ("answer_span", "searches"))
        if spans is None or searches is None:
            raise ConfigError(
                f"policy_loss.penalty_answer = {ANSWER_SPAN!r}, but these rollouts have no answer_span and searches in "
                "their extra_fields. Use the agent loop holdfast_search, or let yours write both (answer_span: [start, "
                f"end) in the response, or None), or set penalty_answer to {LAST_ACTION!r}"
            )
        mask = torch.zeros_like(response_mask)
        for row, span in zip(mask, spans, strict=True):
            if span is not None:
                row[span[0] : span[1]] = True
        counted = response_mask.any(-1).tolist()
        return cls(mask & response_mask, [n for n, counts in zip(searches, counted, strict=True) if counts])


def _extra(data: Any, name: str) -> list[Any] | None:
    """A field of the agent loop's `extra_fields`, for each rollout of a micro-batch; None if none has it."""
    rows = None if data is None else data.get("extra_fields", None)
    if rows is not None:
        fields = rows.tolist()
        return [row[name] for row in fields] if all(name in row for row in fields) else None
    values = None if data is None else data.get(name, None)
    return None if values is None else values.tolist()


class Log:
    """Reduces what was measured to one number per series and micro-batch, which verl averages.

    verl takes the unweighted mean over micro-batches and ranks, and needs the same names with finite numbers from each.
    A micro-batch in which a series counts nothing (no rollout with A > 0, say) therefore repeats this process's last
    number.
    """

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._idle = 0

    def numbers(self, name: str, measured: Mapping[str, CountedMean]) -> dict[str, float]:
        """`{"holdfast/…": number}`, with one transfer from the device. `name` is the loss, for the warning."""
        rows = [
            torch.stack(
                [
                    torch.as_tensor(x, dtype=upcast(mean.value).dtype, device=mean.value.device)
                    for x in (mean.value, mean.count, mean.default)
                ]
            )
            for mean in measured.values()
        ]
        result: dict[str, float] = {}
        for series, (value, count, default) in zip(measured, torch.stack(rows).tolist(), strict=True):
            if count > 0:
                self._last[series] = value
            result[f"holdfast/{series}"] = self._last.get(series, default)
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
                    "PEN001: %s was zero in all of %d micro-batches. On the first optimizer step after a rollout, "
                    "the policy equals the old policy. So with one step per rollout batch, this penalty does "
                    "nothing: set actor.ppo_mini_batch_size to half of data.train_batch_size or less, or "
                    "actor.ppo_epochs to 2",
                    name,
                    _PATIENCE,
                )
