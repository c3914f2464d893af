"""Settings for people: a recipe with its meaning beside every key, and the table in `holdfast train --help`."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel

from holdfast import settings
from holdfast.config import Config

WIDTH = 88

# What a newcomer changes first. `--dry-run` prints all.
USEFUL = (
    "data.train",
    "retrieval.corpus",
    "model.path",
    "model.lora_rank",
    "protocol.max_turns",
    "protocol.topk",
    "warm_start.steps",
    "loss.penalty.name",
    "loss.penalty.coef",
    "loss.penalty.gate",
    "loss.kl_coef",
    "train.steps",
    "train.questions",
    "train.group_size",
    "train.optimizer_steps_per_rollout",
    "train.lr",
    "eval.every",
    "checkpoint.every",
    "track.wandb",
    "run.name",
    "run.seed",
    "run.device",
)


def annotated(config: Config) -> str:
    """The config as TOML with a comment before every key; what is None stands there as a comment. Reads back equal."""
    return "\n".join(_section(config, "")).lstrip("\n") + "\n"


def summary_of(dotted: str) -> str:
    """The first sentence of a setting's description."""
    info = settings.setting(Config, dotted)
    text = (info.description or "") if info else ""
    head, end, _ = text.replace("\n", " ").partition(". ")
    return head + end.strip()


def default_of(dotted: str) -> str:
    """A setting's default as a recipe would write it."""
    value: Any = Config()
    for part in dotted.split("."):
        value = getattr(value, part)
    return "none" if value is None else settings.shown(value)


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
        elif isinstance(value, tuple):
            yield f"{key} = {settings.shown(value)}"  # numbers, which need no escapes, on one line
        else:
            yield tomli_w.dumps({key: value}).strip()
    for key, value in section:
        if isinstance(value, BaseModel):
            yield from _section(value, f"{name}.{key}".lstrip("."))


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
