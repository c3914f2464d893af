"""A function of the user's as a model knows it: its JSON schema, its arguments from JSON, and its result as text.

transformers describes a function by its annotations and its docstring, as TRL does too. pydantic describes what
transformers does not know, such as a model of its own or a date, and turns arguments into what the annotations say.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

_LONGEST = 300
"""Characters of an error that the model reads."""


def plain_function(named: Any) -> FunctionType | None:
    """The function inside a method, or below decorators that keep it, such as `functools.cache`; None for a class or an
    object."""
    inner = inspect.unwrap(getattr(named, "__func__", named))
    return inner if inspect.isfunction(inner) else None


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of a function or method, as chat templates take it.

    Raises what transformers or pydantic raise for one that says too little of itself.
    """
    from transformers.utils import get_json_schema
    from transformers.utils.chat_template_utils import TypeHintParsingException

    try:
        schema: dict[str, Any] = get_json_schema(function)
        return schema
    except TypeHintParsingException:
        parameters, hints = list(inspect.signature(function).parameters.values()), _hints(function)
        if hints.keys() != {parameter.name for parameter in parameters}:
            raise
        takes = TypeAdapter(_stand_in(parameters, hints)).json_schema()  # type: ignore[arg-type]
    kind = inspect.Parameter.KEYWORD_ONLY
    texts = _stand_in([inspect.Parameter(name, kind, annotation=str) for name in hints], dict.fromkeys(hints, str))
    texts.__doc__ = inspect.getdoc(function)
    described: dict[str, Any] = get_json_schema(texts)  # the docstring, in parts
    for name, about in described["function"]["parameters"]["properties"].items():
        takes["properties"][name] = _without_titles(takes["properties"][name]) | {"description": about["description"]}
    described["function"]["parameters"] = {
        key: _without_titles(value) if key == "$defs" else value
        for key, value in takes.items()
        if key != "additionalProperties"
    }
    return described


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function's parameters."""
    hints = get_type_hints(function, include_extras=True)
    return {name: hints[name] for name in inspect.signature(function).parameters if name in hints}


def _stand_in(parameters: Sequence[inspect.Parameter], hints: dict[str, Any]) -> Callable[..., None]:
    """A plain function with these parameters: pydantic knows no function under `functools.cache`."""

    def function() -> None: ...

    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = hints
    return function


def _without_titles(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _without_titles(part) for key, part in schema.items() if key != "title" or not isinstance(part, str)}


def taking_json(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, for arguments as JSON has them: each becomes what its annotation says. A bare number stays as it
    is."""
    adapters = dict[str, TypeAdapter[Any]]()
    for name, hint in _hints(function).items():
        with suppress(PydanticSchemaGenerationError, PydanticUserError):  # as for a tensor
            adapters[name] = TypeAdapter(hint)

    def converted(name: str, value: Any) -> Any:
        try:
            result = adapters[name].validate_python(value) if name in adapters else value
        except ValidationError as error:
            raise ValueError(_problems(error, name)) from None
        return value if type(result) in (int, float) else result

    @wraps(function)
    def called(**arguments: Any) -> Any:
        return function(**{name: converted(name, value) for name, value in arguments.items()})

    return called


def text_of(result: Any) -> str:
    """What the model reads of a result: a text as it is, anything else as JSON. Raises `TypeError` and `ValueError` for
    what JSON cannot say."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, allow_nan=False, default=_json)


def _json(value: Any) -> Any:
    """Dates, decimals, sets, dataclasses, models of pydantic, arrays: as pydantic writes them."""
    if not isinstance(value, bytes | bytearray):
        if callable(of_array := getattr(value, "tolist", None)):  # numpy's
            return of_array()
        with suppress(PydanticSerializationError):
            return to_jsonable_python(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def sentence_of(error: BaseException) -> str:
    """The first line of an error; of pydantic's, what is wrong with which part."""
    text = _problems(error) if isinstance(error, ValidationError) else str(error).strip()
    return (text.splitlines() or [type(error).__name__])[0][:_LONGEST]


def _problems(error: ValidationError, *above: str) -> str:
    return "; ".join(f"{'.'.join([*above, *map(str, each['loc'])])}: {each['msg']}" for each in error.errors())
