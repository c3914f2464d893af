"""Reading recipes from files and settings from a command line."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterator, Sequence
from os.path import exists, isdir
from pathlib import Path
from typing import Any, Literal

from holdfast.base import stored
from holdfast.base.errors import ConfigError
from holdfast.base.refusals import unknown
from holdfast.base.section import Root, as_toml, kinds_of, setting

UNSET = object()
"""The value of a setting that a file's `unset`, or `--unset` on the command line, takes out of a recipe."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises `ConfigError`."""
    if not exists(path):
        raise ConfigError(f"there is no recipe {path}; give the path of a TOML file")
    if isdir(path):
        raise ConfigError(f"{path} is a folder; give a TOML file", hint=f"to continue a run: holdfast resume {path}")
    return stored.read_toml(path, ConfigError, "correct it, or give another recipe")


def parse_overrides(arguments: Sequence[str], root: Root) -> dict[str, Any]:
    """Values by dotted name of `--a.b value` and `--a.b=value`; a true-or-false setting without a value is true. The
    value of `a.b` in `--unset a.b` is `UNSET`.

    A dash in a name is an underscore; of two values for one name the last counts; `none` clears an optional setting.
    A value of another kind than the setting is left as text, and validation explains the error. Raises `ConfigError`.
    """
    values = {}
    for name, text, _ in split_overrides(arguments, root):
        info = setting(root, name)
        assert info is not None
        values[name] = UNSET if text is None else read(text, info.annotation)
    return values


def unset(names: Any, root: Root, where: str) -> dict[str, Any]:
    """`UNSET` by dotted name, of settings that `where` takes out of a recipe. Raises `ConfigError`."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} = {as_toml(names)} is not a list of settings, such as ['retrieval.corpus']")
    for name in names:
        if setting(root, name) is None:
            raise ConfigError(f"{where} {name}: {unknown(name, root)}")
    return dict.fromkeys(names, UNSET)


def split_overrides(arguments: Sequence[str], root: Root) -> Iterator[tuple[str, str | None, list[str]]]:
    """(dotted name, text of its value or None to unset it, its words on the command line) of each override.

    Raises `ConfigError`.
    """
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--") or len(argument) < 3:
            raise ConfigError(f"cannot read the argument {argument!r}; settings are written --section.key value")
        name, equals, text = argument[2:].partition("=")
        name = name.replace("-", "_")
        words = [argument]
        if name == "unset":
            if not equals and rest and not rest[0].startswith("--"):
                words.append(text := rest.pop(0))
            (name,) = unset([text.replace("-", "_")], root, "--unset")
            yield name, None, words
            continue
        info = setting(root, name)
        if info is None:
            raise ConfigError(f"--{name}: {unknown(name, root)}")
        if not equals:
            may_stand_alone = info.annotation is bool
            if rest and not rest[0].startswith("--") and (not may_stand_alone or rest[0].lower() in TRUTH):
                words.append(text := rest.pop(0))
            elif may_stand_alone:
                text = "true"
            else:
                example = "VALUE" if info.default is None or info.default == "" else info.default
                raise ConfigError(f"--{name} needs a value; write --{name} {example}")
        yield name, text, words


def assign(data: dict[str, Any], dotted: str, value: Any) -> None:
    """Set a dotted name in nested dicts. Raises `ConfigError` when a section of it holds a plain value."""
    *sections, key = dotted.split(".")
    for depth, section in enumerate(sections, start=1):
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            name = ".".join(sections[:depth])
            raise ConfigError(
                f"{name} = {as_toml(data)}, but {name} is a section: write [{name}] and its settings below"
            )
    data[key] = value


TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def clears(value: Any, annotation: Any) -> bool:
    """Whether a value, of a file or of a command line, is the `none` that clears an optional setting."""
    return isinstance(value, str) and value.lower() in ("none", "null") and type(None) in kinds_of(annotation)


def read(text: str, annotation: Any) -> Any:
    """A command line's text as the first kind of the setting that can hold it; else the text itself."""
    if clears(text, annotation):
        return None
    for kind in kinds_of(annotation):
        if kind is bool and text.lower() in TRUTH:
            return TRUTH[text.lower()]
        if kind is str or (typing.get_origin(kind) is Literal and text in typing.get_args(kind)):
            return text
        if kind in (int, float):
            try:
                number = float(text) if kind is float else _whole(text)
            except (ValueError, OverflowError):
                continue
            return number
        if typing.get_origin(kind) is tuple:
            try:
                return _toml(text, "[", "]")
            except (ValueError, RecursionError):
                if typing.get_args(kind)[0] is str:
                    return [name.strip() for name in text.split(",")]
                continue
        if typing.get_origin(kind) is dict:
            try:
                return _toml(text, "{", "}")
            except (ValueError, RecursionError):
                continue
    return text


def _toml(text: str, opening: str, closing: str) -> Any:
    """A TOML list or table. The outer brackets are optional."""
    text = text.strip()
    if not (text.startswith(opening) and text.endswith(closing)):
        text = f"{opening}{text}{closing}"
    return tomllib.loads(f"v = {text}")["v"]


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # 1e3
        if not number.is_integer():
            raise
        return int(number)
