"""LLDS, arXiv 2512.04220: a penalty on preserved tokens that became less likely."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from holdfast.methods.penalty import NAME, Coefficient, RolloutPenalty

if TYPE_CHECKING:
    from torch import Tensor

Gate = Literal["action", "response", "token"]
AnswerWeight = Annotated[float, Field(ge=0, le=1)] | Literal["adaptive-paper", "adaptive-code"]


class LLDS(RolloutPenalty):
    """A penalty on preserved tokens that became less likely; see `holdfast.losses.llds_penalty`.

    >>> LLDS(coef=0.5).gate
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

    def problems(self) -> Iterator[str]:
        """See `Section.problems`."""
        for key in ("answer_base", "answer_target"):
            value = getattr(self, key)
            if not self.uses_search_count and value != type(self).model_fields[key].default:
                yield (
                    f"loss.penalty.{key} = {value} with loss.penalty.answer_weight = {self.answer_weight}: only a "
                    "schedule reads it. Set loss.penalty.answer_weight = 'adaptive-paper', or leave it out"
                )
        if self.answer_weight == "adaptive-code" and self.answer_target <= 1:
            yield (
                f"loss.penalty.answer_target = {self.answer_target} with loss.penalty.answer_weight = 'adaptive-code': "
                "this schedule begins at one search. Set it above 1, published: 2"
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
        schedule: Literal["paper", "code"] = "paper" if self.answer_weight == "adaptive-paper" else "code"
        weight = adaptive_answer_weight(
            mean_valid_searches, schedule=schedule, target=self.answer_target, base=self.answer_base
        )
        return float(weight)

    def per_token(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        *,
        preserved: Tensor,
        **masks: Any,
    ) -> Tensor:
        """`llds_penalty`."""
        from holdfast.losses import llds_penalty

        return llds_penalty(
            logprobs,
            old_logprobs,
            advantages,
            loss_mask,
            gate=self.gate,
            threshold=self.threshold,
            preserved=preserved,
            **masks,
        )
