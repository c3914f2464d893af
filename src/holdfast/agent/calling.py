"""The tools that a model calls: what it is told of them, what a call does, and the functions of the user that answer.

A tool is `search`, `read`, the import path of a function, `module:function`, whose annotations and docstring are its
description, or one of an MCP server (`agent/mcp.py`). It runs in a thread, and whatever it does costs the rollout one
turn: of an exception, of a result that is no text, and of one that does not come in time the model is told.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Thread, Timer
from typing import Any

from holdfast.agent import mcp
from holdfast.agent.functions import plain_function, schema_of, sentence_of, taking_json, text_of
from holdfast.agent.schema import allows, kind_of
from holdfast.agent.trajectory import Action, Call, Invalid, Read, Search, ToolResult
from holdfast.base.errors import ConfigError
from holdfast.base.importing import import_named, is_import_path
from holdfast.base.section import as_toml
from holdfast.base.stored import bounded

CALL = "call"
"""The name by which agents call a `CallQueue`."""
_MAX_CHARACTERS = 50_000
"""Of a result; the observation is cut to its tokens after that."""
_MAX_AT_ONCE = 32
"""Calls that run at once in a queue."""
_MAX_LATE = 64
"""Threads of one function that go on after their time. Nothing can end a thread, so no further one is started."""
_SOON = 0.1
"""Seconds that a queue waits for calls it has begun. Functions that are quicker answer in the order of the calls, so
runs with them repeat."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the model is told of it."""

    name: str
    schema: dict[str, Any]
    """Its JSON schema, as chat templates take it."""
    act: Callable[[dict[str, Any]], Action]
    """What a call with these arguments does."""
    function: Callable[..., Any] | None = None
    """The user's own function, or one that asks an MCP server."""

    @property
    def description(self) -> str:
        """What the tool does, for the model."""
        return str(self.schema["function"]["description"])

    @property
    def parameters(self) -> dict[str, Any]:
        """Schema of each parameter, by name."""
        properties: dict[str, Any] = self.takes.get("properties", {})
        return properties

    @property
    def takes(self) -> dict[str, Any]:
        """Schema of all arguments together, an object."""
        schema: dict[str, Any] = self.schema["function"]["parameters"]
        return schema

    def called(self, arguments: Any) -> Action:
        """What a call does; `arguments` is what the model wrote. `Invalid` for arguments that the schema does not
        allow."""
        try:
            fits = isinstance(arguments, dict) and self._has(arguments) and allows(arguments, self.takes)
        except RecursionError:
            fits = False
        if not fits:
            taken = ", ".join(f"{name} ({kind_of(schema, self.takes)})" for name, schema in self.parameters.items())
            return Invalid(f"{self.name} takes {taken or 'no arguments'}")
        whole = {name for name, schema in self.parameters.items() if kind_of(schema, self.takes) == "integer"}
        return self.act({k: int(v) if k in whole and isinstance(v, float) else v for k, v in arguments.items()})

    def _has(self, arguments: dict[str, Any]) -> bool:
        """Whether it has parameters of these names: one that it does not have is the model's mistake, even though JSON
        schema lets it pass."""
        return (
            "properties" not in self.takes
            or bool(self.takes.get("additionalProperties"))
            or set(arguments) <= set(self.parameters)
        )


def _with_text(name: str, description: str, parameter: str, about: str, action: Callable[[str], Action]) -> Tool:
    """A tool with one argument, a text that is not empty."""

    def act(arguments: dict[str, Any]) -> Action:
        # An escape of half a character is valid JSON, but no text that can be sent.
        text = arguments[parameter].encode("utf-8", "replace").decode("utf-8").strip()
        return action(text) if text else Invalid(f"empty {parameter}")

    properties = {parameter: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    function = {"name": name, "description": description, "parameters": parameters}
    return Tool(name, {"type": "function", "function": function}, act)


SEARCH = _with_text(
    "search", "Search for passages. Returns the best ones, perhaps shortened.", "query", "What to look for.", Search
)
READ = _with_text(
    "read",
    "Read one passage that a search has returned, whole.",
    "id",
    "The id of the passage: what stands between Doc and the title.",
    Read,
)
TOOLS = {tool.name: tool for tool in (SEARCH, READ)}


def problem_of(tools: Sequence[str]) -> str | None:
    """Why an agent cannot have these tools, as far as their names show."""
    shown = as_toml(tools)
    own = [name for name in tools if not name.startswith(mcp.PREFIX)]
    if unknown := [name for name in own if name not in TOOLS and not is_import_path(name)]:
        return (
            f"tools = {shown}, but there is no tool {unknown[0]!r}; there are {' and '.join(TOOLS)}, functions of "
            "your own by import path, such as my_tools:calculator, and MCP servers, such as mcp:python my_server.py"
        )
    if not tools:
        return "tools = [], so the agent has none; name one, or set protocol.preset = 'r1'"
    names = [name.rpartition(":")[2] for name in own]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"tools = {shown} has two tools with the name {twice[0]}, so a call would be ambiguous; leave one out"
    if "read" in tools and "search" not in tools:
        return f"tools = {shown} without 'search', which finds what 'read' reads; add it"
    return None


def tools_by_name(names: Iterable[str]) -> dict[str, Tool]:
    """The tools of these names, by the names that the model calls. Raises `ConfigError` as `tools_named` does, and for
    two of one name."""
    tools: dict[str, Tool] = {}
    for name in names:
        for tool in tools_named(name):
            if tool.name in tools:
                raise ConfigError(
                    f"{name!r} has a tool with the name {tool.name!r}, and so has another of protocol.tools, so a call "
                    "would be ambiguous. Leave one out"
                )
            tools[tool.name] = tool
    return tools


@cache
def tools_named(name: str) -> tuple[Tool, ...]:
    """The tool of a name in `TOOLS`, that of the function at an import path, which is imported, or all tools of an MCP
    server, which is started.

    Raises `ConfigError` for what cannot be imported or reached, and for a function that says too little of itself to be
    called by a model. The sentence names file and line.
    """
    if name in TOOLS:
        return (TOOLS[name],)
    if not name.startswith(mcp.PREFIX):
        return (_own_tool(name),)
    server = mcp.server_of(name)
    tools = [_function_tool(schema, server.function(schema["function"]["name"])) for schema in server.schemas]
    if unfit := [tool.name for tool in tools if not re.fullmatch(r"[\w.-]+", tool.name)]:
        raise ConfigError(f"{name!r} has a tool with the name {unfit[0]!r}; names have letters, digits, _, - and .")
    return tuple(tools)


def _own_tool(name: str) -> Tool:
    """The function at an import path."""
    function = import_named(name)
    plain = plain_function(function)
    if plain is None:
        raise ConfigError(
            f"{name!r} is not a function: it is of type {type(function).__name__}. Name one that `def` defines"
        )
    where = f"{name!r} ({plain.__code__.co_filename}, line {plain.__code__.co_firstlineno})"
    unnamed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in unnamed:
            raise ConfigError(
                f"{where} has the parameter {parameter}, but a model passes every argument by name; write out the "
                "parameters"
            )
    try:
        schema = schema_of(function)
        takes_json = taking_json(function)
    except Exception as error:  # several kinds, also those of an annotation that cannot be evaluated
        raise ConfigError(
            f"{where} does not say enough for a model to call it ({sentence_of(error)}). Give each parameter an "
            "annotation, and the function a docstring with a line for each parameter under `Args:`"
        ) from error
    schema["function"]["name"] = name.rpartition(":")[2]
    return _function_tool(schema, takes_json)


def _function_tool(schema: dict[str, Any], function: Callable[..., Any]) -> Tool:
    """A tool whose calls a function answers."""
    name = schema["function"]["name"]

    def act(arguments: dict[str, Any]) -> Action:
        try:
            written = json.dumps(bounded(arguments), ensure_ascii=False, allow_nan=False)
        except ValueError as error:
            return Invalid(f"{name}: {error}")
        return Call(name, written.encode("utf-8", "replace").decode("utf-8"))

    return Tool(name, schema, act, function)


# ---- a call of a function

_late: defaultdict[str, list[Thread]] = defaultdict(list)
"""Name of a tool -> threads whose time is up."""


def begin(tool: Tool, arguments: str, timeout: float) -> Future[ToolResult]:
    """Call the function of a tool in a thread of its own. The future never fails, and has a result within `timeout`
    seconds; the end of the process does not wait for the thread."""
    future: Future[ToolResult] = Future()
    started = time.perf_counter()

    def settle(text: str, failed: bool) -> None:
        with suppress(InvalidStateError):  # the other one was first
            future.set_result(ToolResult(text, failed, time.perf_counter() - started))

    def expire() -> None:
        _late[tool.name].append(thread)
        settle(f"Error: {tool.name} has returned nothing within {timeout:g} seconds", True)

    late = _late[tool.name] = [thread for thread in _late[tool.name] if thread.is_alive()]
    if len(late) >= _MAX_LATE:
        settle(f"Error: {tool.name} does not answer: {len(late)} earlier calls of it still run", True)
        return future
    thread = Thread(target=lambda: settle(*_answer(tool, arguments, timeout)), name=f"tool-{tool.name}", daemon=True)
    timer = Timer(timeout, expire)
    timer.daemon = True
    future.add_done_callback(lambda _: timer.cancel())
    timer.start()
    thread.start()
    return future


def _answer(tool: Tool, arguments: str, timeout: float) -> tuple[str, bool]:
    """What the model reads, and whether the call failed."""
    assert tool.function is not None
    try:
        result = tool.function(**json.loads(arguments))
        if inspect.iscoroutine(result):  # which can be cancelled, and then ends its thread
            result = asyncio.run(asyncio.wait_for(result, timeout + 1))
        text = text_of(result)
    except BaseException as error:  # whatever the user's code raises, `SystemExit` included; json's of NaN and of bytes
        return f"Error: {type(error).__name__}: {sentence_of(error)}", True
    return text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8"), False


class CallQueue:
    """The queue of the scheduler for functions: takes (rollout, `Call`) pairs and returns their results."""

    def __init__(self, tools: Iterable[Tool], timeout: float) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._timeout = timeout
        self._slow: set[str] = set()
        """Tools that once took longer than `_SOON`, for which nobody waits again."""
        self._waiting: dict[tuple[str, Call], None] = {}
        self._running: dict[tuple[str, Call], Future[ToolResult]] = {}

    @property
    def pending(self) -> Collection[Future[ToolResult]]:
        """Calls that run."""
        return self._running.values()

    def submit(self, arguments: Iterable[tuple[str, Call]]) -> None:
        """Begin those calls that are new; at most `_MAX_AT_ONCE` run at once."""
        self._waiting |= dict.fromkeys(argument for argument in arguments if argument not in self._running)
        begun = []
        for rollout, call in list(self._waiting)[: _MAX_AT_ONCE - len(self._running)]:
            del self._waiting[rollout, call]
            future = begin(self._tools[call.tool], call.arguments, self._timeout)
            self._running[rollout, call] = future
            begun += [] if call.tool in self._slow else [future]
        wait(begun, _SOON)

    def poll(self) -> list[tuple[tuple[str, Call], ToolResult]]:
        """Results that came since the last poll, in the order of the calls."""
        done = [(argument, future.result()) for argument, future in self._running.items() if future.done()]
        for argument, result in done:
            del self._running[argument]
            if result.seconds > _SOON:
                self._slow.add(argument[1].tool)
        return done
