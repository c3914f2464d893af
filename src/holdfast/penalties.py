"""The likelihood-preserving penalties: each is a value, and the `[loss.penalty]` section of a recipe.

    LLDS(coef=0.2, gate="action")        arXiv 2512.04220; gate="token" is LLD
    SAPO(coef=0.1)                       Search Agent Policy Optimization, arXiv 2603.10069
    NLL(coef=0.1)                        negative log-likelihood of positive rollouts, the plain alternative

A penalty has its settings, with the published values as defaults, and says what hosts need to know of it. The formulas
are in `holdfast.losses`, which is imported when a penalty is computed: a recipe is read without torch.

A penalty of your own is a class derived from `Penalty`; docs/losses.md shows one. A new one in this file needs its
class and its name in `AnyPenalty`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError

from holdfast.errors import ConfigError
from holdfast.importing import import_named, is_import_path
from holdfast.refusals import explain_call
from holdfast.section import Section, choice_of

if TYPE_CHECKING:
    from torch import Tensor

Gate = Literal["action", "response", "token"]
Normalizer = Literal["policy", "preserved"]
AnswerWeight = Annotated[float, Field(ge=0, le=1)] | Literal["adaptive-paper", "adaptive-code"]

_NAME = (
    "`llds` (arXiv 2512.04220), `sapo` (Search Agent Policy Optimization, arXiv 2603.10069), `nll`, `none`, `custom`. "
    "A command line that names another than the recipe starts this section anew: nothing of the recipe's is kept."
)
Coefficient = Annotated[float, Field(ge=0, description="λ of LLDS, γ of SAPO, μ of NLL.")]
Preserve = Annotated[
    Literal["nonnegative", "positive", "correct", "all"],
    Field(
        description="Rollouts it acts for: A ≥ 0, A > 0, right ones (all-right groups too, all-wrong ones not), all."
    ),
]


class _Value(Section):
    """A section that is made in Python too, where an argument that cannot work is a `ConfigError`."""

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __init__(self, **values):
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(explain_call(error.errors(include_url=False), type(self))) from None

        # As pydantic's own: it does not call it for a section of a recipe, whose problems are told all at once.
        __init__.__pydantic_base_init__ = True


class Penalty(_Value):
    """A term of the loss, per token, added to the policy loss with `coef`.

    Derive from it and write `per_token`; give `coef` a default, declare further settings as annotated fields.
    """

    name: str = Field("custom", repr=False)
    coef: Coefficient
    normalizer: Normalizer = "policy"
    """What it is divided by: the policy loss's denominator, or the tokens of preserved rollouts (docs/papers.md)."""

    @property
    def term(self) -> Penalty | None:
        """What is added to the loss: this."""
        return self

    @property
    def acts_without_drift(self) -> bool:
        """Whether it is at work while the policy equals the old one. If not, one optimizer step per rollout batch makes
        it inert, which is refused."""
        return False

    @property
    def uses_answer_mask(self) -> bool:
        """Whether the mask of the final answer changes the value."""
        return False

    @property
    def uses_search_count(self) -> bool:
        """Whether `weight_at` depends on its argument."""
        return False

    def weight_at(self, mean_valid_searches: float) -> float | None:
        """The weight of answer tokens for a rollout batch with this many valid searches per rollout; None for a penalty
        that has no such weight."""
        return None

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the tokens it acts for. Here: those of rollouts with A > 0.

        `advantages` are float [B, 1] or [B, T], `loss_mask` is bool [B, T], `correct` bool [B, 1], None where a host
        does not tell.
        """
        from holdfast.losses import preserving_mask

        return preserving_mask(advantages, loss_mask, rule="positive")

    @abstractmethod
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
        """float [B, T] in nats: to be minimised, unreduced, not multiplied by `coef`, 0 outside `loss_mask`.

        Args:
            logprobs: float [B, T], of the sampled tokens, with gradient.
            old_logprobs: float [B, T], under the policy frozen for this rollout batch.
            advantages: float [B, 1] or [B, T].
            loss_mask: bool [B, T], True on tokens the model sampled.
            preserved: bool [B, T], what `preserved` gave.
            action_ids: int [B, T], k on the k-th action, 0 outside; None: runs of the mask.
            answer_mask: bool [B, T], True on the final answer; None where a host does not tell.
            answer_weight: what `weight_at` gave, 1 for None.
        """


class _RolloutPenalty(Penalty):
    """A penalty that acts for rollouts chosen by a rule."""

    preserve: Preserve = "nonnegative"

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: the tokens of rollouts that `preserve` names."""
        from holdfast.losses import preserving_mask

        return preserving_mask(advantages, loss_mask, rule=self.preserve, correct=correct)


class LLDS(_RolloutPenalty):
    """A penalty on tokens of good rollouts that became less likely; see `holdfast.losses.llds_penalty`.

    >>> LLDS(coef=0.5).gate
    'action'
    """

    name: Literal["llds"] = Field("llds", repr=False, description=_NAME)
    coef: Coefficient = 0.2
    gate: Gate = "action"
    """The unit whose summed drop opens the penalty. `token` is LLD."""
    threshold: float = Field(0.0, ge=0)
    """Nats per token a drop must exceed to count."""
    answer_weight: AnswerWeight = 1.0
    """LLDS-MA: weight of answer tokens, fixed or by the schedule of the paper or of the authors' code."""

    @property
    def uses_answer_mask(self) -> bool:
        return self.answer_weight != 1

    @property
    def uses_search_count(self) -> bool:
        return isinstance(self.answer_weight, str)

    def weight_at(self, mean_valid_searches: float) -> float:
        from holdfast.losses import adaptive_answer_weight

        if self.answer_weight == "adaptive-paper":
            return float(adaptive_answer_weight(mean_valid_searches, schedule="paper"))
        if self.answer_weight == "adaptive-code":
            return float(adaptive_answer_weight(mean_valid_searches, schedule="code"))
        return float(self.answer_weight)

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
        from holdfast.losses import llds_penalty

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


class SAPO(_RolloutPenalty):
    """Search Agent Policy Optimization's conditional KL; see `holdfast.losses.sapo_penalty`.

    Not Soft Adaptive Policy Optimization, which is what TRL's and verl's own `sapo` is.
    """

    name: Literal["sapo"] = Field("sapo", repr=False, description=_NAME)
    coef: Coefficient = 0.1
    preserve: Preserve = "positive"
    tau: float = Field(1.0, gt=0)
    """A token counts when its ratio is below this."""

    @property
    def acts_without_drift(self) -> bool:
        return self.tau > 1  # unmoved tokens, r = 1, count too

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
        from holdfast.losses import sapo_penalty

        return sapo_penalty(logprobs, old_logprobs, advantages, loss_mask, tau=self.tau, preserve=preserved)


class NLL(Penalty):
    """Negative log-likelihood of rollouts with A > 0; see `holdfast.losses.nll_loss`. Works from the first step on."""

    name: Literal["nll"] = Field("nll", repr=False, description=_NAME)
    coef: Coefficient = 0.1

    @property
    def acts_without_drift(self) -> bool:
        return True

    def per_token(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, **_: Any
    ) -> Tensor:
        from holdfast.losses import nll_loss

        return nll_loss(logprobs, advantages, loss_mask)


class NoPenalty(_Value):
    """The policy loss alone."""

    name: Literal["none"] = Field("none", description=_NAME)

    @property
    def term(self) -> None:
        """Nothing is added to the loss."""
        return None


class CustomPenalty(_Value):
    """A class of somebody else's code, by its import path."""

    name: Literal["custom"] = Field("custom", description=_NAME)
    path: str = ""
    """`module:Class`, a class derived from `holdfast.penalties.Penalty`; see docs/losses.md."""
    coef: float | None = Field(None, ge=0)
    """Its coefficient; None is the default of the class."""
    settings: dict[str, Any] = Field({})
    """Its other arguments."""

    def problems(self) -> Iterator[str]:
        if not is_import_path(self.path):
            yield (
                f"loss.penalty.path = {self.path!r} with loss.penalty.name = 'custom': it must name a class, as "
                "module:Class. Set loss.penalty.path = 'my_code:Hinge', say"
            )
        if "coef" in self.settings:
            yield "loss.penalty.settings holds coef, which is a setting of its own; set loss.penalty.coef"

    @cached_property
    def term(self) -> Penalty:
        """The penalty itself, imported, made and tried. Raises `ConfigError`."""
        given = self.settings if self.coef is None else {"coef": self.coef, **self.settings}
        try:
            return made_from(self.path, given)
        except ConfigError as error:
            raise ConfigError(f"loss.penalty: {error}") from error


AnyPenalty = Annotated[
    NoPenalty | LLDS | SAPO | NLL | CustomPenalty,
    Field(discriminator="name"),
    BeforeValidator(lambda section: {"name": "llds", **section} if isinstance(section, dict) else section),
]
"""`[loss.penalty]`: its `name` chooses the class."""

PENALTIES: dict[str, type[Section]] = {choice_of(kind): kind for kind in get_args(get_args(AnyPenalty)[0])}
"""What a recipe calls each of them."""


def made_from(path: str, arguments: dict[str, Any]) -> Penalty:
    """A penalty of a class outside this package, tried on a small batch. Raises `ConfigError`."""
    kind = import_named(path)
    if not (isinstance(kind, type) and issubclass(kind, Penalty)):
        raise ConfigError(f"{path!r} is not a penalty: derive the class from holdfast.penalties.Penalty")
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"{path!r} lacks the method {missing[0]}; see holdfast.penalties.Penalty")
    penalty = kind(**arguments)
    try_out(penalty)
    return penalty


def try_out(penalty: Penalty) -> None:
    """Compute a penalty on a batch of two rollouts, so that what cannot work is refused before a run begins.

    Raises `ConfigError`: it fails, or returns something else than a value for each token, or one outside the mask.
    """
    import torch

    who = type(penalty).__name__
    loss_mask = torch.tensor([[False, True, True, False, True, True], [False, True, True, True, False, False]])
    old = torch.linspace(-3.0, -0.25, 12).view(2, 6)
    logprobs = (old + torch.tensor([0.5, -0.5]).repeat(2, 3)).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]])
    action_ids = torch.tensor([[0, 1, 1, 0, 2, 2], [0, 1, 1, 1, 0, 0]])
    weight = penalty.weight_at(1.0)
    try:
        preserved = penalty.preserved(advantages, loss_mask, advantages > 0)
        value = penalty.per_token(
            logprobs,
            old,
            advantages,
            loss_mask,
            preserved=preserved,
            action_ids=action_ids,
            answer_mask=action_ids == 2,
            answer_weight=1.0 if weight is None else weight,
        )
    except Exception as error:
        raise ConfigError(f"{who} fails on a batch of two rollouts ({type(error).__name__}: {error})") from error
    for method, tensor, dtype in (("preserved", preserved, torch.bool), ("per_token", value, logprobs.dtype)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != loss_mask.shape or tensor.dtype != dtype:
            raise ConfigError(
                f"{who}.{method} must return a {str(dtype).removeprefix('torch.')} tensor [B, T], here [2, 6]; it "
                f"returned {_described(tensor)}"
            )
    if bool((value[~loss_mask] != 0).any()):
        raise ConfigError(
            f"{who}.per_token is not 0 outside the loss mask, where nothing is learned; return torch.where(loss_mask, "
            "value, 0.0)"
        )


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} {value!r}"
