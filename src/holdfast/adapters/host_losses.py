"""Losses of hosts that see a micro-batch: the penalty, the share of tokens it preserves, and the series to log.

For verl, prime-rl, slime, miles and TRL's AsyncGRPOTrainer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.agent.metrics.rollouts import per_token_mean
from holdfast.base.errors import ConfigError
from holdfast.losses import drift_stats, penalty_stats, ratio_stats
from holdfast.losses._tensors import upcast
from holdfast.losses.stats import WEIGHTS
from holdfast.methods.penalties import LLDS, PENALTIES, Penalty

WINDOW = 256
"""Rollouts over which preserved tokens and searches are counted; about a rollout batch of one process."""


def penalty_of(section: Mapping[str, Any] | None, host: str) -> Penalty | None:
    """The penalty that a host's configuration describes, in the words of a recipe's `[loss.penalty]`.

    Args:
        section: `name` (by default `llds`) and the settings of that penalty. None, empty or `none`: no penalty.
        host: for the sentences, such as "prime-rl".

    Raises:
        ConfigError: a name or value that does not exist, or that this host's loss cannot honour.

    >>> penalty_of({"coef": 0.5, "gate": "token"}, "prime-rl").gate
    'token'
    """
    if not section:
        return None
    if not isinstance(section, Mapping):
        raise ConfigError(f"penalty = {section!r} is not a table; write its settings as in [loss.penalty] of a recipe")
    settings = {str(key): value for key, value in section.items()}
    name = str(settings.pop("name", "llds"))
    if name not in PENALTIES:
        near = difflib.get_close_matches(name, PENALTIES, n=1) or sorted(PENALTIES)
        raise ConfigError(f"penalty.name = {name!r} is not a penalty; use {' or '.join(map(repr, near))}")
    chosen: Any = PENALTIES[name](**settings)
    penalty: Penalty | None = chosen.term
    for problem in () if penalty is None else unsupported(penalty, host):
        raise ConfigError(problem)
    return penalty


def unsupported(penalty: Penalty, host: str) -> Iterator[str]:
    """A sentence for each setting that a loss without rewards and answers cannot honour."""
    if getattr(penalty, "preserve", None) == "correct":
        yield (
            f"penalty.preserve = 'correct': {host} does not tell a loss which rollouts are correct; use 'positive' "
            "(A > 0) or 'nonnegative' (A ≥ 0)"
        )
    if penalty.uses_answer_mask:
        setting = "penalty.answer_weight" if isinstance(penalty, LLDS) else repr(penalty)
        yield (
            f"{setting}: this needs the mask of the answer, which {host} does not pass to a loss. Leave it out, or "
            "train with TRL's GRPOTrainer or `holdfast train`"
        )


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
        self._recent = recent[-max(WINDOW, len(counts)) :]
        preserved, tokens = self._recent.sum(0)
        return torch.where(preserved > 0, preserved / tokens.clamp(min=1), 1.0)

    def coefficient(self, penalty: Penalty, counts: Tensor) -> float | Tensor:
        """What a penalty's mean over all tokens, or their sum, is multiplied by."""
        return penalty.coef / self.update(counts) if penalty.normalizer == "preserved" else penalty.coef


def preserved_counts(preserved: Tensor, loss_mask: Tensor) -> Tensor:
    """int [B, 2]: of each rollout the preserved tokens and all sampled tokens, from bool [B, T] each."""
    return torch.stack([(preserved & loss_mask).sum(-1), loss_mask.sum(-1)], -1)


@dataclass(frozen=True, slots=True)
class CountedMean:
    """A mean over `count` things, and the number to log until the first of them."""

    value: Tensor
    count: Tensor
    default: Tensor | float


_LEFT_OUT = ("count/", "clip/")
"""Statistics that are not logged: counts, which weight the others, and what hosts log themselves."""
_RATIOS = ("ratio/mean", "ratio/max", "ratio/p01")
"""Series that are 1 until the first token is counted; the others are 0."""


@torch.no_grad()
def measure(
    preserved: Tensor,
    term: Tensor | None,
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
) -> dict[str, CountedMean]:
    """The series of one micro-batch.

    Args:
        preserved: bool [B, T], the tokens that the penalty acts for.
        term: float [B, T], the penalty per token; None where a loss only observes, without `penalty/active_fraction`.
        log_prob, old_log_prob, advantages: float [B, T].
        mask: bool [B, T], the sampled tokens.
    """
    # Under autocast verl's log-probs can be bfloat16, whose sum over a rollout has no correct digits.
    log_prob, old_log_prob, advantages = (upcast(x) for x in (log_prob, old_log_prob, advantages))
    values = torch.zeros_like(log_prob) if term is None else term
    stats = penalty_stats(values, log_prob, old_log_prob, mask, preserved=preserved)
    stats |= ratio_stats(log_prob, old_log_prob, advantages, mask)
    stats |= drift_stats(log_prob, old_log_prob, advantages, mask)
    left_out = _LEFT_OUT if term is not None else (*_LEFT_OUT, "penalty/active_fraction")
    series = {
        name: CountedMean(value, stats[WEIGHTS.get(name, "count/tokens")], float(name in _RATIOS))
        for name, value in stats.items()
        if not name.startswith(left_out)
    }
    likelihood, sign = per_token_mean(old_log_prob, mask), per_token_mean(advantages, mask)
    overall = likelihood.sum() / stats["count/sequences"].clamp(min=1)
    for name, rows in (("positive", sign > 0), ("negative", sign < 0)):
        count = stats[f"count/{name}"]
        mean = torch.where(rows, likelihood, 0.0).sum() / count.clamp(min=1)
        series[f"likelihood/{name}"] = CountedMean(mean, count, overall)
    return series
