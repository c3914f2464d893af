"""Settings explained: a recipe with a comment before every key, and the table in `holdfast train --help`."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Collection, Iterator
from typing import Any, Literal

from pydantic import BaseModel

from holdfast.base.section import Root, choice_of, field_of, field_values, join_or, kind_of, sections
from holdfast.recipe import Config, setting_values
from holdfast.recipe.loading import on_one_line

WIDTH = 88
_TYPES = {"a string": "string", "a number": "number"}

# The settings that are changed first, explained on one line of 80 columns. `recipe show` prints all.
USEFUL = {
    "data.train": "your questions, JSONL",
    "retrieval.corpus": "your passages, JSONL",
    "retrieval.url": "a server; keys as ?key=$NAME",
    "model.path": "any causal LM: folder or hub id",
    "model.lora_rank": "LoRA; 0 trains all weights",
    "protocol.max_turns": "turns of a rollout",
    "protocol.topk": "passages a search returns",
    "warm_start.steps": "supervised steps first",
    "loss.penalty.name": "penalty: llds, sapo, nll or none",
    "loss.penalty.coef": "coefficient of the penalty",
    "loss.penalty.gate": "llds: action, response, token",
    "loss.kl_coef": "KL coefficient (initial model)",
    "train.steps": "steps, one rollout batch each",
    "train.questions": "questions per batch",
    "train.group_size": "rollouts per question",
    "train.optimizer_steps_per_rollout": "optimizer steps per batch",
    "train.lr": "learning rate",
    "eval.every": "evaluate every n steps",
    "checkpoint.every": "save every n steps",
    "guard.codes": "codes to act on, such as LLD003",
    "guard.action": "on a finding: warn or stop",
    "track.wandb": "W&B project",
    "run.name": "name of the run folder",
    "run.seed": "seed of the run",
    "run.device": "auto, cpu or cuda",
}


def annotated(config: Config) -> str:
    """The config as TOML with a comment before every key; a key that is None is a comment itself.

    Sections that are not used are left out. Reads back equal.
    """
    return "\n".join(_section(config, "", config.unused())).lstrip("\n") + "\n"


def default_of(dotted: str) -> str:
    """A setting's default, without quotes. An empty selection is shown as `all`."""
    value = setting_values(Config())[dotted]
    return "none" if value is None else str(value) or "all"


def _section(section: BaseModel, name: str, left_out: Collection[str] = ()) -> Iterator[str]:
    fields = {key: value for key, value in field_values(section).items() if key not in left_out}
    inside = {key: value for key, value in fields.items() if isinstance(value, BaseModel)}
    values = {key: value for key, value in fields.items() if key not in inside}
    if values:
        yield ""
        yield from _comment(" ".join((type(section).__doc__ or "").partition("\n\n")[0].split()))
        yield f"[{name}]"
    for key, value in values.items():
        info = type(section).model_fields[key]
        comment = " ".join((info.description or "").split())
        if value is None or typing.get_origin(info.annotation) is Literal:
            comment = f"{comment} ({_kind(f'{name}.{key}', info.annotation)})".strip()
        yield from _comment(comment)
        if value is None:
            yield f"# {key} ="
        else:
            yield f"{key} = {on_one_line(value)}"
    yield from _comment(_elsewhere(section, name))
    for key, value in inside.items():
        yield from _section(value, f"{name}.{key}".lstrip("."))


def _kind(dotted: str, annotation: Any) -> str:
    """The values that a setting may have. For a name that chooses its section, all those names."""
    section, _, key = dotted.rpartition(".")
    choices = _choices(section) if key == "name" else ()
    if choices:
        return join_or([repr(choice_of(choice)) for choice in choices])
    kind = kind_of(annotation)
    required = kind.removesuffix(" or none")
    return kind if required == kind else f"{_TYPES.get(required, required)}, optional"


def _elsewhere(section: BaseModel, name: str) -> str:
    """The settings that this section would have under another name."""
    others = [
        f'With name = "{choice_of(choice)}" also: {", ".join(more)}.'
        for choice in _choices(name)
        if (more := [key for key in choice.model_fields if key not in type(section).model_fields])
    ]
    return " ".join(others)


def _choices(section: str) -> tuple[Root, ...]:
    """The sections that one is chosen from; empty for a section without a choice."""
    field = field_of(Config, section)
    kinds = sections(field.annotation) if field else ()
    return kinds if len(kinds) > 1 else ()


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
