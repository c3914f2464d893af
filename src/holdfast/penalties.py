"""The penalties as values: a method with its strength, to hand to any engine.

    LLDS(coef=0.2, gate="action")        arXiv 2512.04220; gate="token" is LLD
    SAPO(coef=0.1)                       Search Agent Policy Optimization, arXiv 2603.10069
    NLL(coef=0.1)                        negative log-likelihood of positive rollouts, the plain alternative

The formulas are in `holdfast.losses`; here they get one interface, so that the local trainer and every adapter compute
the same thing from the same words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from torch import Tensor

from holdfast.config import METHOD_DEFAULTS
from holdfast.contradictions import needs_drift
from holdfast.errors import ConfigError
from holdfast.losses import adaptive_answer_weight, llds_penalty, nll_loss, preserving_mask, sapo_penalty

if TYPE_CHECKING:
    from holdfast.config import Penalty as PenaltySettings

Rule = Literal["nonnegative", "positive", "correct", "all"]
Gate = Literal["action", "response", "token"]
AnswerWeight = float | Literal["adaptive-paper", "adaptive-code"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LLDS:
    """A penalty on tokens of good rollouts that became less likely; see `holdfast.losses.llds_penalty`.

    >>> LLDS(coef=0.5).gate
    'action'
    """

    name: ClassVar[str] = "llds"
    needs_drift: ClassVar[bool] = True
    """Zero while the policy equals the old one, so one optimizer step per rollout batch makes it inert."""

    coef: float = METHOD_DEFAULTS["llds"]["coef"]
    gate: Gate = "action"
    preserve: Rule = METHOD_DEFAULTS["llds"]["preserve"]
    threshold: float = 0.0
    """Nats per token."""
    answer_weight: AnswerWeight = 1.0

    def __post_init__(self) -> None:
        _check_coef(self, self.coef)
        _check_choice(self, "gate", self.gate, get_args(Gate))
        _check_choice(self, "preserve", self.preserve, get_args(Rule))
        if not 0 <= self.threshold < math.inf:
            raise ConfigError(f"LLDS(threshold={self.threshold}) must be 0 or more, in nats per token")
        if isinstance(self.answer_weight, str):
            _check_choice(self, "answer_weight", self.answer_weight, ("adaptive-paper", "adaptive-code"))
        elif not 0 <= self.answer_weight <= 1:
            raise ConfigError(
                f"LLDS(answer_weight={self.answer_weight}) must be between 0 and 1, or 'adaptive-paper' or "
                "'adaptive-code'"
            )

    @property
    def needs_answers(self) -> bool:
        """Whether the mask of the final answer changes the value."""
        return self.answer_weight != 1

    def weight_at(self, mean_valid_searches: float) -> float:
        """The weight of answer tokens for a rollout batch with this many valid searches per rollout."""
        if self.answer_weight == "adaptive-paper":
            return float(adaptive_answer_weight(mean_valid_searches, schedule="paper"))
        if self.answer_weight == "adaptive-code":
            return float(adaptive_answer_weight(mean_valid_searches, schedule="code"))
        return float(self.answer_weight)

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the tokens this penalty protects."""
        return preserving_mask(advantages, loss_mask, rule=self.preserve, correct=correct)

    def per_token(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        *,
        preserved: Tensor,
        action_ids: Tensor | None = None,
        answer_mask: Tensor | None = None,
        answer_weight: float | Tensor = 1.0,
    ) -> Tensor:
        """float [B, T], unreduced and not multiplied by `coef`. `answer_weight` is what `weight_at` gave."""
        return llds_penalty(
            logprobs,
            old_logprobs,
            advantages,
            loss_mask,
            gate=self.gate,
            action_ids=action_ids,
            answer_mask=answer_mask,
            answer_weight=answer_weight,
            threshold=self.threshold,
            preserve=preserved,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SAPO:
    """Search Agent Policy Optimization's conditional KL; see `holdfast.losses.sapo_penalty`.

    Not Soft Adaptive Policy Optimization, which is what TRL's and verl's own `sapo` is.
    """

    name: ClassVar[str] = "sapo"
    needs_answers: ClassVar[bool] = False

    coef: float = METHOD_DEFAULTS["sapo"]["coef"]
    tau: float = 1.0
    preserve: Rule = METHOD_DEFAULTS["sapo"]["preserve"]

    def __post_init__(self) -> None:
        _check_coef(self, self.coef)
        _check_choice(self, "preserve", self.preserve, get_args(Rule))
        if not 0 < self.tau < math.inf:
            raise ConfigError(f"SAPO(tau={self.tau}) must be above 0; it is the ratio below which a token counts")

    @property
    def needs_drift(self) -> bool:
        """Whether it is zero while the policy equals the old one: not with τ > 1, where unmoved tokens count too."""
        return needs_drift(self)

    def weight_at(self, mean_valid_searches: float) -> float:
        """1: SAPO treats answers as any other token."""
        return 1.0

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the tokens this penalty protects."""
        return preserving_mask(advantages, loss_mask, rule=self.preserve, correct=correct)

    def per_token(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        *,
        preserved: Tensor,
        **_: Any,
    ) -> Tensor:
        """float [B, T], unreduced and not multiplied by `coef`."""
        return sapo_penalty(logprobs, old_logprobs, advantages, loss_mask, tau=self.tau, preserve=preserved)


@dataclass(frozen=True, slots=True, kw_only=True)
class NLL:
    """Negative log-likelihood of rollouts with A > 0; see `holdfast.losses.nll_loss`. Works from the first step on."""

    name: ClassVar[str] = "nll"
    needs_drift: ClassVar[bool] = False
    needs_answers: ClassVar[bool] = False

    coef: float = METHOD_DEFAULTS["nll"]["coef"]

    def __post_init__(self) -> None:
        _check_coef(self, self.coef)

    def weight_at(self, mean_valid_searches: float) -> float:
        """1: answers count as any other token."""
        return 1.0

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the tokens of rollouts with A > 0."""
        return preserving_mask(advantages, loss_mask, rule="positive")

    def per_token(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, **_: Any
    ) -> Tensor:
        """float [B, T], unreduced and not multiplied by `coef`."""
        return nll_loss(logprobs, advantages, loss_mask)


Penalty = LLDS | SAPO | NLL


def penalty_of(settings: PenaltySettings) -> Penalty | None:
    """The value behind a recipe's `[loss.penalty]`; None for `name = "none"`.

    >>> from holdfast.config import Penalty
    >>> penalty_of(Penalty(name="sapo", tau=0.9))
    SAPO(coef=0.1, tau=0.9, preserve='positive')
    """
    coef = settings.coef or 0.0
    if settings.name == "none":
        return None
    if settings.name == "nll":
        return NLL(coef=coef)
    assert settings.preserve is not None  # the schema fills it in
    if settings.name == "sapo":
        return SAPO(coef=coef, tau=settings.tau, preserve=settings.preserve)
    return LLDS(
        coef=coef,
        gate=settings.gate,
        preserve=settings.preserve,
        threshold=settings.threshold,
        answer_weight=settings.answer_weight,
    )


def _check_coef(penalty: Penalty, coef: float) -> None:
    if not 0 <= coef < math.inf:
        raise ConfigError(f"{type(penalty).__name__}(coef={coef}) must be 0 or more, and finite")


def _check_choice(penalty: Penalty, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{type(penalty).__name__}({name}={value!r}) must be one of {', '.join(map(repr, allowed))}")
