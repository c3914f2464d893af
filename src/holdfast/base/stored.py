"""Files that are passed on, as values: JSON and TOML. Bytes and depth are bounded, and any damage is one sentence."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from os.path import exists, isfile
from pathlib import Path
from typing import Any, TypeVar

from holdfast.base.errors import HoldfastError
from holdfast.base.files import size_text

T = TypeVar("T")
MAX_BYTES = 2**26
_MAX_TOML = 2**20
_MAX_DEPTH = 64
"""Levels of lists and tables. Ours have ten at most, and code that walks through thousands runs out of stack."""

_MAX_BRACKETS = 1_000_000
"""Lists and objects of a text. An empty one takes three bytes in it, and 64 in memory."""


def bounded_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises `ValueError`, also where it is nested too deeply or has too many parts."""
    opening = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    brackets = sum(map(text.count, opening))  # type: ignore[arg-type]
    if brackets > _MAX_BRACKETS:
        raise ValueError(f"it has more than {_MAX_BRACKETS:,} lists and objects")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Most texts have too few brackets to be deep, and need no walk.
    return value if brackets <= _MAX_DEPTH else bounded(value)


def read_json(path: Path, error: type[HoldfastError], remedy: str, *, max_bytes: int = MAX_BYTES) -> Any:
    """The value of a JSON file of at most `max_bytes`.

    Raises `error`, with the path, the reason, and `remedy` (what to do, without a full stop), whatever is wrong.
    """
    return _read(path, "JSON", bounded_json, error, remedy, max_bytes)


def read_object(path: Path, error: type[HoldfastError], remedy: str, **needs: type) -> dict[str, Any]:
    """As `read_json`, of a file that must be an object with the fields `needs`, each of its type."""
    value = read_json(path, error, remedy)
    if not isinstance(value, dict):
        raise error(f"{path} is not a JSON object; {remedy}")
    if wrong := [name for name, kind in needs.items() if not isinstance(value.get(name), kind)]:
        raise error(f"{path} is damaged: its field {wrong[0]!r} is missing or has the wrong type; {remedy}")
    return value


def read_toml(path: Path, error: type[HoldfastError], remedy: str) -> dict[str, Any]:
    """The tables of a TOML file of at most 1 MiB. Raises as `read_json`."""
    return _read(path, "TOML", lambda text: bounded(tomllib.loads(text)), error, remedy, _MAX_TOML)


def _read(
    path: Path, form: str, parse: Callable[[str], T], error: type[HoldfastError], remedy: str, max_bytes: int
) -> T:
    if exists(path) and not isfile(path):  # a device may have no end, a pipe no writer
        raise error(f"{path} is not a regular file; {remedy}")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"it has more than {size_text(max_bytes)}")
        return parse(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise error(f"{path} does not exist; {remedy}") from None
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}; {remedy}") from None
    except RecursionError:
        raise error(f"{path} is not valid {form}: it is nested too deeply; {remedy}") from None
    except ValueError as problem:
        raise error(f"{path} is not valid {form}: {problem}; {remedy}") from None


def bounded(value: Any) -> Any:
    """The value. Raises `ValueError` where it is nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        inner = [item for box in level for item in (box.values() if isinstance(box, dict) else box)]
        level = [item for item in inner if isinstance(item, dict | list)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")
