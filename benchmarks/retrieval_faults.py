"""Both clients against a server that misbehaves: nothing is lost, nothing is mixed up, nothing is left behind.

    python benchmarks/retrieval_faults.py --requests 20000 --share 0.3

The server is a process of its own. A share of requests meets one of: silence until the client gives up, a reset
connection, a 500, a body that is not JSON, half a body, a body a byte at a time; or an answer too many: the same twice,
a 500 behind it, the same again while the connection is idle, or once the next request was sent. Half of the requests
come from threads (`HTTPRetriever`), half from an event loop (`AsyncHTTPRetriever`). Half of each ask a server that
sends `Holdfast-Request` back. Each answer must belong to its query. Each failure must be a `RetrievalError` of the
right class. Afterwards there must be as many threads and open files as before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from holdfast.base.errors import RetrievalError
from holdfast.retrieval.client import AsyncHTTPRetriever, HTTPRetriever
from holdfast.retrieval.types import Hit
from measuring import table, write_json

SURPLUS = ("twice", "500 after 200", "again while idle", "again after the next request")
FAULTS = ("silence", "reset", "status 500", "not JSON", "half a body", "drip", *SURPLUS)
ECHO = "/echo"  # the path at which the server sends the id of a request back
Outcome = list[list[Hit]] | RetrievalError


@contextmanager
def faulty_server(share: float, seed: int) -> Iterator[tuple[str, Any]]:
    """Its address, and how often it met attempts with each fault, and last with an answer."""
    processes = multiprocessing.get_context("spawn")
    (port, told), met = processes.Pipe(duplex=False), processes.Array("i", len(FAULTS) + 1)
    server = processes.Process(target=misbehave, args=(share, seed, told, met), daemon=True)
    server.start()
    told.close()  # so that the other end is closed when the server dies
    try:
        yield f"http://127.0.0.1:{port.recv()}", met
    finally:
        server.kill()
        server.join()


def misbehave(share: float, seed: int, port: Any, met: Any) -> None:
    """The server; counts what it did in `met`."""
    rng = random.Random(seed)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            owed = b""
            while (owed := await answer(reader, writer, owed)) is not None:
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, owed: bytes) -> bytes | None:
        """What to send ahead of the next answer; None when the connection cannot be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        request = json.loads(await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0])))
        writer.write(owed)
        result = [
            [{"document": {"id": f"{query}/{i}", "contents": query}, "score": 1.0 - i} for i in range(request["topk"])]
            for query in request["queries"]
        ]
        body = json.dumps({"result": result}).encode()
        fault = rng.randrange(len(FAULTS)) if rng.random() < share else len(FAULTS)
        met[fault] += 1
        name = FAULTS[fault] if fault < len(FAULTS) else ""
        if name == "silence":
            await reader.read()  # until the client has enough
            return None
        if name == "reset":
            writer.transport.abort()
            return None
        if name == "not JSON":
            body = b"<html>try again</html>"
        status = b"500 Oops" if name == "status 500" else b"200 OK"
        echo = [line for line in head.split(b"\r\n") if line.startswith(b"holdfast-request:")]
        lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *(echo if ECHO.encode() in head else [])]
        start = b"\r\n".join([*lines, b"", b""])
        if name == "half a body":
            writer.write(start + body[: len(body) // 2])
            await writer.drain()
            return None
        if name == "drip":
            writer.write(start)
            for byte in body:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.05)
            return b""
        writer.write(start + body)
        if name == "twice":
            writer.write(start + body)
        if name == "500 after 200":
            writer.write(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
        if name == "again while idle":
            await asyncio.sleep(0.005)
            writer.write(start + body)
        await writer.drain()
        return start + body if name == "again after the next request" else b""

    async def main() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1024)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def with_threads(address: str, queries: Sequence[str], at_once: int, settings: dict[str, Any]) -> list[Outcome]:
    client = HTTPRetriever(address, **settings)

    def ask(query: str) -> Outcome:
        try:
            return client.search([query], 2)
        except RetrievalError as error:
            return error

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(ask, queries))
    client.close()
    return outcomes


def with_loop(address: str, queries: Sequence[str], at_once: int, settings: dict[str, Any]) -> list[Outcome]:
    async def main() -> list[Outcome]:
        client = AsyncHTTPRetriever(address, **settings)
        turns = asyncio.Semaphore(at_once)

        async def ask(query: str) -> Outcome:
            async with turns:
                try:
                    return await client.search([query], 2)
                except RetrievalError as error:
                    return error

        return list(await asyncio.gather(*map(ask, queries)))

    return asyncio.run(main())


def judge(queries: Sequence[str], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What became of searches, each of one query that the server answers with two passages of its name: how many were
    answered, failed by the class of the error, and got an answer that belongs to another query."""
    failed = Counter(type(outcome).__name__ for outcome in outcomes if isinstance(outcome, RetrievalError))
    mixed_up = sum(
        [hit.document.id for hit in outcome[0]] != [f"{query}/0", f"{query}/1"]
        for query, outcome in zip(queries, outcomes, strict=True)
        if not isinstance(outcome, RetrievalError)
    )
    return {"answered": len(outcomes) - failed.total(), "failed": failed, "mixed_up": mixed_up}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--share", type=float, default=0.3, help="of requests that meet a fault")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=0.5, help="seconds of an attempt")
    parser.add_argument("--retries", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write the raw numbers there")
    options = parser.parse_args()
    settings = {"timeout": options.timeout, "retries": options.retries, "backoff": 0.01}
    rows: list[list[Any]] = []
    raw: dict[str, Any] = {}
    clients = (("threads", with_threads, ""), ("event loop", with_loop, ""))
    clients += (("threads, echo", with_threads, ECHO), ("event loop, echo", with_loop, ECHO))
    with faulty_server(options.share, options.seed) as (address, met):
        with_threads(address, ["warm up"], 1, settings)
        with_loop(address, ["warm up"], 1, settings)
        met[:] = [0] * len(met)
        before = (threading.active_count(), open_files())
        for name, run, path in clients:
            queries = [f"{name} {i}" for i in range(options.requests // len(clients))]
            began = time.perf_counter()
            outcomes = run(address + path, queries, options.at_once, settings)
            took = time.perf_counter() - began
            raw[name] = found = judge(queries, outcomes)
            counts = (found["answered"], found["mixed_up"], found["failed"]["RetrievalError"])
            rows.append([name, len(queries), *counts, f"{took:.0f}"])
            print(f"{name}: {dict(found['failed'])}")
        after = (threading.active_count(), open_files())
    header = ["searches", "answered", "mixed up", "untyped", "seconds"]
    print(table(["client", *header], rows))
    print("the server met attempts with:", dict(zip([*FAULTS, "an answer"], met[:], strict=True)))
    print(f"threads and open files before: {before}, after: {after}")
    write_json(options.json, {**raw, "met": met[:], "before": before, "after": after})


if __name__ == "__main__":
    main()
