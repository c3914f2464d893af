"""The likelihood-preserving penalties: each is a value, and the `[loss.penalty]` section of a recipe.

    LLDS(coef=0.2, gate="action")        arXiv 2512.04220; gate="token": the paper's LLD variant (no gate)
    SAPO(coef=0.1)                       Search Agent Policy Optimization, arXiv 2603.10069
    NLL(coef=0.1)                        negative log-likelihood of positive rollouts, the plain alternative

A penalty holds its settings, with the published values as defaults, and the facts that hosts need about it. The
formulas are in `holdfast.losses`, imported when a penalty is computed, so that reading a recipe needs no torch.

Your own penalty is a class derived from `Penalty`; docs/reference/losses.md shows one. To add one to this file, write
its class and list it in `AnyPenalty`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, ValidationError

from holdfast.base.errors import ConfigError
from holdfast.base.importing import import_named, is_import_path
from holdfast.base.refusals import explain_call
from holdfast.base.section import Section, choice_of

if TYPE_CHECKING:
    from torch import Tensor

WITHOUT_OLD_POLICY = ("none", "nll")
"""Names of those that compare with no policy."""
Gate = Literal["action", "response", "token"]
Normalizer = Literal["policy", "preserved"]
AnswerWeight = Annotated[float, Field(ge=0, le=1)] | Literal["adaptive-paper", "adaptive-code"]

_NAME = (
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


class _Value(Section):
    """A section that Python code can construct as well; there an invalid argument raises `ConfigError`."""

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(explain_call(error.errors(include_url=False), type(self))) from None

        # Marks it as pydantic's own, so that a recipe's section skips it and all problems are reported together.
        __init__.__pydantic_base_init__ = True


class Penalty(_Value):
    """A per-token term of the loss, added to the policy loss with `coef`.

    To write one, derive from it and implement `per_token`. Give `coef` a default; declare other settings as annotated
    fields.
    """

    name: str = Field("custom", repr=False)
    coef: Coefficient
    normalizer: Normalizer = "preserved"
    """What the penalty is a mean over. `preserved`: the preserved tokens, as in LLDS's paper; `policy`: what the policy
    loss is a mean over, as in its authors' code, where the same `coef` is about half as strong
    (docs/reference/papers.md)."""

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


class _RolloutPenalty(Penalty):
    """A penalty whose preserved rollouts are chosen by the setting `preserve`."""

    preserve: Preserve = "nonnegative"

    def preserved(self, advantages: Tensor, loss_mask: Tensor, correct: Tensor | None = None) -> Tensor:
        """bool [B, T]: tokens of the rollouts that `preserve` selects."""
        from holdfast.losses import preserved_mask

        return preserved_mask(advantages, loss_mask, rule=self.preserve, correct=correct)


class LLDS(_RolloutPenalty):
    """A penalty on preserved tokens that became less likely; see `holdfast.losses.llds_penalty`.

    >>> LLDS(coef=0.5).gate
    'action'
    """

    name: Literal["llds"] = Field("llds", repr=False, description=_NAME)
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


class SAPO(_RolloutPenalty):
    """Search Agent Policy Optimization's conditional KL; see `holdfast.losses.sapo_penalty`.

    Not Soft Adaptive Policy Optimization, which TRL and verl call `sapo`.
    """

    name: Literal["sapo"] = Field("sapo", repr=False, description=_NAME)
    coef: Coefficient = 0.1
    preserve: Preserve = "positive"
    tau: float = Field(1.0, gt=0)
    """The penalty acts on tokens whose importance ratio is below this."""

    @property
    def acts_without_drift(self) -> bool:
        """True for tau above 1: then tokens that did not move (ratio 1) count as well."""
        return self.tau > 1

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
        """`sapo_penalty`."""
        from holdfast.losses import sapo_penalty

        return sapo_penalty(logprobs, old_logprobs, advantages, loss_mask, tau=self.tau, preserved=preserved)


class NLL(Penalty):
    """Negative log-likelihood of rollouts with A > 0; see `holdfast.losses.nll_loss`. Acts from the first step on."""

    name: Literal["nll"] = Field("nll", repr=False, description=_NAME)
    coef: Coefficient = 0.1

    @property
    def acts_without_drift(self) -> bool:
        """True."""
        return True

    def per_token(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor, **_: Any
    ) -> Tensor:
        """`nll_loss`."""
        from holdfast.losses import nll_loss

        return nll_loss(logprobs, advantages, loss_mask)


class NoPenalty(_Value):
    """The policy loss alone."""

    name: Literal["none"] = Field("none", description=_NAME)

    @property
    def term(self) -> None:
        """Adds nothing to the loss."""
        return None


class CustomPenalty(_Value):
    """A penalty class outside holdfast, given by its import path."""

    name: Literal["custom"] = Field("custom", description=_NAME)
    path: str = ""
    """`module:Class`, a class derived from `holdfast.penalties.Penalty`; see docs/reference/losses.md."""
    coef: float | None = Field(None, ge=0)
    """Coefficient of the penalty in the loss. Unset: the default of the class."""
    settings: dict[str, Any] = Field({})
    """Other arguments of the class."""

    def problems(self) -> Iterator[str]:
        """What cannot work, known without importing the class."""
        return custom_problems(self.path, self.settings, prefix="loss.penalty.")

    @cached_property
    def term(self) -> Penalty:
        """The penalty, imported, constructed and tried. Raises `ConfigError`."""
        try:
            return self.load()
        except ConfigError as error:
            raise ConfigError(f"loss.penalty: {error}") from error

    def load(self) -> Penalty:
        """`term`, whose errors name no setting."""
        arguments = self.settings if self.coef is None else {"coef": self.coef, **self.settings}
        return load_penalty(self.path, arguments)


def custom_problems(path: str, settings: Mapping[str, Any], *, prefix: str) -> Iterator[str]:
    """What cannot work in a custom penalty, known without importing it.

    `prefix` begins the host's names of the settings: `loss.penalty.` in a recipe.
    """
    if not is_import_path(path):
        yield (
            f"{prefix}path = {path!r}: a custom penalty needs the import path of its class, as module:Class. Set "
            f"{prefix}path, for example to my_code:Hinge"
        )
    if "coef" in settings:
        yield f"{prefix}settings holds coef, which is a separate setting; set {prefix}coef"


AnyPenalty = Annotated[
    NoPenalty | LLDS | SAPO | NLL | CustomPenalty,
    Field(discriminator="name"),
    BeforeValidator(lambda section: {"name": "llds", **section} if isinstance(section, dict) else section),
]
"""`[loss.penalty]`: its `name` selects the class."""

PENALTIES: dict[str, type[Section]] = {choice_of(kind): kind for kind in get_args(get_args(AnyPenalty)[0])}
"""Recipe name -> class."""


def load_penalty(path: str, arguments: dict[str, Any]) -> Penalty:
    """A penalty whose class is given by its import path, tried on a small batch. Raises `ConfigError`."""
    kind = import_named(path)
    if not (isinstance(kind, type) and issubclass(kind, Penalty)):
        raise ConfigError(f"{path!r} is not a penalty: derive the class from holdfast.penalties.Penalty")
    if missing := sorted(kind.__abstractmethods__):
        raise ConfigError(f"{path!r} lacks the method {missing[0]}; see holdfast.penalties.Penalty")
    penalty = kind(**arguments)
    try_out(penalty)
    return penalty


def try_out(penalty: Penalty) -> None:
    """Compute a penalty on a batch of two rollouts, so that one that cannot work is refused before a run begins.

    Raises:
        ConfigError: a method raises; `preserved` or `per_token` returns something other than one value per token;
            `per_token` is detached, not finite, or not 0 outside the mask.
    """
    import torch

    class_name = type(penalty).__name__
    loss_mask = torch.tensor([[False, True, True, False, True, True], [False, True, True, True, False, False]])
    old = torch.linspace(-3.0, -0.25, 12).view(2, 6)
    logprobs = (old + torch.tensor([0.5, -0.5]).repeat(2, 3)).requires_grad_()
    advantages = torch.tensor([[1.0], [-1.0]])
    action_ids = torch.tensor([[0, 1, 1, 0, 2, 2], [0, 1, 1, 1, 0, 0]])
    try:
        weight = penalty.weight_at(1.0)
        preserved = penalty.preserved(advantages, loss_mask, advantages > 0)
        value = penalty.per_token(
            logprobs,
            old,
            advantages,
            loss_mask,
            preserved=preserved,
            action_ids=action_ids,
            answer_mask=action_ids == 2,
            answer_weight=1.0 if weight is None else float(weight),
        )
    except Exception as error:
        raise ConfigError(f"{class_name} fails on a batch of two rollouts ({type(error).__name__}: {error})") from error
    for method, tensor, dtype in (("preserved", preserved, torch.bool), ("per_token", value, logprobs.dtype)):
        if not isinstance(tensor, torch.Tensor) or tensor.shape != loss_mask.shape or tensor.dtype != dtype:
            raise ConfigError(
                f"{class_name}.{method} must return a {str(dtype).removeprefix('torch.')} tensor [B, T], here [2, 6]; "
                f"it returned {_described(tensor)}"
            )
    if not value.requires_grad:
        raise ConfigError(
            f"{class_name}.per_token returns a tensor without a gradient, so it would train nothing; compute it from "
            "logprobs, without detach() or no_grad()"
        )
    if not bool(value.isfinite().all()):
        raise ConfigError(f"{class_name}.per_token returns NaN or infinity on a batch of two rollouts")
    if bool((value[~loss_mask] != 0).any()):
        raise ConfigError(
            f"{class_name}.per_token is not 0 outside the loss mask, where nothing is learned; return "
            "torch.where(loss_mask, value, 0.0)"
        )


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{type(value).__name__} {value!r}"
