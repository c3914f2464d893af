"""The penalties that `[loss.penalty]` chooses from by `name`.

    LLDS(coef=0.2, gate="action")        arXiv 2512.04220; gate="token": the paper's LLD variant (no gate)
    SAPO(coef=0.1)                       Search Agent Policy Optimization, arXiv 2603.10069
    NLL(coef=0.1)                        negative log-likelihood of positive rollouts, the plain alternative

Your own penalty is a class derived from `Penalty`; docs/reference/losses.md shows one. To add one to holdfast, write
its class in a file of its own and list it in `AnyPenalty`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from holdfast.base.section import Refusal, Section, choice_of
from holdfast.methods.custom_penalty import CustomPenalty
from holdfast.methods.penalty import NAME, Coefficient, Penalty, PenaltySection, Preserve, RolloutPenalty

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "LLDS",
    "NLL",
    "ON_PRESERVED_ALONE",
    "PENALTIES",
    "SAPO",
    "WITHOUT_OLD_POLICY",
    "AnyPenalty",
    "CustomPenalty",
    "NoPenalty",
    "Penalty",
]

WITHOUT_OLD_POLICY = ("none", "nll")
"""Names of those that compare with no policy."""

Gate = Literal["action", "response", "token"]
AnswerWeight = Annotated[float, Field(ge=0, le=1)] | Literal["adaptive-paper", "adaptive-code"]


class LLDS(RolloutPenalty):
    """A penalty on preserved tokens that became less likely; see `holdfast.losses.llds_penalty`.

    >>> LLDS(coef=0.2).gate
    'action'
    """

    name: Literal["llds"] = Field("llds", repr=False, description=NAME)
    coef: Coefficient = 0.2
    gate: Gate = "action"
    """The penalty acts on an action (one model turn), a whole response or a token only if its likelihood fell. `token`
    is the paper's LLD variant (no gate)."""
    threshold: float = Field(0.0, ge=0)
    """Smallest decrease that counts, in nats per token."""
    answer_weight: AnswerWeight = 1.0
    """LLDS-MA: weight of answer tokens. A number, or the schedule of the paper or of the authors' code."""
    answer_base: float = Field(1.0, ge=0, le=1)
    """For a schedule: weight of answer tokens once rollouts have `answer_target` searches."""
    answer_target: float = Field(2.0, gt=0)
    """For a schedule: searches per rollout at which the weight is `answer_base`. Above 1 for `adaptive-code`."""

    def refusals(self) -> Iterator[Refusal | str]:
        """See `Section.refusals`."""
        for key in ("answer_base", "answer_target"):
            value = getattr(self, key)
            if not self.uses_search_count and value != type(self).model_fields[key].default:
                yield Refusal(
                    {f"loss.penalty.{key}": value, "loss.penalty.answer_weight": self.answer_weight},
                    "only a schedule uses it",
                    "Set loss.penalty.answer_weight = 'adaptive-paper', or leave it out",
                )
        if self.answer_weight == "adaptive-code" and self.answer_target <= 1:
            yield Refusal(
                {"loss.penalty.answer_target": self.answer_target, "loss.penalty.answer_weight": "adaptive-code"},
                "this schedule begins at one search",
                "Set the target above 1 (published: 2)",
            )

    @property
    def uses_answer_mask(self) -> bool:
        """True unless answer tokens weigh as much as others."""
        return self.answer_weight != 1

    @property
    def uses_search_count(self) -> bool:
        """True for a schedule."""
        return isinstance(self.answer_weight, str)

    def weight_at(self, mean_valid_searches: float) -> float:
        """`answer_weight`, or what its schedule gives."""
        from holdfast.losses import adaptive_answer_weight

        if not isinstance(self.answer_weight, str):
            return float(self.answer_weight)
        return adaptive_answer_weight(
            mean_valid_searches,
            schedule="paper" if self.answer_weight == "adaptive-paper" else "code",
            target=self.answer_target,
            base=self.answer_base,
        )

    def per_token(self, *tokens: Tensor, preserved: Tensor, **masks: Any) -> Tensor:
        """`llds_penalty`."""
        from holdfast.losses import llds_penalty

        return llds_penalty(*tokens, gate=self.gate, threshold=self.threshold, preserved=preserved, **masks)


class SAPO(RolloutPenalty):
    """Search Agent Policy Optimization's conditional KL; see `holdfast.losses.sapo_penalty`.

    Not Soft Adaptive Policy Optimization, which TRL and verl call `sapo`.
    """

    name: Literal["sapo"] = Field("sapo", repr=False, description=NAME)
    coef: Coefficient = 0.1
    preserve: Preserve = "positive"
    tau: float = Field(1.0, gt=0)
    """The penalty acts on tokens whose importance ratio is below this."""

    @property
    def acts_without_drift(self) -> bool:
        """True for tau above 1: then tokens that did not move (ratio 1) count as well."""
        return self.tau > 1

    def per_token(self, *tokens: Tensor, preserved: Tensor, **_: Any) -> Tensor:
        """`sapo_penalty`."""
        from holdfast.losses import sapo_penalty

        return sapo_penalty(*tokens, tau=self.tau, preserved=preserved)


class NLL(Penalty):
    """Negative log-likelihood of rollouts with A > 0; see `holdfast.losses.nll_loss`. Acts from the first step on."""

    name: Literal["nll"] = Field("nll", repr=False, description=NAME)
    coef: Coefficient = 0.1

    @property
    def acts_without_drift(self) -> bool:
        """True."""
        return True

    def per_token(self, *tokens: Tensor, **_more: Any) -> Tensor:
        """`nll_loss`."""
        from holdfast.losses import nll_loss

        logprobs, _, advantages, loss_mask = tokens
        return nll_loss(logprobs, advantages, loss_mask)


class NoPenalty(PenaltySection):
    """The policy loss alone."""

    name: Literal["none"] = Field("none", description=NAME)

    @property
    def term(self) -> None:
        """Adds nothing to the loss."""
        return None


AnyPenalty = Annotated[
    NoPenalty | LLDS | SAPO | NLL | CustomPenalty,
    Field(discriminator="name"),
    BeforeValidator(lambda section: {"name": "llds", **section} if isinstance(section, dict) else section),
]
"""`[loss.penalty]`: its `name` selects the class."""

ON_PRESERVED_ALONE = (NoPenalty, LLDS, SAPO, NLL)
"""Classes whose value and gradient are 0 on every rollout without a preserved token. A penalty of the user's own, also
one derived from these, may act on any."""

PENALTIES: dict[str, type[Section]] = {choice_of(kind): kind for kind in get_args(get_args(AnyPenalty)[0])}
"""Recipe name -> class."""
