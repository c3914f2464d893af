"""Methods as settings by dotted name, written down once for experiments and tables, and how settings are combined."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.base.errors import ConfigError
from holdfast.base.section import join_or
from holdfast.methods.penalties import PENALTIES
from holdfast.recipe import load

Settings = Mapping[str, Any]
"""Dotted name -> value."""

NO_PENALTY: Settings = {"loss.penalty.name": "none"}
SAPO: Settings = {"loss.penalty.name": "sapo"}
MEAN_OF_MEANS: Settings = {"loss.reduction": "seq-mean-token-mean"}
GSPO: Settings = {"loss.ratio": "sequence", **MEAN_OF_MEANS}
UNTRUNCATED: Settings = {"sampling.top_p": 1.0, "sampling.top_k": 0}
ADAPTIVE_ANSWERS: Settings = {"loss.penalty.answer_weight": "adaptive-paper"}


def llds(gate: str) -> Settings:
    """LLDS with a gate on tokens, actions or responses."""
    return {"loss.penalty.name": "llds", "loss.penalty.gate": gate}


SHORT: Settings = {
    "world.people": 60,
    "world.train_questions": 40,
    "world.dev_questions": 6,
    "world.test_questions": 5,
    "world.filler_words": 20,
    "world.filler_length": [1, 2],
    "world.ramble_length": [3, 5],
    "world.model.hidden": 32,
    "world.model.layers": 2,
    "world.model.heads": 2,
    "world.scripts.plain_steps": 0,
    "world.scripts.count": 100,
    "protocol.max_turns": 3,
    "protocol.max_turn_tokens": 24,
    "protocol.max_observation_tokens": 60,
    "protocol.max_total_tokens": 220,
    "warm_start.steps": 40,
    "warm_start.batch_size": 16,
    "reward.f1": 1.0,
    "reward.format": 0.5,
    "train.steps": 3,
    "train.warmup": 1,
    "train.questions": 5,
    "train.group_size": 4,
}
"""A smoke test: a world, a model and a schedule that take seconds and teach nothing."""


def words(settings: Settings) -> list[str]:
    """Settings as options of the command line.

    >>> words({"train.steps": 3, "sampling.mask_logprobs": True, "world.filler_length": [1, 2]})
    ['--train.steps', '3', '--sampling.mask_logprobs', 'true', '--world.filler_length', '[1, 2]']
    """
    return [word for name, value in settings.items() for word in (f"--{name}", _text(value))]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def for_method(shared: Settings, method: Settings, recipe: Path) -> dict[str, Any]:
    """The settings of one run: `shared` by all runs, then its method's own. A shared setting of a penalty is left out
    where the run's penalty does not have it.
    """
    given = {**shared, **method}
    penalty = PENALTIES.get(given.get("loss.penalty.name") or load(recipe).loss.penalty.name)
    used = {name: value for name, value in shared.items() if _has(penalty, name)}
    return {**{name: value for name, value in used.items() if name not in method}, **method}


def refuse_unused(shared: Settings, methods: Iterable[Settings], recipe: Path) -> None:
    """Raise `ConfigError` for a shared setting that no method has a use for."""
    used = {name for method in methods for name in for_method(shared, method, recipe)}
    for name, value in shared.items():
        if name not in used:
            readers = [method for method, kind in PENALTIES.items() if name.rpartition(".")[2] in kind.model_fields]
            raise ConfigError(
                f"--{name} {_text(value)}: no run has a penalty with this setting, which is of {join_or(readers)}"
            )


def _has(penalty: Any, name: str) -> bool:
    return penalty is None or not name.startswith("loss.penalty.") or name.rpartition(".")[2] in penalty.model_fields
