"""The part of verl's losses that does not import verl: the base loss, a penalty per token, and the logged series."""

from __future__ import annotations

import difflib
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from holdfast.adapters.verl_losses import ANSWER_SPAN, LAST_ACTION, LOSSES
from holdfast.agent.metrics import per_token_mean
from holdfast.base.errors import ConfigError
from holdfast.losses import action_ids_from_mask, drift_stats, penalty_stats, ratio_stats
from holdfast.losses._tensors import upcast
from holdfast.losses.stats import EPSILONS
from holdfast.methods.penalties import LLDS, Penalty

_PATIENCE = 1000  # micro-batches
_WINDOW = 256  # rollouts over which searches and preserved tokens are counted; about a rollout batch of one process

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
        near = difflib.get_close_matches(base, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"registered are {', '.join(known)}"
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
    if token_levels := [level for level in levels if level.startswith("token")]:
        if not by_gate:
            raise ConfigError(
                f"rollout_correction.rollout_rs = {token_levels[0]!r} with {penalty!r}: rejecting tokens splits "
                "actions before the loss sees them, and a piece would count as the last action. Use sequence-level "
                f"rejection (seq_…), or policy_loss.penalty_answer = {ANSWER_SPAN!r}"
            )
        raise ConfigError(
            f"rollout_correction.rollout_rs = {token_levels[0]!r} with loss_mode = 'holdfast_llds': rejecting tokens "
            "splits actions before the loss sees them, and the gate of an action is meaningless on a piece. Use "
            "sequence-level rejection (seq_…), or a gate that does not need whole actions (holdfast_llds_response, "
            "holdfast_lld)"
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

        >>> Answers.by_last_action(torch.tensor([[True, True, False, True], [True, True, False, False]])).mask.int()
        tensor([[0, 0, 0, 1],
                [1, 1, 0, 0]], dtype=torch.int32)
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


class Searches:
    """Searches per rollout over the rollouts that a process saw last, for a schedule of the answer's weight.

    A loss of verl sees a micro-batch, and the published schedules read the whole rollout batch.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=_WINDOW)

    def mean(self, searches: Sequence[int]) -> float:
        """The mean after these rollouts; 0 before the first."""
        self._recent.extend(searches)
        return fmean(self._recent) if self._recent else 0.0


class PreservedShare:
    """The share of preserved tokens in the rollouts that a process saw last, those of this call included.

    A mean over preserved tokens needs their count over a whole optimizer step, and a loss of verl, prime-rl, slime or
    miles sees a micro-batch. The host's mean of a penalty over all tokens, divided by this share, estimates it:

        mean over preserved tokens ≈ mean over all tokens / (Σ preserved / Σ tokens of the last rollouts)

    Bias: a step whose own share is above that of the last rollouts counts more, in proportion, and one below it less.
    """

    def __init__(self) -> None:
        self._recent: Tensor | None = None

    def update(self, counts: Tensor) -> Tensor:
        """0-d: the share with these rollouts, whose `preserved_counts` are int [B, 2]; 1 while nothing is preserved.

        Nothing leaves the device.
        """
        recent = counts if self._recent is None else torch.cat([self._recent, counts])
        self._recent = recent[-max(_WINDOW, len(counts)) :]
        preserved, tokens = self._recent.sum(0)
        return torch.where(preserved > 0, preserved / tokens.clamp(min=1), 1.0)


def preserved_counts(preserved: Tensor, loss_mask: Tensor) -> Tensor:
    """int [B, 2]: of each rollout the preserved tokens and all sampled tokens, from bool [B, T] each."""
    return torch.stack([(preserved & loss_mask).sum(-1), loss_mask.sum(-1)], -1)


def per_token(
    penalty: Penalty,
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    answer_mask: Tensor | None = None,
    answer_weight: float = 1.0,
) -> Tensor:
    """The penalty, float [B, T], unreduced and not yet times its coefficient; the masks are bool [B, T]."""
    return penalty.per_token(
        log_prob,
        old_log_prob,
        advantages,
        response_mask,
        preserved=penalty.preserved(advantages, response_mask),
        answer_mask=answer_mask,
        answer_weight=answer_weight,
    )


@dataclass(frozen=True, slots=True)
class CountedMean:
    """A mean over `count` things, and the number to log until the first of them."""

    value: Tensor
    count: Tensor
    default: Tensor | float


@torch.no_grad()
def measure(
    penalty: Penalty | None,
    term: Tensor | None,
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
) -> dict[str, CountedMean]:
    """The series of one micro-batch. All but `response_mask` (bool) and `term` are float [B, T]; `term` is what
    `per_token` gave, None for `holdfast_observe`, which has no `penalty/active_fraction`."""
    mask = response_mask
    # Under autocast verl's log-probs can be bfloat16, whose sum over a rollout has no correct digits.
    log_prob, old_log_prob, advantages = (upcast(x) for x in (log_prob, old_log_prob, advantages))
    preserved_tokens = (penalty or LLDS()).preserved(advantages, mask)
    values = torch.zeros_like(log_prob) if term is None else term
    stats = penalty_stats(values, log_prob, old_log_prob, mask, preserved=preserved_tokens)
    stats |= ratio_stats(log_prob, old_log_prob, advantages, mask)
    drifts = drift_stats(log_prob, old_log_prob, advantages, mask)
    tokens, preserved, sequences = stats["count/tokens"], stats["count/preserved"], stats["count/sequences"]
    series = {
        "penalty/preserved_fraction": CountedMean(stats["penalty/preserved_fraction"], tokens, 0.0),
        "penalty/mean_decrease": CountedMean(stats["penalty/mean_decrease"], preserved, 0.0),
        "ratio/mean": CountedMean(stats["ratio/mean"], tokens, 1.0),
        "ratio/max": CountedMean(stats["ratio/max"], tokens, 1.0),
        "ratio/p01": CountedMean(stats["ratio/p01"], tokens, 1.0),
        "ratio/log_product": CountedMean(stats["ratio/log_product"], sequences, 0.0),
    }
    if term is not None:
        series["penalty/active_fraction"] = CountedMean(stats["penalty/active_fraction"], preserved, 0.0)
    old = torch.where(mask, old_log_prob, 0.0)
    likelihood = per_token_mean(old, mask)
    sign = per_token_mean(torch.where(mask, advantages, 0.0), mask)
    for name, rows in (("positive", sign > 0), ("negative", sign < 0)):
        count = rows.sum()
        share = rows / count.clamp(min=1)
        overall = likelihood.sum() / sequences.clamp(min=1)
        series[f"likelihood/{name}"] = CountedMean((likelihood * share).sum(), count, overall)
        for drift in (f"drift/{name}", f"ratio/log_product/{name}", *(f"isdd/{name}/below_{e}" for e in EPSILONS)):
            series[drift] = CountedMean(drifts[drift], count, 0.0)
    return series


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
            torch.stack([_scalar(x, mean.value) for x in (mean.value, mean.count, mean.default)])
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
                    "PEN001: %s was zero in all of %d micro-batches. On the first optimizer step after a rollout the "
                    "policy equals the old one, so with one step per rollout batch this penalty does nothing: set "
                    "actor.ppo_mini_batch_size to half of data.train_batch_size or less, or actor.ppo_epochs to 2",
                    name,
                    _PATIENCE,
                )


def _scalar(x: Tensor | float, like: Tensor) -> Tensor:
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return x.to(dtype) if isinstance(x, Tensor) else torch.tensor(x, dtype=dtype, device=like.device)
