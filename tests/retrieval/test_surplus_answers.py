"""Servers that answer a request twice, in every way: no query ever gets the passages of another."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.retrieval.client import AsyncHTTPRetriever


class Repeating:
    """Answers each query with itself. Every third answer is followed by another one, in the way of `fault`."""

    def __init__(self, fault: str, *, echoes: bool, every: int = 3) -> None:
        self.fault, self.echoes, self.every = fault, echoes, every
        self.requests = self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        owed = b""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                (query,) = json.loads(await reader.readexactly(length))["queries"]
                self.requests += 1
                writer.write(owed)
                owed = b""
                body = json.dumps({"result": [[{"id": query, "contents": query}]]}).encode()
                echo = [line for line in head.split(b"\r\n") if line.startswith(b"holdfast-request")]
                given = b"\r\n".join([b"Content-Length: %d" % len(body), *echo[: self.echoes]])
                answer = b"HTTP/1.1 200 OK\r\n" + given + b"\r\n\r\n" + body
                if self.requests % self.every:
                    writer.write(answer)
                elif self.fault == "at once":
                    writer.write(answer * 2)
                elif self.fault == "500 after 200":
                    writer.write(answer + b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
                elif self.fault == "while idle":
                    writer.write(answer)
                    await asyncio.sleep(0.02)
                    writer.write(answer)
                else:  # after the next request was sent
                    writer.write(answer)
                    owed = answer
        except (asyncio.IncompleteReadError, OSError):
            writer.close()


async def search_all(server: Repeating, queries: list[str], *, retries: int, pause: float) -> list[str]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    client = AsyncHTTPRetriever(address, timeout=5, retries=retries, backoff=0.001)
    found = []
    for query in queries:
        ((hit,),) = await client.search([query], 1)
        found.append(hit.document.contents)
        await asyncio.sleep(pause)
    listener.close()
    return found


@pytest.mark.grid(5)
@pytest.mark.parametrize("echoes", [True, False])
@pytest.mark.parametrize("fault", ["at once", "500 after 200", "while idle", "after the next request"])
@pytest.mark.parametrize("pause", [0.0, 0.03])
def test_every_query_gets_its_own_passages(fault: str, echoes: bool, pause: float) -> None:
    queries = [f"q{i}" for i in range(20)]
    server = Repeating(fault, echoes=echoes)
    assert asyncio.run(search_all(server, queries, retries=2, pause=pause)) == queries
    assert server.requests == 20
    assert server.connections == server.requests
