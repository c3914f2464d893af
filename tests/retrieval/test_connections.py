"""HTTP as servers speak it, byte for byte: what is an answer, what is not, and which connections are used again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.errors import RetrieverGarbled, RetrieverUnreachable
from holdfast.retrieval import connections as module
from holdfast.retrieval.connections import Answer, Connections

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
PROVEN = b"HTTP/1.1 200 OK\r\nHoldfast-Request: ID\r\nContent-Length: 2\r\n\r\n{}"
Talk = Callable[[Connections], Awaitable[Any]]


def against(answers: list[bytes | None], talk: Talk, path: str = "/retrieve") -> tuple[Any, list[int]]:
    """What `talk` returns against a server that sends these bytes, one after each request; None closes after what was
    sent before. `Holdfast-Request: ID` becomes the id of the request. Also, per request, the number of its
    connection."""
    used: list[int] = []
    heads: list[bytes] = []
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        own = connections
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head)
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                used.append(own)
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
        client = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}", token="secret")
        try:
            return await asyncio.wait_for(talk(client), 10)
        finally:
            client.close()
            server.close()
            await asyncio.sleep(0.01)  # its connections end
            assert all(head.startswith(f"POST {path} HTTP/1.1\r\n".encode()) for head in heads)
            assert all(b"authorization: bearer secret" in head.lower() for head in heads)

    return asyncio.run(main()), used


async def once(client: Connections) -> Answer:
    return await client.post(b"[]")


async def twice(client: Connections) -> list[Answer]:
    return [await client.post(b"[]"), await client.post(b"[1]")]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ([OK], b"{}"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n3\r\nabc\r\n0\r\n\r\n"], b"{}abc"),
        ([b"HTTP/1.0 200 OK\r\n\r\nuntil it closes", None], b"until it closes"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + OK], b"{}"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
)
def test_what_is_an_answer(answer: list[bytes | None], body: bytes) -> None:
    found, _ = against(answer, once)
    assert found.body == body


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
def test_what_is_none(answer: list[bytes | None]) -> None:
    with pytest.raises(RetrieverUnreachable, match=r"http://127.*/retrieve cannot be reached \(.+\); is the retriever"):
        against(answer, once)


def test_a_connection_is_used_again_by_a_server_that_sends_the_id_back() -> None:
    closing = PROVEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    assert against([PROVEN, PROVEN], twice)[1] == [1, 1]
    assert against([OK, OK], twice)[1] == [1, 2]
    assert against([closing, PROVEN], twice)[1] == [1, 2]


def test_one_that_the_server_closed_meanwhile_is_replaced_without_a_word() -> None:
    async def talk(client: Connections) -> list[int]:
        first = await client.post(b"[]")
        await asyncio.sleep(0.05)
        return [first.status, (await client.post(b"[]")).status]

    assert against([PROVEN, None, PROVEN], talk) == ([200, 200], [1, 2])
    # It closes only when the second request is there: that one is sent again.
    assert against([PROVEN, b"", None, PROVEN], twice)[1] == [1, 1, 2]
    # But what was begun to be answered is not asked twice.
    with pytest.raises(RetrieverUnreachable):
        against([PROVEN, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", None, PROVEN], twice)


@pytest.mark.parametrize("surplus", [b"x", b"\r\n", OK, b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"])
@pytest.mark.parametrize("answer", [OK, PROVEN])
def test_an_answer_with_bytes_behind_it_is_not_believed(answer: bytes, surplus: bytes) -> None:
    async def talk(client: Connections) -> bytes:
        with pytest.raises(RetrieverGarbled, match="more than one answer"):
            await client.post(b"[]")
        assert client._idle == []
        return (await client.post(b"[]")).body

    assert against([answer + surplus, PROVEN], talk) == (b"{}", [1, 2])


def test_a_connection_that_speaks_while_it_is_idle_is_not_used_again() -> None:
    async def main() -> list[int]:
        used: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = len(set(used)) + 1
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n[]")
                    used.append(own)
                    reply = PROVEN.replace(b"ID", head.split(b"holdfast-request: ")[1].split(b"\r\n")[0])
                    writer.write(reply)
                    await asyncio.sleep(0.02)
                    writer.write(reply)
            except (asyncio.IncompleteReadError, OSError):
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/retrieve")
        for _ in range(3):
            await client.post(b"[]")
            await asyncio.sleep(0.05)
        client.close()
        server.close()
        return used

    assert asyncio.run(main()) == [1, 2, 3]


def test_an_answer_with_the_id_of_another_request_is_not_believed() -> None:
    other = PROVEN.replace(b"ID", b"0123")
    with pytest.raises(RetrieverGarbled, match=r"may be another request's"):
        against([other], once)
    with pytest.raises(RetrieverGarbled, match=r"status 200\) that may be another request's"):
        against([PROVEN, OK], twice)  # behind a first answer, one without an id proves nothing


def test_an_answer_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 2**20)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (2**20 + 1)  # nobody closes: without a limit this waits for ever
    with pytest.raises(RetrieverGarbled, match="more than 1 MiB"):
        against([endless], once)
    assert len(against([b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2**20, None], once)[0].body) == 2**20


def test_a_cancelled_request_takes_its_connection_with_it() -> None:
    async def talk(client: Connections) -> bytes:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.post(b"[]"), 0.05)
        assert client._idle == []
        return (await client.post(b"[]")).body

    late = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nlate"
    assert against([late, OK], talk) == (b"{}", [1, 2])
    assert against([late.replace(b"Content", b"Holdfast-Request: ID\r\nContent"), OK], talk) == (b"{}", [1, 2])


def test_many_at_once_get_their_own_answers() -> None:
    async def talk(client: Connections) -> int:
        found = await asyncio.gather(*(client.post(b"[]") for _ in range(50)))
        return sum(answer.status == 200 for answer in found)

    answered, used = against([OK] * 50, talk)
    assert answered == 50
    assert len(set(used)) > 1
