"""Penalties in hosts whose loss is a function by import path: prime-rl, slime and miles."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, PENALTIES, Penalty


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
