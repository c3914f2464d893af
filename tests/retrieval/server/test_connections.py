"""The bounds of connections, on real sockets: who sends at once is served, whoever else is silent, slow or leaving."""

from __future__ import annotations

import asyncio
import math
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.retrieval.server import connections
from holdfast.retrieval.server.app import make_app
from holdfast.retrieval.server.connections import Connection, Server, most_connections

BODY = b'{"query": "lake"}'
HEAD = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Connect = Callable[[], Awaitable[tuple[Reader, Writer]]]


@asynccontextmanager
async def serving(index: Any) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A server in this event loop, and its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready = asyncio.Event()
        server = Server(make_app(index), listener, ready.set)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        try:
            yield server, listener
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 60)


def run(test: Callable[[Server, socket.socket], Awaitable[None]], index: Any) -> None:
    async def main() -> None:
        async with serving(index) as (server, listener):
            await asyncio.wait_for(test(server, listener), 60)

    asyncio.run(main())


def client(listener: socket.socket, sent: bytes = b"") -> socket.socket:
    """Connected, and `sent`, without a word of the event loop: the server has seen nothing of it."""
    connection = socket.create_connection(listener.getsockname(), timeout=30)
    connection.sendall(sent)
    return connection


async def everything(connection: socket.socket) -> bytes:
    """What it receives until it is closed, also if it is reset."""
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /retrieve HT", HEAD, HEAD + BODY[:5], HEAD + BODY + HEAD + BODY[:5]])
def test_what_is_half_sent_is_dropped(index: Any, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(connections, "_RECEIVE", 0.1)
    monkeypatch.setattr(connections, "_IDLE", 0.1)

    async def test(server: Server, listener: socket.socket) -> None:
        answer = await everything(client(listener, sent))
        assert answer.count(b"200 OK") == (BODY in sent)

    run(test, index)


def test_a_search_may_take_as_long_as_it_does(index: Any) -> None:
    async def test(server: Server, listener: socket.socket) -> None:
        states: list[float] = []

        def note() -> None:
            (connection,) = server.server_state.connections
            assert isinstance(connection, Connection)
            states.append(connection.until)

        index.before = note
        connection = client(listener, HEAD + BODY)
        reader, writer = await asyncio.open_connection(sock=connection)
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        assert states == [math.inf]
        (held,) = server.server_state.connections
        assert isinstance(held, Connection) and held.until < math.inf  # until the next request
        writer.close()

    run(test, index)


def test_an_answer_before_the_end_of_the_body_leaves_a_bound(index: Any) -> None:
    async def test(server: Server, listener: socket.socket) -> None:
        head = HEAD.replace(b"%d" % len(BODY), b"%d" % (17 * 2**20))
        reader, writer = await asyncio.open_connection(sock=client(listener, head))
        writer.write(b"x" * 17 * 2**20)
        assert b" 413 " in await reader.readuntil(b"\r\n")
        await writer.drain()
        held = server.server_state.connections
        assert all(isinstance(connection, Connection) and connection.until < math.inf for connection in held)
        writer.close()

    run(test, index)


def test_silent_connections_give_way_to_one_that_sends(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 5)

    async def test(server: Server, listener: socket.socket) -> None:
        silent = [client(listener) for _ in range(20)]
        reader, writer = await asyncio.open_connection(sock=client(listener, HEAD + BODY))
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        assert len(server.server_state.connections) <= 5
        for connection in silent:
            connection.close()
        writer.close()

    run(test, index)


def test_where_all_are_busy_a_new_connection_is_dropped(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    searching, go = threading.Event(), threading.Event()

    def wait() -> None:
        searching.set()
        assert go.wait(30)

    index.before = wait

    async def test(server: Server, listener: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client(listener, HEAD + BODY))
        await asyncio.to_thread(searching.wait, 30)
        assert await everything(client(listener, HEAD + BODY)) == b""
        go.set()
        assert (await reader.readuntil(b"\r\n")) == b"HTTP/1.1 200 OK\r\n"
        writer.close()

    run(test, index)


@pytest.mark.parametrize(("handles", "most"), [(1024, 768), (256, 128), (10**6, 4096), (-1, 4096)])
def test_some_handles_are_for_files(monkeypatch: pytest.MonkeyPatch, handles: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (handles, handles))
    assert most_connections() == most


def test_a_stop_answers_whoever_has_connected(index: Any) -> None:
    """Those that were not accepted yet, those without a request before, and those that have had an answer."""

    async def test(server: Server, listener: socket.socket) -> None:
        address = listener.getsockname()
        reader, writer = await asyncio.open_connection(sock=client(listener, HEAD + BODY))
        await reader.readuntil(b"]}")
        fresh = client(listener)
        while len(server.server_state.connections) < 2:
            await asyncio.sleep(0.001)
        waiting = [client(listener, HEAD + BODY) for _ in range(30)]
        fresh.sendall(HEAD + BODY)
        writer.write(HEAD + BODY)
        await server.shutdown([listener])
        answers = [await everything(connection) for connection in (fresh, *waiting)]
        for answer in [await reader.read(), *answers]:
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"]]}")
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    run(test, index)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems count handles in other ways")
def test_more_silent_connections_than_handles_stop_nothing(index_folder: Path) -> None:
    serve = f"ulimit -n 128; exec '{sys.executable}' -m holdfast serve '{index_folder}' --port 0"
    process = subprocess.Popen(["bash", "-c", serve], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split()[0]
        host, port = address.removeprefix("http://").split(":")
        silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(300)]
        for i in range(10):
            answer = httpx.post(f"{address}/retrieve", json={"query": f"lake {i}"}, trust_env=False, timeout=30)
            assert answer.status_code == 200
        for connection in silent:
            connection.close()
    finally:
        process.kill()
        _, said = process.communicate()
    assert said == ""
