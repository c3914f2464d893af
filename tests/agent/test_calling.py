"""Functions of the user as tools: what they do costs a turn at most, and what no model can call is refused."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast.agent.agent import Task, run_rollouts
from holdfast.agent.calling import CallQueue, _late, begin, tools_named
from holdfast.agent.metrics.rollouts import rollout_metrics
from holdfast.agent.protocol import render_prompt
from holdfast.agent.tools import NATIVE, ToolProtocol
from holdfast.agent.trajectory import Call, Group, Invalid, Status
from holdfast.base.errors import ConfigError
from holdfast.loading import load_protocol
from holdfast.model.text.tokens import decode
from holdfast.recipe import load
from holdfast.recipe.config import code_errors
from holdfast.retrieval.types import NoPassages

from ..loopback import Asked, Reply, serving
from ..waiting import wait_for
from .test_tools import Ended, call

RELEASE = threading.Event()


def tool(kind: Literal["sum", "raise", "exit", "hang", "long", "nan", "bytes", "list", "half"], x: float = 1) -> Any:
    """Do something.

    Args:
        kind: What to do.
        x: A number.
    """
    match kind:
        case "raise":
            raise KeyError("no such\nkey")
        case "exit":
            raise SystemExit(3)
        case "hang":
            RELEASE.wait(60)
    long = "x" * 10_000_000
    results = {"long": long, "nan": float("nan"), "bytes": b"x", "list": [1, None, "ä"], "half": "\ud800"}
    return results.get(kind, x + 1)


async def slow(seconds: float | None) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds or 0)
    return "done"


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Trip(BaseModel):
    """Where to."""

    town: str
    nights: int = Field(1, ge=1)
    by: Literal["train", "ship"] = "train"


@dataclass
class Booked:
    what: Any
    cost: Decimal = Decimal("2.5")


def book(trip: Trip, day: datetime.date, size: Size = Size.SMALL, more: list[Trip] | None = None) -> Any:
    """Book a trip.

    Args:
        trip: Where to.
        day: When.
        size: Of the room.
        more: Trips after it.
    """
    return Booked([trip, day.isocalendar().week, size.name, {trip.town for trip in more or ()}])


class Office:
    def __init__(self, town: str) -> None:
        self.town = town

    def opened(self, year: int) -> str:
        """Say when.

        Args:
            year: The year.
        """
        return f"{self.town} {year + 1}"


opened = Office("Orsa").opened


@cache
def asked_once(name: str) -> str:
    """Look it up.

    Args:
        name: What.
    """
    return name.upper()


class Diary:
    @cache  # noqa: B019
    def written(self, day: datetime.date) -> str:
        """Look up a day.

        Args:
            day: Which.
        """
        return f"{day:%j}"


written = Diary().written


@cache
def weekday(day: datetime.date) -> str:
    """Say which day of the week it is.

    Args:
        day: Which.
    """
    return f"{day:%a}"


(TOOL,), (SLOW,) = tools_named(f"{__name__}:tool"), tools_named(f"{__name__}:slow")


@pytest.mark.parametrize(
    ("kind", "text", "failed"),
    [
        ("sum", "2", False),
        ("list", '[1, null, "ä"]', False),
        ("long", "x" * 50_000, False),
        ("half", "?", False),
        ("raise", "Error: KeyError: 'no such\\nkey'", True),
        ("exit", "Error: SystemExit: 3", True),
        ("nan", "Error: ValueError: Out of range float values", True),
        ("bytes", "Error: TypeError: Object of type bytes", True),
        ("hang", "Error: tool has returned nothing within 0.3 seconds", True),
    ],
)
def test_whatever_a_function_does_the_model_reads_a_text(kind: str, text: str, failed: bool) -> None:
    seconds = 0.3 if kind == "hang" else 60.0
    result = begin(TOOL, json.dumps({"kind": kind, "x": 1}), timeout=seconds).result(timeout=120)
    assert result.text.startswith(text) and len(result.text) <= 50_000 and result.failed is failed


@pytest.mark.parametrize(
    "arguments",
    [None, [], {}, {"kind": "fly"}, {"kind": "sum", "x": "1"}, {"kind": "sum", "x": True}, {"kind": "sum", "y": 1}],
)
def test_arguments_that_the_schema_does_not_allow(arguments: Any) -> None:
    assert isinstance(TOOL.called(arguments), Invalid)
    assert isinstance(TOOL.called({"kind": "sum", "x": float("inf")}), Invalid)
    assert TOOL.called({"kind": "sum", "x": 2}) == Call("tool", '{"kind": "sum", "x": 2}')
    assert SLOW.called({"seconds": None}) == Call("slow", '{"seconds": null}')


def tool_of(name: str) -> Any:
    (tool,) = tools_named(f"{__name__}:{name}")
    return tool


def test_arguments_are_what_the_annotations_say_and_results_what_json_can() -> None:
    tool = tool_of("book")
    assert tool.parameters["day"] == {"type": "string", "format": "date", "description": "When."}
    assert tool.parameters["size"]["description"] == "Of the room." and "title" not in json.dumps(tool.schema)
    trip = {"town": "Mora", "nights": 2}
    written = {"trip": trip, "day": "2024-01-09", "size": "large", "more": [trip]}
    call = tool.called(written)
    assert isinstance(call, Call) and json.loads(call.arguments) == written
    result = begin(tool, call.arguments, 60).result()
    whole = {**trip, "by": "train"}
    assert json.loads(result.text) == {"what": [whole, 2, "LARGE", ["Mora"]], "cost": "2.5"} and not result.failed


@pytest.mark.parametrize(
    "wrong", [{"trip": {"nights": 1}}, {"trip": {"town": "Mora", "by": "air"}}, {"trip": "Mora"}, {"size": "huge"}]
)
def test_parts_that_the_schema_of_a_model_does_not_allow_are_a_wrong_call(wrong: dict[str, Any]) -> None:
    right = {"trip": {"town": "Mora"}, "day": "2024-01-09"}
    assert isinstance(tool_of("book").called(right), Call)
    assert isinstance(tool_of("book").called(right | wrong), Invalid)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"day": "soon"}, "day: Input should be a valid date"),
        ({"trip": {"town": "Mora", "nights": 0}}, "trip.nights: "),
    ],
)
def test_what_an_annotation_refuses_is_told_by_its_part(wrong: dict[str, Any], why: str) -> None:
    arguments = {"trip": {"town": "Mora"}, "day": "2024-01-09"} | wrong
    result = begin(tool_of("book"), json.dumps(arguments), 60).result()
    assert result.failed and why in result.text and "\n" not in result.text


def test_methods_and_cached_functions_are_tools() -> None:
    assert begin(tool_of("opened"), '{"year": 1900}', 60).result().text == "Orsa 1901"
    assert begin(tool_of("asked_once"), '{"name": "x"}', 60).result().text == "X"
    for name, text in (("weekday", "Thu"), ("written", "032")):
        assert tool_of(name).parameters == {"day": {"type": "string", "format": "date", "description": "Which."}}
        assert begin(tool_of(name), '{"day": "2024-02-01"}', 60).result().text == text


def test_a_date_that_is_a_number_is_a_wrong_call() -> None:
    """pydantic would read seconds since 1970."""
    taken = Invalid("weekday takes day (an ISO date such as 2024-05-01)")
    assert [tool_of("weekday").called({"day": day}) for day in ("0", "1706745600", 0)] == [taken] * 3


def test_calls_that_hang_do_not_pile_up_or_hold_others_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.calling._MAX_LATE", 3)
    RELEASE.set()
    wait_for(lambda: not any(thread.is_alive() for thread in _late["tool"]), minutes=1)
    RELEASE.clear()
    queue = CallQueue([TOOL, SLOW], timeout=2)
    calls = [(str(i), Call("tool", '{"kind": "hang"}')) for i in range(3)] + [("s", Call("slow", '{"seconds": 9}'))]
    queue.submit(calls)
    queue.submit([*calls, ("b", Call("tool", '{"kind": "sum"}'))])
    wait(queue.pending)
    found = {name: result for (name, _), result in queue.poll()}
    assert found.pop("b").text == "2" and len(found) == 4
    assert all(result.failed and result.seconds < 9 for result in found.values())
    assert "3 earlier calls of it still run" in begin(TOOL, '{"kind": "sum"}', 1).result().text
    RELEASE.set()


def test_a_rollout_without_search_calls_functions_and_answers(speaker: Callable[[str], Any]) -> None:
    tokenizer = speaker("hermes")
    protocol = replace(NATIVE, tools=(f"{__name__}:tool", f"{__name__}:slow"), max_turns=7, max_total_tokens=10_000)
    asked = ['{"kind": "sum", "x": 41}', '{"kind": "raise"}', '{"kind": "long"}', '{"kind": 3}']
    turns = [*(call("tool", arguments) for arguments in asked), call("slow", '{"seconds": 0}'), "42"]
    policy = Ended(tokenizer, {"a": list(turns), "b": list(turns)})
    prompt = tuple(render_prompt("Who?", protocol, tokenizer))
    tasks = [Task(id=name, example_id="q", prompt=prompt, seed=0) for name in "ab"]
    done, other = run_rollouts(tasks, policy=policy, retriever=NoPassages(), protocol=protocol, tokenizer=tokenizer)
    assert (done.status, done.answer, done.searches) == (Status.OK, "42", 0)
    seen = [turn.observation_text for turn in done.turns]
    assert [seen[0], seen[1], seen[3], seen[4]] == [
        "42",
        "Error: KeyError: 'no such\\nkey'",
        NATIVE.invalid_note,
        "done",
    ]
    assert done.turns[2].observation_truncated and len(done.turns[2].observation) <= protocol.max_observation_tokens
    assert done.token_ids == other.token_ids
    scored = [replace(t, reward=1.0, reward_parts={"em": 1.0, "f1": 1.0}) for t in (done, other)]
    metrics = rollout_metrics([Group("q", tuple(scored))])
    assert (metrics["tools/tool/calls"], metrics["tools/slow/calls"]) == (3, 1)
    assert metrics["tools/tool/errors"] == pytest.approx(1 / 3) and 0 <= metrics["tools/slow/seconds"] < 5


MODULES = {
    "no docstring": ("def f(x: str) -> str:\n    return x", "line 1) does not say enough", "docstring"),
    "no annotation": ('\n\ndef f(x):\n    """F.\n\n    Args:\n        x: X.\n    """', "line 3)", "annotation"),
    "not described": ('def f(x: str) -> str:\n    """F."""\n    return x', "line 1)", "for the argument 'x'"),
    "a class": ("class f: ...", "is not a function", "of type type"),
    "a type that nothing describes": (
        'class T: ...\n\n\ndef f(x: T):\n    """F.\n\n    Args:\n        x: X.\n    """',
        "line 4)",
        "T",
    ),
    "stars": ('def f(*x: str) -> str:\n    """F."""\n    return ""', "line 1)", "*x"),
    "fails": ("import json\njson.loads('x')\ndef f(): ...", ", line 2. Fix that line", "JSONDecodeError"),
    "no syntax": ("x = 1\ndef f(:", ", line 2. Fix that line", "SyntaxError"),
}


@pytest.mark.parametrize("name", MODULES)
def test_what_no_model_can_call_is_refused_with_file_and_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, where, why = MODULES[name]
    module = f"bad_tools_{list(MODULES).index(name)}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as error:
        tools_named(f"{module}:f")
    text = str(error.value)
    assert where in text and why in text and module in text


# ---- the guide to tools of one's own, as it is written


PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "own-tools.md").read_text(encoding="utf-8")


def rates(asked: Asked) -> Reply:
    return 200 if asked.path == "/rate?from=USD&to=EUR" else 404, {"rate": 0.85}


def test_the_guide_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaker: Callable[[str], Any]) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for language, name in (("python", "my_tools.py"), ("toml", "my.toml")):
        block, *_ = re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)
        (tmp_path / name).write_text(block)
    recipe = load(tmp_path / "my.toml")
    assert recipe.run.code == str(tmp_path) and list(code_errors(recipe)) == []
    protocol = load_protocol(recipe)
    assert isinstance(protocol, ToolProtocol) and protocol.tool_timeout == 10
    tokenizer = speaker("hermes")
    prompt = decode(tokenizer, render_prompt("Who?", protocol, tokenizer))
    assert "Compute an arithmetic expression." in prompt and "exchange_rate" in prompt

    def called(name: str, **arguments: str) -> str:
        return begin(protocol.by_name[name], json.dumps(arguments), protocol.tool_timeout).result().text

    assert called("calculator", expression="400 * (12.5 / 100)") == "50.0"
    assert called("calculator", expression="9 ** 9").startswith("Error: ValueError: 9 ** 9 is not arithmetic")
    with serving(rates) as url:
        monkeypatch.setenv("RATES_URL", url)
        assert called("exchange_rate", base="USD", target="EUR") == "1 USD is 0.85 EUR"
        assert called("exchange_rate", base="USD", target="x") == "Error: HTTPError: HTTP Error 404: Not Found"
