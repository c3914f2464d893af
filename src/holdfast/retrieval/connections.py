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
from uuid import uuid4

from holdfast.errors import MissingExtra, RetrieverGarbled, RetrieverUnreachable
from holdfast.retrieval.wire import MOST_BYTES, REQUEST_ID

if TYPE_CHECKING:
    import h11

_REPEATED = "is there a proxy that repeats requests?"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent."""

    status: int
    headers: dict[str, str]
    """By name in lower case; of equal names the last."""
    body: bytes


class Connections:
    """POST to one address. Not safe to share between event loops.

    An answer is never taken for that of another question, even when a server or a proxy answers once too often:

    * The first answer on a connection is that of the first request, since nothing else was asked there.
    * A connection is used again only when its server sent the id of the request back. All further answers on it must
      do the same. Without the id, a late second answer to one request looks like the answer to the next.
    * Bytes behind an answer, at once or while the connection is idle, close the connection. When they are there
      already, the answer is not believed either: one of its ends is in the wrong place.
    """

    def __init__(self, url: str, *, token: str | None = None) -> None:
        """`url` as `holdfast.retrieval.wire.retrieve_url` returns it. Raises `MissingExtra`."""
        require_h11()
        parts = urlsplit(url)
        self._url, self._host = url, str(parts.hostname)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._target = parts.path + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Host": parts.netloc, "Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._idle: list[_Connection] = []

    async def post(self, body: bytes) -> Answer:
        """Send a JSON body. Raises `RetrieverUnreachable` when there is no connection, or it breaks, and
        `RetrieverGarbled` for an answer that may be another request's and for one of more than `MOST_BYTES`."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                connection.close()
                continue
            try:
                return await self._exchange(connection, body, first=False)
            except RetrieverUnreachable:
                if connection.heard:
                    raise
                # The server had closed it while it was idle: no word against a fresh one.
        return await self._exchange(await self._open(), body, first=True)

    def close(self) -> None:
        """Close what is idle."""
        while self._idle:
            self._idle.pop().close()

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            return (await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls))[1]
        except OSError as error:
            raise self._broken(error) from error

    async def _exchange(self, connection: _Connection, body: bytes, *, first: bool) -> Answer:
        """`first`: nothing was asked on this connection before."""
        import h11

        request = uuid4().hex
        try:
            answer = await connection.exchange(self._target, {**self._headers, REQUEST_ID: request}, body)
            answered = answer.headers.get(REQUEST_ID)
            if answered != request and not (first and answered is None):
                raise _Unbelievable(f"an answer (status {answer.status}) that may be another request's; {_REPEATED}")
        except (OSError, EOFError, h11.RemoteProtocolError) as error:
            connection.close()
            raise self._broken(error) from error
        except _Unbelievable as error:
            connection.close()
            raise RetrieverGarbled(f"{self._url} sent {error}") from None
        except BaseException:  # cancelled: what is half-read can never be used again
            connection.close()
            raise
        if connection.usable and answered == request:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    def _broken(self, error: Exception) -> RetrieverUnreachable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RetrieverUnreachable(f"{self._url} cannot be reached ({reason}); is the retriever running there?")


class _Connection(asyncio.Protocol):
    """One exchange after another."""

    def __init__(self) -> None:
        import h11

        self._http: h11.Connection = h11.Connection(our_role=h11.CLIENT)
        self._news = asyncio.Event()
        self._ended: Exception | None = None
        self._asked = False
        """Whether an exchange is under way."""
        self.heard = False
        """Whether the latest exchange has had a byte of answer."""

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self._transport.abort()
            return
        self.heard = True
        self._http.receive_data(data)
        self._news.set()

    def eof_received(self) -> None:
        self._end(EOFError("it closed the connection before its answer was whole"))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or EOFError("it closed the connection before its answer was whole"))

    def _end(self, error: Exception) -> None:
        self._ended = self._ended or error
        self._news.set()

    @property
    def usable(self) -> bool:
        import h11

        return self._http.our_state is h11.IDLE and self._ended is None and not self._transport.is_closing()

    async def exchange(self, target: str, headers: dict[str, str], body: bytes) -> Answer:
        import h11

        self._asked, self.heard = True, False
        length = {"Content-Length": str(len(body))}
        request = h11.Request(method="POST", target=target, headers=list({**headers, **length}.items()))
        for sent in (request, h11.Data(data=body), h11.EndOfMessage()):
            self._transport.write(self._http.send(sent) or b"")
        status, received = 0, bytearray()
        named: dict[str, str] = {}
        while True:
            event: Any = self._http.next_event()
            if event is h11.NEED_DATA:
                await self._more()
            elif isinstance(event, h11.Response):
                status = event.status_code
                named = {name.decode(): value.decode("latin-1") for name, value in event.headers}
            elif isinstance(event, h11.Data):
                received += event.data
                if len(received) > MOST_BYTES:
                    raise _Unbelievable(
                        f"an answer of more than {MOST_BYTES >> 20} MiB; ask for fewer passages at once"
                    )
            elif isinstance(event, h11.EndOfMessage):
                break
        surplus, _ = self._http.trailing_data
        if surplus:
            raise _Unbelievable(f"more than one answer to a request; {_REPEATED}")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        self._asked = False
        return Answer(status, named, bytes(received))

    async def _more(self) -> None:
        """Wait for bytes, or for the end where that may complete an answer."""
        import h11

        if self._ended is None:
            await self._news.wait()
            self._news.clear()
        elif (
            isinstance(self._ended, EOFError)
            and self._http.their_state is h11.SEND_BODY
            and not self._http.trailing_data[1]  # h11 does not know yet
        ):
            self._http.receive_data(b"")
        else:
            raise self._ended

    def close(self) -> None:
        """At once: nothing is waited for."""
        self._transport.abort()


class _Unbelievable(Exception):
    """What a server sent in place of one answer."""


def require_h11() -> None:
    """Raises `MissingExtra`."""
    try:
        import h11  # noqa: F401
    except ImportError:
        raise MissingExtra("h11", "train") from None
