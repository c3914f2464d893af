"""HTTP as servers write it, byte for byte: what counts as an answer, what does not, and one connection per attempt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.base.errors import (
    RetrievalError,
    RetrieverGarbled,
    RetrieverRefused,
    RetrieverTimeout,
    RetrieverUnreachable,
)
from holdfast.retrieval import client as module
from holdfast.retrieval.client import AsyncHTTPRetriever

BODY = b'{"result": [["a\\nb"]]}'
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
ECHO = OK.replace(b"\r\n", b"\r\nHoldfast-Request: ID\r\n", 1)
Use = Callable[[AsyncHTTPRetriever], Awaitable[Any]]


def against(answers: list[bytes | None], use: Use, **settings: Any) -> tuple[Any, list[int]]:
    """What `use` returns against a server that sends these bytes, one after each request; None closes after what was
    sent before. `Holdfast-Request: ID` becomes the id of the request. Also, per request, the number of its
    connection."""
    connection_of_request: list[int] = []
    heads: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        connection = connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                connection_of_request.append(connection)
                request_id = head.lower().split(b"holdfast-request: ")[1].split(b"\r\n")[0]
                answer = answers.pop(0)
                writer.write((answer or b"").replace(b"Request: ID", b"Request: " + request_id))
                await writer.drain()
                if answers[:1] == [None]:
                    answers.pop(0)
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()

    async def main() -> Any:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = AsyncHTTPRetriever(address, **{"retries": 0, "backoff": 0.001, **settings})
        try:
            return await asyncio.wait_for(use(client), 10)
        finally:
            server.close()
            await asyncio.sleep(0.01)  # its connections end
            assert all(head.startswith(b"POST /retrieve HTTP/1.1\r\n") for head in heads)

    return asyncio.run(main()), connection_of_request


async def once(client: AsyncHTTPRetriever) -> str:
    ((hit,),) = await client.search(["q"], 1)
    return hit.document.contents


async def twice(client: AsyncHTTPRetriever) -> list[str]:
    return [await once(client), await once(client)]


@pytest.mark.parametrize(
    "answer",
    [
        [OK],
        [ECHO],
        [
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
            % (BODY[:2], len(BODY) - 2, BODY[2:])
        ],
        [b"HTTP/1.0 200 OK\r\n\r\n" + BODY, None],
        [b"HTTP/1.1 100 Continue\r\n\r\n" + OK],
    ],
)
def test_what_is_an_answer(answer: list[bytes | None]) -> None:
    assert against(answer, once)[0] == "a\nb"


@pytest.mark.parametrize(
    "answer",
    [
        [b"", None],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", None],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha", None],
        [b"SSH-2.0-OpenSSH\r\n\r\n", None],
        [b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, None],
        [b"HTTP/1.1 200", None],
    ],
)
def test_what_is_not_an_answer(answer: list[bytes | None]) -> None:
    with pytest.raises(RetrieverUnreachable, match=r"http://127.*/retrieve cannot be reached \(.+\); is the retriever"):
        against(answer, once)


@pytest.mark.parametrize("answer", [OK, ECHO])
@pytest.mark.parametrize("surplus", [b"", b"x", b"\r\n", OK, b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"])
def test_every_attempt_has_its_own_connection(answer: bytes, surplus: bytes) -> None:
    found, connections = against([answer + surplus, OK], twice)
    assert found == ["a\nb", "a\nb"]
    assert connections == [1, 2]


def test_a_content_length_that_is_too_small_is_not_an_answer() -> None:
    short = OK.replace(b"Length: %d" % len(BODY), b"Length: %d" % (len(BODY) - 3))
    with pytest.raises(RetrieverGarbled, match="not JSON"):
        against([short], once)


def test_the_answer_to_another_request_is_tried_again() -> None:
    other = ECHO.replace(b"ID", b"0123")
    assert against([other, ECHO], once, retries=1) == ("a\nb", [1, 2])
    with pytest.raises(RetrieverGarbled, match=r"status 200\) of another request"):
        against([other, other], once, retries=1)


def test_an_answer_that_is_too_long_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2**20 + 1)  # nobody closes: without a limit this waits for ever

    async def refused(client: AsyncHTTPRetriever) -> RetrievalError:
        with pytest.raises(RetrieverRefused, match="more than 1 MiB; ask for fewer passages") as caught:
            await once(client)
        assert client.stats.retries == 0
        return caught.value

    error, connections = against([endless, OK], refused, retries=2)
    assert error.status == 200 and connections == [1]
    body = json.dumps({"result": [["x" * (2**20 - 20)]]}).encode()
    body += b" " * (2**20 - len(body))
    assert len(against([b"HTTP/1.1 200 OK\r\n\r\n" + body, None], once)[0]) == 2**20 - 20


def test_a_cancelled_attempt_takes_its_connection_with_it() -> None:
    async def use(client: AsyncHTTPRetriever) -> str:
        with pytest.raises(RetrieverTimeout):
            await once(client)
        return await once(client)

    late = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nlate"
    assert against([late, OK], use, timeout=0.2) == ("a\nb", [1, 2])


def test_many_at_once_get_their_own_answers() -> None:
    async def use(client: AsyncHTTPRetriever) -> int:
        return len(await asyncio.gather(*(once(client) for _ in range(50))))

    count, connections = against([OK] * 50, use)
    assert count == 50
    assert len(set(connections)) == 50
