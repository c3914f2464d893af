"""The names that holdfast's losses have in verl's registry, and which penalty each is. No verl, no torch.

A new penalty needs a line in `LOSSES`, and a field in `HoldfastPolicyLossConfig` for a setting that no other has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import ConfigError
from holdfast.penalties import LLDS, SAPO, AnyPenalty, CustomPenalty, NoPenalty, Penalty

OBSERVE = "holdfast_observe"

_UNSEEN = ("normalizer", "answer_weight")
"""Settings that a loss of verl cannot honour: it is given neither another count nor the answer's tokens."""


@dataclass(frozen=True, slots=True)
class VerlLoss:
    """A loss of the registry."""

    about: str
    kind: type[NoPenalty | Penalty | CustomPenalty]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the name decides."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings of the penalty that verl's configuration decides."""
        decided = {"name", *self.fixed, *_UNSEEN}
        return tuple(key for key in self.kind.model_fields if key not in decided)


LOSSES: dict[str, VerlLoss] = {
    OBSERVE: VerlLoss("the base loss, untouched, with the missing series in the log", NoPenalty),
    "holdfast_llds": VerlLoss("LLDS, a gate per action (arXiv 2512.04220)", LLDS, {"gate": "action"}),
    "holdfast_llds_response": VerlLoss("LLDS, a gate per response", LLDS, {"gate": "response"}),
    "holdfast_lld": VerlLoss("LLD, a gate per token", LLDS, {"gate": "token"}),
    "holdfast_search_sapo": VerlLoss("Search Agent Policy Optimization (arXiv 2603.10069)", SAPO),
    "holdfast_custom": VerlLoss("a class of your own, `penalty_path`", CustomPenalty),
}
"""There is no bare `sapo`: verl has one, Soft Adaptive Policy Optimization."""

PENALTY_FIELDS = tuple(dict.fromkeys(f"penalty_{key}" for loss in LOSSES.values() for key in loss.settings))
"""Fields of verl's `policy_loss` that are settings of a penalty."""


def loss_name(penalty: AnyPenalty) -> str | None:
    """What the registry calls a penalty; None for one that it does not have.

    >>> loss_name(LLDS(gate="token"))
    'holdfast_lld'
    """
    for name, loss in LOSSES.items():
        if type(penalty) is loss.kind and all(getattr(penalty, key) == value for key, value in loss.fixed.items()):
            return name
    return None


def penalty_for(name: str, settings: Any) -> Penalty | None:
    """The penalty behind a loss's name; None for `holdfast_observe`.

    `settings` is verl's `policy_loss`, or anything with its `get`; what is absent or None is the paper's value. Raises
    `ConfigError` for a value that cannot work, and for one that this loss would not read.
    """
    loss = LOSSES[name]
    given = {key: value for key in PENALTY_FIELDS if (value := settings.get(key)) is not None}
    values = {key.removeprefix("penalty_"): _plain(value) for key, value in given.items()}
    if unread := sorted(set(values) - set(loss.settings)):
        key = f"penalty_{unread[0]}"
        raise ConfigError(
            f"policy_loss.{key} = {given[key]} with loss_mode = {name!r}, which does not read it; leave it out, or "
            "choose the loss it belongs to (for a control run with everything else in place, set penalty_coef = 0)"
        )
    penalty = loss.kind(**loss.fixed, **values).term
    for problem in () if penalty is None else _unseen(penalty):
        raise ConfigError(problem)
    return penalty


def _unseen(penalty: Penalty) -> Iterator[str]:
    if getattr(penalty, "preserve", None) == "correct":
        yield (
            "policy_loss.penalty_preserve = 'correct': verl does not tell a loss which rollouts are correct; use "
            "'positive' (A > 0) or 'nonnegative' (A ≥ 0)"
        )
    if penalty.normalizer != "policy":
        yield f"{penalty!r}: verl divides every term by one count; leave normalizer at 'policy'"
    if penalty.uses_answer_mask:
        yield f"{penalty!r}: verl does not tell a loss which tokens are the answer, and this penalty needs to know"


def _plain(value: Any) -> Any:
    """Mappings of configuration libraries as a dict."""
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
