"""uvicorn with bounds: how many connections are open, how long a request may take to arrive, and a stop that answers.

uvicorn alone waits forever for the rest of a request, and resets what waits to be read when it stops.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_CONNECTIONS = 4096
_FILES = 256  # handles
_RECEIVE = 60.0  # seconds from the beginning of a request to its end
_IDLE = 75  # seconds between requests, also for reading an answer: longer than clients keep a connection
_DRAIN = 60  # seconds after a stop for what was read
_LAST = 1.0  # seconds after a stop for what is on its way
_EVERY = 0.25  # seconds between two looks for connections whose time is over
_QUEUE = 2048  # connections that wait to be accepted


def most_connections() -> int:
    """Connections that may be open at once: `MAX_CONNECTIONS`, or as many as this process has handles for beside its
    files."""
    try:
        import resource

        handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # Windows
        handles = 512
    return MAX_CONNECTIONS if handles < 0 else min(MAX_CONNECTIONS, max(handles - _FILES, handles // 2))


class Connection(HttpToolsProtocol):
    """A connection that is dropped when a request on it takes too long to arrive, or an answer too long to be read.

    Above `most_connections`, the one whose time is over first gives way: whoever sends at once is served, however many
    others are silent.
    """

    until = math.inf
    """The loop's time at which it is dropped; infinite while a request is answered."""
    is_last = False
    """Whether the next answer is the last one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait(_RECEIVE)
        if len(self.connections) > most_connections():
            first: Any = min(self.connections, key=lambda connection: connection.until)  # type: ignore[union-attr]
            first.drop()

    def on_message_begin(self) -> None:
        """Wait for the rest of a request."""
        super().on_message_begin()
        self._wait(_RECEIVE)

    def on_headers_complete(self) -> None:
        """Tell the client if there is no further answer."""
        super().on_headers_complete()
        self.cycle.keep_alive &= not self.is_last

    def on_message_complete(self) -> None:
        """Wait for nothing, until the answer is sent."""
        super().on_message_complete()
        if not self.cycle.response_complete:  # as after a body that was too long
            self.until = math.inf

    def on_response_complete(self) -> None:
        """Wait until the answer is read and the next request begins."""
        super().on_response_complete()
        self._wait(_IDLE)

    def shutdown(self) -> None:
        """Answer one more request, if it is there or on its way."""
        self.is_last = True
        if self.cycle is None or self.cycle.response_complete:
            self._wait(_LAST)
        else:
            super().shutdown()

    def drop(self) -> None:
        """Close it, whatever is not sent."""
        self.until = math.inf
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        self.until = self.loop.time() + seconds


class Server(uvicorn.Server):
    """Serves an ASGI application on a bound socket, until SIGTERM or SIGINT; then answers all that has connected."""

    def __init__(self, app: Any, listener: socket.socket, on_ready: Callable[[], None]) -> None:
        self._listener, self._on_ready = listener, on_ready
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            log_level="warning",
            access_log=False,
            # So many are accepted before one of them can be closed.
            backlog=max(most_connections() // 12, 1),
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=_DRAIN,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self._listener.listen(_QUEUE)
        self._drop_late()
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept what has connected, then close the socket and wait for the last answers."""
        accepted = []
        try:
            while True:
                accepted.append(self._listener.accept()[0])
        except OSError:  # nothing waits, or there is no file handle left
            for server in self.servers:
                server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        for waiting in accepted:
            await loop.connect_accepted_socket(self._last_connection, waiting)
        await asyncio.sleep(0.05)  # until those are set up that the loop accepted
        await super().shutdown(sockets)

    def _drop_late(self) -> None:
        """Drop the connections whose time is over, now and again."""
        loop = asyncio.get_running_loop()
        for connection in list(self.server_state.connections):
            if isinstance(connection, Connection) and connection.until < loop.time():
                connection.drop()
        loop.call_later(_EVERY, self._drop_late)

    def _last_connection(self) -> Connection:
        connection = Connection(self.config, self.server_state, self.lifespan.state)
        connection.is_last = True
        return connection
