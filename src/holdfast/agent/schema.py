"""JSON schemas of a tool's arguments: which values they allow, what their kinds are called, and values written as text.

Types, choices and parts are checked, and a date must not be a number, which pydantic would count from 1970. Bounds,
patterns and the like are left to the tool, whose own error then tells the model more than a note would.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_IS_OF: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: (isinstance(value, int) or _is_whole(value)) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_DATES = {"date": "an ISO date such as 2024-05-01", "date-time": "an ISO date and time such as 2024-05-01T10:30"}
"""Formats of a text -> what a model may write."""
_NUMBER = re.compile(r"[-+]?[\d.]+")
_PYTHON = {"None": None, "True": True, "False": False}
"""Values as some chat templates write them."""


def allows(value: Any, schema: Any, root: Any = None) -> bool:
    """Whether a schema allows a value, which JSON decoded. `root` is the schema that a `$ref` inside it begins at.

    >>> allows(2.0, {"type": "integer"}), allows(True, {"oneOf": [{"type": "integer"}, {"const": "all"}]})
    (True, False)

    Raises `RecursionError` for a value or a reference that nests too deeply.
    """
    root = schema if root is None else root
    if not isinstance(schema, Mapping):  # `true` and `false` are schemas too
        return schema is not False
    if value is None and schema.get("nullable"):
        return True

    def fits(part: Any) -> bool:
        return allows(value, part, root)

    kinds = schema.get("type", ())
    of_kind = [_IS_OF[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _IS_OF]
    return (
        (not of_kind or any(is_of(value) for is_of in of_kind))
        and not (str(schema.get("format")) in _DATES and isinstance(value, str) and _NUMBER.fullmatch(value))
        and ("enum" not in schema or value in schema["enum"])
        and ("const" not in schema or value == schema["const"])
        and ("$ref" not in schema or fits(_referred(schema["$ref"], root)))
        and ("anyOf" not in schema or any(map(fits, schema["anyOf"])))
        and ("oneOf" not in schema or sum(map(fits, schema["oneOf"])) == 1)
        and all(map(fits, schema.get("allOf", ())))
        and (not isinstance(value, list) or all(allows(item, schema.get("items", {}), root) for item in value))
        and (not isinstance(value, dict) or _has_parts(value, schema, root))
    )


def _has_parts(value: dict[str, Any], schema: Mapping[str, Any], root: Any) -> bool:
    """Whether an object has the properties that it must have, each as described."""
    described, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return set(schema.get("required", ())) <= set(value) and all(
        allows(item, described.get(name, others), root) for name, item in value.items()
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _referred(path: Any, root: Any) -> Any:
    """What a `$ref` such as `#/$defs/Place` names; anything, for one that is not in the schema."""
    head, *keys = str(path).split("/")
    for key in keys:
        root = root.get(key.replace("~1", "/").replace("~0", "~"), {}) if isinstance(root, Mapping) else {}
    return root if head == "#" else {}


def kind_of(schema: Any, root: Any = None) -> str:
    """What a model may write, in words.

    >>> kind_of({"anyOf": [{"type": "integer"}, {"const": "all"}]})
    'integer or "all"'
    """
    root = schema if root is None else root
    if not isinstance(schema, Mapping):
        return "any value"
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if date := _DATES.get(str(schema.get("format"))):
        return date
    if kind := schema.get("type"):
        return kind if isinstance(kind, str) else " or ".join(kind)
    if parts := schema.get("anyOf", schema.get("oneOf")):
        return " or ".join(dict.fromkeys(kind_of(part, root) for part in parts))
    referred = _referred(schema["$ref"], root) if "$ref" in schema else {}
    return str(referred.get("type", "any value")) if isinstance(referred, Mapping) else "any value"


def from_text(text: str, schema: Any, root: Any = None) -> Any:
    """The value of an argument that a model wrote without quotes: a number, list or the like where the schema allows
    it, else the text itself.

    >>> from_text("12", {"type": "string"}), from_text("12", {"type": "integer"}), from_text("None", {"nullable": True})
    ('12', 12, None)
    """
    try:
        value = _PYTHON[text.strip()] if text.strip() in _PYTHON else json.loads(text)
        return text if isinstance(value, str) or not allows(value, schema, root) else value
    except (ValueError, RecursionError):
        return text
