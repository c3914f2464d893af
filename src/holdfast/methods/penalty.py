"""What a penalty is: a term of the loss for tokens that it preserves, and the `[loss.penalty]` section of a recipe.

A penalty holds its settings, with the published values as defaults, and the facts that hosts need about it. The
formulas are in `holdfast.losses`, imported when a penalty is computed, so that reading a recipe needs no torch.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from holdfast.base.errors import ConfigError
from holdfast.base.refusals import explain_call
from holdfast.base.section import Section

if TYPE_CHECKING:
    from torch import Tensor

Normalizer = Literal["policy", "preserved"]
NAME = (
    "`llds` (arXiv 2512.04220), `sapo` (Search Agent Policy Optimization, arXiv 2603.10069), `nll`, `none`, `custom`. "
    "If the command line names another penalty than the recipe, this section is reset to that penalty's defaults."
)
Coefficient = Annotated[
    float, Field(ge=0, description="Coefficient of the penalty in the loss (λ of LLDS, γ of SAPO, μ of NLL).")
]
Preserve = Annotated[
    Literal["nonnegative", "positive", "correct", "all"],
    Field(
        description="Rollouts whose tokens are preserved. `nonnegative`: advantage ≥ 0 (includes groups without a "
        "correct rollout); `positive`: > 0; `correct`: > 0, or all rollouts of the group correct; `all`: "
        "every rollout."
    ),
]


class PenaltySection(Section):
    """A section that Python code can construct as well; there an invalid argument raises `ConfigError`."""

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __init__(self, *unnamed: Any, **values: Any) -> None:
            if unnamed:
                kind = type(self).__name__
                raise ConfigError(f"{kind}({unnamed[0]!r}): name the setting, as in {kind}(coef={unnamed[0]!r})")
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(explain_call(error.errors(include_url=False), type(self))) from None

        # Marks it as pydantic's own, so that a recipe's section skips it and all problems are reported together.
        __init__.__pydantic_base_init__ = True


class Penalty(PenaltySection):
    """A per-token term of the loss, added to the policy loss with `coef`.

    To write one, derive from it and implement `per_token`. Give `coef` a default; declare other settings as annotated
    fields.
    """

    name: str = Field("custom", repr=False)
    coef: Coefficient
    normalizer: Normalizer = "preserved"
    """How the penalty is averaged. `preserved`: over the preserved tokens, as in LLDS's paper. `policy`: like the
    policy loss, as in its authors' code; the same `coef` is then about half as strong (docs/reference/papers.md)."""

    @property
    def term(self) -> Penalty | None:
        """The term to add to the loss."""
        return self

    @property
    def acts_without_drift(self) -> bool:
        """Whether it acts while the policy equals the old one. If not, it is always 0 with one optimizer step per
        rollout batch, and that schedule is refused."""
        return False

    @property
    def uses_answer_mask(self) -> bool:
        """Whether its value depends on `answer_mask`."""
        return False

    @property
    def uses_search_count(self) -> bool:
        """Whether `weight_at` depends on its argument."""
        return False

    def weight_at(self, mean_valid_searches: float) -> float | None:
        """The weight of answer tokens for a rollout batch with this many valid searches per rollout; None if the
        penalty has no such weight."""
        return None

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the preserved tokens, which it acts for. Default: tokens of rollouts with A > 0.

        Args:
            advantages: float [B, 1] or [B, T].
            loss_mask: bool [B, T].
            correct: bool [B, 1]; None from a host that does not know.
        """
        from holdfast.losses import preserved_mask

        return preserved_mask(advantages, loss_mask, rule="positive")

    @abstractmethod
    def per_token(
        self,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        loss_mask: Tensor,
        /,
        *,
        preserved: Tensor,
        action_ids: Tensor | None = None,
        answer_mask: Tensor | None = None,
        answer_weight: float | Tensor = 1.0,
    ) -> Tensor:
        """float [B, T] in nats: to be minimised, unreduced, not multiplied by `coef`, 0 outside `loss_mask`.

        Args:
            logprobs: float [B, T], of the sampled tokens, with gradient.
            old_logprobs: float [B, T], under the policy frozen for this rollout batch.
            advantages: float [B, 1] or [B, T].
            loss_mask: bool [B, T], True on tokens the model sampled.
            preserved: bool [B, T], from the method `preserved`.
            action_ids: int [B, T], k on the k-th action, 0 outside; None: runs of the mask.
            answer_mask: bool [B, T], True on the final answer; None from a host that does not know it.
            answer_weight: from `weight_at`; 1 if that is None.
        """


class RolloutPenalty(Penalty):
    """A penalty whose preserved rollouts are chosen by the setting `preserve`."""

    preserve: Preserve = "nonnegative"

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: tokens of the rollouts that `preserve` selects."""
        from holdfast.losses import preserved_mask

        return preserved_mask(advantages, loss_mask, rule=self.preserve, correct=correct)
