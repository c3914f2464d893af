"""Names of holdfast's losses in verl's registry, and the penalty of each. Imports neither verl nor torch.

A new penalty needs a line in `LOSSES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, NLL, SAPO, AnyPenalty, CustomPenalty, NoPenalty, Penalty

ANSWER_SPAN = "answer-span"
"""The value of `penalty_answer` for the `answer_span` of a rollout's `extra_fields`, as holdfast's agent loop fills
them."""
LAST_ACTION = "last-action"
"""The value of `penalty_answer`, beside `ANSWER_SPAN`, for the last action, which the mask shows."""


@dataclass(frozen=True, slots=True)
class VerlLoss:
    """One loss of the registry."""

    kind: type[NoPenalty | Penalty | CustomPenalty]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the name decides."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings of the penalty that verl's configuration decides."""
        decided = {"name", *self.fixed}
        return tuple(key for key in self.kind.model_fields if key not in decided)


LOSSES: dict[str, VerlLoss] = {
    "holdfast_observe": VerlLoss(NoPenalty),
    "holdfast_llds": VerlLoss(LLDS, {"gate": "action"}),
    "holdfast_llds_response": VerlLoss(LLDS, {"gate": "response"}),
    "holdfast_lld": VerlLoss(LLDS, {"gate": "token"}),
    "holdfast_search_sapo": VerlLoss(SAPO),
    "holdfast_nll": VerlLoss(NLL),
    "holdfast_custom": VerlLoss(CustomPenalty),
}
"""`holdfast_observe` adds series to the log and nothing to the loss. There is no bare `sapo`: verl's own loss of that
name is Soft Adaptive Policy Optimization."""

_SETTINGS = tuple(dict.fromkeys(f"penalty_{key}" for loss in LOSSES.values() for key in loss.settings))
PENALTY_FIELDS = (*_SETTINGS, "penalty_answer")
"""Fields of verl's `policy_loss` that are about a penalty: its settings, and what counts as the answer."""


def loss_name(penalty: AnyPenalty) -> str | None:
    """The registry's name of a penalty; None if it has none.

    >>> loss_name(LLDS(gate="token"))
    'holdfast_lld'
    """
    for name, loss in LOSSES.items():
        if type(penalty) is loss.kind and all(getattr(penalty, key) == value for key, value in loss.fixed.items()):
            return name
    return None


def penalty_for(name: str, settings: Any) -> Penalty | None:
    """The penalty of a registered loss; None for `holdfast_observe`.

    Args:
        name: a key of `LOSSES`.
        settings: verl's `policy_loss`, or anything with its `get`. An absent or None setting has the paper's value.

    Raises:
        ConfigError: a value that cannot work, or one that this loss does not read.
    """
    loss = LOSSES[name]
    given = {key: value for key in _SETTINGS if (value := settings.get(key)) is not None}
    values = {key.removeprefix("penalty_"): _plain(value) for key, value in given.items()}
    if unread := sorted(set(values) - set(loss.settings)):
        key = f"penalty_{unread[0]}"
        raise ConfigError(
            f"policy_loss.{key} = {given[key]} with loss_mode = {name!r}, which does not use it; leave it out, or "
            "choose the loss it belongs to (for a control run with everything else in place, set penalty_coef = 0)"
        )
    penalty = _penalty(loss, values)
    for problem in _problems(penalty, settings.get("penalty_answer")):
        raise ConfigError(problem)
    return penalty


def _penalty(loss: VerlLoss, values: Mapping[str, Any]) -> Penalty | None:
    """Raises `ConfigError`, with verl's names of the settings."""
    try:
        return loss.kind(**loss.fixed, **values).term
    except ConfigError as error:
        sentence = str(error).replace("loss.penalty: ", "policy_loss.penalty_path: ")
        sentence = re.sub(rf"\b{loss.kind.__name__}\((\w+)=(.*?)\) ", r"policy_loss.penalty_\1 = \2 ", sentence)
        raise ConfigError(sentence.replace("loss.penalty.", "policy_loss.penalty_")) from error


def _problems(penalty: Penalty | None, answer: str | None) -> Iterator[str]:
    key = "policy_loss.penalty_answer"
    if answer not in (None, ANSWER_SPAN, LAST_ACTION):
        yield f"{key} = {answer!r} does not exist; use {ANSWER_SPAN!r} or {LAST_ACTION!r}"
    uses = penalty is not None and penalty.uses_answer_mask
    if uses and answer is None:
        yield (
            f"{penalty!r}: this penalty needs the tokens of the answer. Set {key} = {ANSWER_SPAN!r} with the agent "
            f"loop holdfast_search, which knows them, or {LAST_ACTION!r}, which takes the last action of each rollout"
        )
    if answer and not uses:
        yield (
            f"{key} = {answer!r} with a penalty that gives all tokens the same weight; set "
            "policy_loss.penalty_answer_weight to a number below 1 or to a schedule, or leave it out"
        )
    if getattr(penalty, "preserve", None) == "correct":
        yield (
            "policy_loss.penalty_preserve = 'correct': verl does not tell a loss which rollouts are correct; use "
            "'positive' (A > 0) or 'nonnegative' (A ≥ 0)"
        )


def _plain(value: Any) -> Any:
    """A configuration library's mapping as a dict."""
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value
