"""Tools of MCP servers (Model Context Protocol): `mcp:COMMAND` starts one, `mcp:https://…` is the address of one.

One session per server and process, opened when the tools are first asked for, so that a wrong address fails before the
first step. It lives in an event loop of its own; a call is a coroutine that waits for it, so time limits and errors are
those of all functions (`agent/calling.py`). A server that has died is started again for the next call. The call that
met its death is not repeated: the server may have done what it asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from functools import cache
from threading import Lock, Thread
from typing import Any

from holdfast.base.errors import ConfigError, MissingExtra
from holdfast.model.text.tokens import foreign

PREFIX = "mcp:"
_CONNECT_SECONDS = 60.0
"""For a server to start, which may first install itself, and to name its tools."""
_CLOSED = -32000
"""MCP's code of a connection that has ended."""


class ServerError(Exception):
    """What a server answered in place of a result."""


@cache
def server_of(name: str) -> Server:
    """The server of a name such as `mcp:python my_server.py`, connected. Raises `ConfigError`."""
    return Server(name)


class Server:
    """A server, and a session with it."""

    def __init__(self, name: str) -> None:
        self._name, self._address = name, name.removeprefix(PREFIX).strip()
        self._lock = Lock()
        self._session: Future[Any] | None = None
        """The SDK's client, connected."""
        self._end = asyncio.Event()
        """Of the current session."""
        try:
            listed = _in_loop(self._list()).result(_CONNECT_SECONDS)
        except TooLate:
            self._end.set()
            raise self._refused(f"has not answered within {_CONNECT_SECONDS:g} seconds") from None
        except ModuleNotFoundError:
            raise MissingExtra("mcp", "mcp") from None
        except BaseException as error:
            cause = str(error).replace(os.path.expandvars(self._address), self._address)  # which may have a key
            raise self._refused(f"cannot be reached ({type(error).__name__}: {cause})") from None
        if not listed:
            raise self._refused("has no tools")
        self.schemas: list[dict[str, Any]] = listed
        """A schema of each tool, as chat templates take it."""

    def function(self, tool: str) -> Callable[..., Awaitable[str]]:
        """A tool as a function of the user's: a coroutine of its arguments, which fails as the call does."""

        async def call(**arguments: Any) -> str:
            return await asyncio.wrap_future(_in_loop(self._call(tool, arguments)))

        return call

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(
            f"{self._name!r}: the MCP server {why}. After {PREFIX}, write the command that starts the server (only "
            "its shell variables are filled in), or its http address. Try it on its own first"
        )

    async def _list(self) -> list[dict[str, Any]]:
        client, listed, cursor = await self._client(), list[dict[str, Any]](), None
        while True:
            page = await client.list_tools(cursor=cursor)
            listed += [_schema(tool.model_dump(by_alias=True)) for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                return listed

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str:
        from mcp import MCPError

        client, end = await self._client(), self._end
        try:
            result = (await client.call_tool(tool, arguments)).model_dump(by_alias=True)
        except MCPError as error:
            if error.code == _CLOSED:
                end.set()
            raise ServerError(error.message) from error
        text = "\n".join(_text(block) for block in result["content"])
        if not text and result.get("structuredContent") is not None:
            text = json.dumps(result["structuredContent"], ensure_ascii=False)
        if result.get("isError"):
            raise ServerError(text)
        return text

    async def _client(self) -> Any:
        """The client of the current session, or of a new one."""
        with self._lock:
            if self._session is None or self._end.is_set():
                self._session, self._end = Future(), asyncio.Event()
                self._owner = asyncio.create_task(self._own(self._session, self._end))  # a reference keeps it alive
            session = self._session
        return await asyncio.wrap_future(session)

    async def _own(self, session: Future[Any], end: asyncio.Event) -> None:
        """Open a session, and close it in the same task, as the SDK must."""
        try:
            from mcp.client import Client
            from mcp.client.stdio import StdioServerParameters, stdio_client

            address = os.path.expandvars(self._address)
            if address.startswith(("http://", "https://")):
                server: Any = address
            else:
                command, *arguments = shlex.split(address)
                # As a function of the user's would have it: keys are in the environment.
                server = stdio_client(StdioServerParameters(command=command, args=arguments, env=dict(os.environ)))
            async with Client(server) as client:
                session.set_result(client)
                await end.wait()
        except BaseException as error:  # of a session that has ended, the SDK raises groups and `CancelledError`
            if not session.done():
                cause = _leaf(error)
                session.set_exception(cause if isinstance(cause, Exception) else ServerError(type(cause).__name__))
        finally:
            end.set()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name="mcp", daemon=True).start()
    return loop


def _in_loop(work: Any) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(work, _loop())


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    """What a model is told of a tool. Its words are of others, and no control tokens."""
    takes = _words_apart(tool["inputSchema"])
    any_object = {} if "properties" in takes else {"properties": {}, "additionalProperties": True}
    parameters = {"type": "object", **any_object, **takes}  # templates ask for the properties
    about = foreign(tool.get("description") or tool.get("title") or tool["name"])
    return {"type": "function", "function": {"name": tool["name"], "description": about, "parameters": parameters}}


def _words_apart(schema: Any, key: str = "") -> Any:
    """A schema with its descriptions marked as not ours."""
    if isinstance(schema, dict):
        return {name: _words_apart(part, name) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_words_apart(part) for part in schema]
    return foreign(schema) if key in ("description", "title") and isinstance(schema, str) else schema


def _text(block: dict[str, Any]) -> str:
    """A part of a result; what is no text is named."""
    resource = block.get("resource") or {}
    return str(block.get("text") or resource.get("text") or f"[{block['type']}]")


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
