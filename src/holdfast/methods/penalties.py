"""The penalties that `[loss.penalty]` chooses from by `name`.

    LLDS(coef=0.2, gate="action")        arXiv 2512.04220; gate="token": the paper's LLD variant (no gate)
    SAPO(coef=0.1)                       Search Agent Policy Optimization, arXiv 2603.10069
    NLL(coef=0.1)                        negative log-likelihood of positive rollouts, the plain alternative

Your own penalty is a class derived from `Penalty`; docs/reference/losses.md shows one. To add one to holdfast, write
its class in a file of its own and list it in `AnyPenalty`.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field

from holdfast.base.section import Section, choice_of
from holdfast.methods.custom_penalty import CustomPenalty
from holdfast.methods.llds import LLDS
from holdfast.methods.nll import NLL
from holdfast.methods.penalty import NAME, Penalty, PenaltySection
from holdfast.methods.sapo import SAPO

__all__ = [
    "LLDS",
    "NLL",
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

PENALTIES: dict[str, type[Section]] = {choice_of(kind): kind for kind in get_args(get_args(AnyPenalty)[0])}
"""Recipe name -> class."""
