"""A section of a recipe, the tree of sections, and the names and kinds of the settings in it.

A field of a section holds a value, another section, or one of several sections, which its `name` chooses.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator
from pydantic.fields import FieldInfo

MAX_NUMBER = 1e15
"""Largest float of a setting, and largest reward. Products of larger ones overflow the float32 of a model."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Settings that cannot work, or not together."""

    settings: Mapping[str, Any]
    """Value by dotted name."""
    why: str
    instead: str
    """What to do, as a sentence without a full stop."""

    def text(self, typed: Collection[str] = ()) -> str:
        """What is set, why it cannot work, what to do. Settings in `typed` are shown as a command line has them.

        >>> Refusal({"loss.ratio": "action", "train.lr": 1}, "a reason", "Leave it out").text({"train.lr"})
        "loss.ratio = 'action' with --train.lr = 1: a reason. Leave it out"
        """
        values = (f"{'--' * (name in typed)}{name} = {as_toml(value)}" for name, value in self.settings.items())
        return f"{' with '.join(values)}: {self.why}. {self.instead}"


def sentence(refusal: Refusal | str, typed: Collection[str] = ()) -> str:
    """The text of a refusal, and a sentence as it is."""
    return refusal if isinstance(refusal, str) else refusal.text(typed)


class Refused(ValueError):
    """Refusals of a section, on their way through pydantic."""

    def __init__(self, refusals: Sequence[Refusal | str]) -> None:
        super().__init__("\n  ".join(map(sentence, refusals)))
        self.refusals = refusals


class Section(BaseModel):
    """A table of a recipe. Like TOML, it allows 64-bit integers and UTF-8 strings only."""

    # Strict: a quoted number, or `true` in place of a number, is an error.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    def refusals(self) -> Iterator[Refusal | str]:
        """One for each value, or set of values, that cannot work; a sentence where the value itself is not shown."""
        return iter(())

    @field_validator("*")
    @classmethod
    def _can_be_written(cls, value: Any) -> Any:
        for part in _leaves(value):
            if isinstance(part, int) and not -(2**63) <= part < 2**63:
                raise ValueError("must be a 64-bit whole number")
            if isinstance(part, float) and abs(part) > MAX_NUMBER:
                raise ValueError(f"must be a number between -{MAX_NUMBER:g} and {MAX_NUMBER:g}")
            if isinstance(part, str) and ("\0" in part or any("\ud800" <= letter <= "\udfff" for letter in part)):
                raise ValueError("must be a UTF-8 string without NUL")
        return value

    @model_validator(mode="after")
    def _can_work(self) -> Self:
        if refusals := list(self.refusals()):
            raise Refused(refusals)
        return self


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


Root = type[BaseModel]


def setting_names(root: Root, prefix: str = "") -> list[str]:
    """All dotted names of a tree, in declared order; where a field chooses between sections, the names of each."""
    names: dict[str, None] = {}
    for key, info in root.model_fields.items():
        inner = [setting_names(section, f"{prefix}{key}.") for section in sections(info.annotation)]
        names |= dict.fromkeys(chain(*inner) if inner else [prefix + key])
    return list(names)


def setting_values(tree: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Every setting of a tree by its dotted name; where a field chooses between sections, those of the chosen one."""
    values: dict[str, Any] = {}
    for key, value in field_values(tree).items():
        values |= setting_values(value, f"{prefix}{key}.") if isinstance(value, BaseModel) else {prefix + key: value}
    return values


def field_values(section: BaseModel) -> dict[str, Any]:
    """The fields of a section, by name."""
    return {key: getattr(section, key) for key in type(section).model_fields}


def setting(root: Root, dotted: str) -> FieldInfo | None:
    """The field behind a dotted name; None for a section and for an unknown name."""
    info = field_of(root, dotted)
    return None if info is None or sections(info.annotation) else info


def field_of(root: Root, dotted: str) -> FieldInfo | None:
    """The field behind the dotted name of a setting or a section; the first if several sections have it."""
    *path, key = dotted.split(".")
    models: Sequence[Root] = (root,)
    for name in path:
        models = [s for m in models if name in m.model_fields for s in sections(m.model_fields[name].annotation)]
    return next((m.model_fields[key] for m in models if key in m.model_fields), None)


def sections(annotation: Any) -> tuple[Root, ...]:
    """The section that a field holds, or those it is chosen from; none for a field that holds a value."""
    kinds = kinds_of(annotation)
    return kinds if all(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds) else ()


def choice_of(section: Root) -> str:
    """The `name` that chooses a section."""
    return str(section.model_fields["name"].default)


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The members of a union without their limits; for another annotation, that annotation without its limits."""
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if union else (annotation,)
    return tuple(typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind for kind in members)


# ---- in words


def as_toml(value: Any) -> str:
    """A value as a recipe would write it.

    >>> as_toml(True), as_toml("llds"), as_toml((4, 10)), as_toml({"my_code:brevity": 0.2})
    ('true', "'llds'", '[4, 10]', '{ "my_code:brevity" = 0.2 }')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key_as_toml(key)} = {as_toml(item)}' for key, item in value.items())} }}"
    return repr(value) if isinstance(value, str) else str(value)


def key_as_toml(key: str) -> str:
    """A key of a TOML table, in quotes where it needs them."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def kind_of(annotation: Any) -> str:
    """What a setting may hold, in words: `a whole number`, `'token' or 'sequence'`.

    >>> kind_of(float | None)
    'a number or none'
    """
    words: list[str] = []
    for kind in kinds_of(annotation):
        if typing.get_origin(kind) is Literal:
            words += map(as_toml, typing.get_args(kind))
        elif typing.get_origin(kind) is tuple:
            member, *others = typing.get_args(kind)
            if others == [Ellipsis]:
                words.append(f"a list of {kind_of(member)}")
            else:
                words.append(f"a list of {len(others) + 1} {kind_of(member).removeprefix('a ')}s")
        elif typing.get_origin(kind) is dict:
            words.append("a table")
        else:
            words.append(_KINDS.get(kind, getattr(kind, "__name__", str(kind))))
    return join_or(words)


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "none"}


def join_or(words: Sequence[str]) -> str:
    """`a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
