"""Kept connections to one address, for many requests at a time.

A plain HTTP/1.1 client over h11, and not a general one, for the sake of what a retriever under load does to it: an
attempt is cancelled when its time is up, wherever it stands, and its connection is then closed and forgotten. Pools of
general clients leave cancelled requests behind, until none is free (docs/decisions.md).
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import MissingExtra, RetrieverUnreachable

if TYPE_CHECKING:
    import h11

_PART = 1 << 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent."""

    status: int
    headers: dict[str, str]
    """By name in lower case; of equal names the last."""
    body: bytes


class Connections:
    """POST to one address. Not safe to share between event loops."""

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """`url` as `holdfast.retrieval.wire.retrieve_url` returns it. Raises `MissingExtra`."""
        require_h11()
        parts = urlsplit(url)
        self._url, self._host = url, str(parts.hostname)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: list[_Connection] = []

    async def post(self, body: bytes) -> Answer:
        """Send a JSON body. Raises `RetrieverUnreachable` when there is no connection, or it breaks."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                connection.close()
                continue
            try:
                return await self._exchange(connection, body)
            except RetrieverUnreachable:
                if connection.heard:
                    raise
                # The server had closed it while it was idle: no word against a fresh one.
        return await self._exchange(await self._open(), body)

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> _Connection:
        try:
            return _Connection(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))
        except OSError as error:
            raise self._broken(error) from error

    async def _exchange(self, connection: _Connection, body: bytes) -> Answer:
        import h11

        try:
            answer = await connection.exchange(self._target, self._headers, body)
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            connection.close()
            raise self._broken(error) from error
        except BaseException:  # cancelled: what is half-read can never be used again
            connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _broken(self, error: Exception) -> RetrieverUnreachable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RetrieverUnreachable(f"{self._url} cannot be reached ({reason}); is the retriever running there?")


class _Connection:
    """One exchange after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._reader, self._writer = reader, writer
        self._http: h11.Connection = h11.Connection(our_role=h11.CLIENT)
        self.heard = False
        """Whether the exchange under way has had a byte of answer."""

    @property
    def usable(self) -> bool:
        import h11

        return self._http.our_state is h11.IDLE and not self._reader.at_eof() and not self._writer.is_closing()

    async def exchange(self, target: str, headers: dict[str, str], body: bytes) -> Answer:
        import h11

        self.heard = False
        length = {"Content-Length": str(len(body))}
        request = h11.Request(method="POST", target=target, headers=list({**headers, **length}.items()))
        for sent in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(sent) or b"")
        await self._writer.drain()
        status, received = 0, bytearray()
        named: dict[str, str] = {}
        while True:
            event: Any = self._http.next_event()
            if event is h11.NEED_DATA:
                part = await self._reader.read(_PART)
                self.heard = self.heard or bool(part)
                if not part and self._http.their_state is not h11.SEND_BODY:
                    raise EOFError("it closed the connection without an answer")
                self._http.receive_data(part)
            elif isinstance(event, h11.Response):
                status = event.status_code
                named = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                received += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("it closed the connection without an answer")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        return Answer(status, named, bytes(received))

    def close(self) -> None:
        """At once: nothing is waited for."""
        self._writer.transport.abort()


def require_h11() -> None:
    """Raises `MissingExtra`."""
    try:
        import h11  # noqa: F401
    except ImportError:
        raise MissingExtra("h11", "train") from None
