"""Settings for people: a recipe with its meaning beside every key, and the table in `holdfast train --help`."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel

from holdfast import settings
from holdfast.config import METHOD_DEFAULTS, Config, Penalty
from holdfast.contradictions import unread

WIDTH = 88

# What a newcomer changes first, in words that fit on one line of 80 columns. `--dry-run` prints all.
USEFUL = {
    "data.train": "your questions, JSONL",
    "retrieval.corpus": "your passages, JSONL",
    "model.path": "any causal LM: folder or hub id",
    "model.lora_rank": "LoRA; 0 trains all weights",
    "protocol.max_turns": "turns of an episode",
    "protocol.topk": "passages a search returns",
    "warm_start.steps": "supervised steps first",
    "loss.penalty.name": "llds, sapo, nll or none",
    "loss.penalty.coef": "its weight",
    "loss.penalty.gate": "llds: action, response, token",
    "loss.kl_coef": "KL to the starting policy",
    "train.steps": "rollout batches",
    "train.questions": "questions per batch",
    "train.group_size": "rollouts per question",
    "train.optimizer_steps_per_rollout": "optimizer steps per batch",
    "train.lr": "learning rate",
    "eval.every": "evaluate every n steps",
    "checkpoint.every": "save every n steps",
    "guard.on": "codes that count; empty: all",
    "guard.action": "warn or stop",
    "track.wandb": "W&B project",
    "run.name": "name of the run folder",
    "run.seed": "seed of the run",
    "run.device": "auto, cpu or cuda",
}


def annotated(config: Config) -> str:
    """The config as TOML with a comment before every key; what is None stands there as a comment. Reads back equal."""
    return "\n".join(_section(config, "")).lstrip("\n") + "\n"


def default_of(dotted: str) -> str:
    """A setting's default, without quotes."""
    value: Any = Config()
    for part in dotted.split("."):
        value = getattr(value, part)
    return "none" if value is None else str(value)


def _section(section: BaseModel, name: str) -> Iterator[str]:
    own = {key: value for key, value in section if not isinstance(value, BaseModel)}
    if own:
        yield f"\n[{name}]"
    for key, value in own.items():
        info = type(section).model_fields[key]
        comment = " ".join((info.description or "").split())
        if value is None or typing.get_origin(info.annotation) is Literal:
            comment = f"{comment} ({settings.kind_of(info.annotation)})".strip()
        yield from _comment(comment)
        if value is None:
            yield f"# {key} ="
        elif isinstance(section, Penalty) and _follows_name(section, key):
            yield f"# {tomli_w.dumps({key: value}).strip()}"
        elif isinstance(value, tuple):
            yield f"{key} = {settings.shown(value)}"  # numbers, which need no escapes, on one line
        else:
            yield tomli_w.dumps({key: value}).strip()
    for key, value in section:
        if isinstance(value, BaseModel):
            yield from _section(value, f"{name}.{key}".lstrip("."))


def _follows_name(penalty: Penalty, key: str) -> bool:
    """Whether a value is the method's published one, or one that it does not read: neither is to outlive the name."""
    return key in unread(penalty.name) or METHOD_DEFAULTS[penalty.name].get(key) == getattr(penalty, key)


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
