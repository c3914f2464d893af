"""Which arguments a tool's schema allows, of the forms that JSON schemas have."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.calling import Tool
from holdfast.agent.schema import allows, from_text, kind_of
from holdfast.agent.trajectory import Call, Invalid

PLACE = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DATED = {"properties": {"at": {"items": {"type": "string", "format": "date-time"}}, "until": {"type": "string"}}}
ROOT = {
    "$defs": {"Place": PLACE, "Nested": {"type": "array", "items": {"$ref": "#/$defs/Nested"}}, "Self": {"$ref": "#"}},
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Place"}, "deep": {"$ref": "#/$defs/Nested"}, "n": {"type": "integer"}},
}


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "object"}, [{}, {"x": 1}], [[], "x", None]),
        ({"type": "integer"}, [2, 2.0, -1], [2.5, True, "2", None, float("inf")]),
        ({"type": ["integer", "null"]}, [2, None], ["x"]),
        ({"type": "number", "nullable": True}, [2, 2.5, None], [True, "x"]),
        ({"const": "all"}, ["all"], ["All", None]),
        ({"enum": [1, "a"]}, [1, "a"], [2, None]),
        ({"oneOf": [{"type": "integer"}, {"const": "all"}]}, [3, "all"], ["some", None]),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, [2.5], [3]),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, [2.5, 3], ["3"]),
        ({"allOf": [{"type": "string"}, {"enum": ["a", 1]}]}, ["a"], [1, "b"]),
        ({"type": "array", "items": {"type": "string"}}, [[], ["a"]], [[1], "a"]),
        ({"type": "string", "format": "date"}, ["2024-05-01", "soon"], ["0", "20240501", 0]),
        (DATED, [{"at": ["2024-05-01T10:00Z"]}, {"at": [], "until": "7"}], [{"at": ["-1.5"]}, {"at": ["1700000000"]}]),
        (PLACE, [{"name": "Orsa", "more": 1}], [{}, {"name": 1}]),
        ({**PLACE, "additionalProperties": False}, [{"name": "Orsa"}], [{"name": "Orsa", "more": 1}]),
        (ROOT, [{"at": {"name": "x"}}, {"deep": [[], [[]]]}], [{"at": {}}, {"at": "x"}, {"deep": [1]}]),
        (True, [1, None, {}], []),
        (False, [], [1, None]),
        ({"$ref": "https://elsewhere"}, [1, "x"], []),
        ({"format": ["date"]}, ["7"], []),
    ],
)
def test_what_a_schema_allows(schema: Any, allowed: list[Any], refused: list[Any]) -> None:
    assert [value for value in allowed if not allows(value, schema)] == []
    assert [value for value in refused if allows(value, schema)] == []


def tool(parameters: dict[str, Any]) -> Tool:
    function = {"name": "find", "description": "Find.", "parameters": parameters}
    return Tool("find", {"type": "function", "function": function}, lambda arguments: Call("find", repr(arguments)))


def test_a_tool_may_take_any_object() -> None:
    free = tool({"type": "object"})
    assert free.parameters == {} and free.called({"x": 1}) == Call("find", "{'x': 1}")
    assert free.called([]) == Invalid("find takes no arguments")
    assert tool({"type": "object", "properties": {}}).called({"x": 1}) == Invalid("find takes no arguments")
    assert tool({"type": "object", "properties": {}, "additionalProperties": True}).called({"x": 1}) == Call(
        "find", "{'x': 1}"
    )


def test_a_whole_number_reaches_the_tool_as_an_integer() -> None:
    assert tool(ROOT).called({"n": 2.0}) == Call("find", "{'n': 2}")
    assert tool({"properties": {"n": {"type": "integer", "nullable": True}}}).called({"n": None}) == Call(
        "find", "{'n': None}"
    )
    assert tool({"properties": {"n": {"type": "number"}}}).called({"n": 2.0}) == Call("find", "{'n': 2.0}")


def test_a_refusal_says_what_the_tool_takes() -> None:
    union = {"oneOf": [{"type": "integer"}, {"const": "all"}]}
    taken = tool({"$defs": {"P": PLACE}, "properties": {"at": {"$ref": "#/$defs/P"}, "n": union, "x": {}}})
    assert taken.called({}) == Call("find", "{}")
    assert taken.called({"n": "few"}) == Invalid('find takes at (object), n (integer or "all"), x (any value)')
    assert kind_of({"type": ["string", "null"]}) == "string or null"
    day = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}
    assert kind_of(day) == "an ISO date such as 2024-05-01 or null"


def test_a_reference_to_itself_ends() -> None:
    assert isinstance(tool({"properties": {"x": {"$ref": "#/properties/x"}}}).called({"x": 1}), Invalid)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("12", {"type": "string"}, "12"),
        ("12", {"type": "integer"}, 12),
        ("1.5", {"type": "number"}, 1.5),
        ("True", {"type": "boolean"}, True),
        ("true", {"type": "boolean"}, True),
        ("yes", {"type": "boolean"}, "yes"),
        ("None", {"type": "string", "nullable": True}, None),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("null", {"type": "string"}, "null"),
        ('"a"', {"type": "string"}, '"a"'),
        ('["a", 1]', {"type": "array"}, ["a", 1]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
        ("12", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 12),
        ("lake", {}, "lake"),
    ],
)
def test_a_value_without_quotes_is_of_the_kind_that_the_schema_names(text: str, schema: Any, value: Any) -> None:
    found = from_text(text, schema)
    assert found == value and type(found) is type(value)
