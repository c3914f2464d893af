"""What batching, de-duplication and the cache of `holdfast serve` are worth, against the reference design.

    python benchmarks/retrieval_task.py corpus.jsonl --passages 1000000
    holdfast index build corpus.jsonl --out INDEX
    OMP_NUM_THREADS=1 python benchmarks/retrieval_serving.py INDEX corpus.jsonl --json serving.json

200 clients, each with one connection and one query a request, ask servers in turn, round by round, so that other jobs
on the machine disturb all alike. Every answer is compared with one batch in this process: same passages, same scores,
bit for bit.

    reference bm25s   the reference design, ranking as bm25s does
    batched bm25s     holdfast's serving around bm25s' ranking, no cache
    reference own     the reference design, ranking as holdfast does
    single            holdfast, a query at a time (--batch 1 --wait-ms 0), no cache
    batched           holdfast, batches of up to 64, no cache
    cached            as `holdfast serve` comes: batches and cache

`unique`: every query is asked once. `five`: five times in a row, as the rollouts of one question do; a server that
does not keep answers can only join those that are under way. `again`: five times, after everything was asked before,
as in a second epoch. A round uses queries no round before has used, but for `again`. The two that rank as bm25s does
get the first `--slow` queries of a load: they would take all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from holdfast.retrieval.bm25 import BM25Retriever
from measuring import median_interval, table, write_json
from retrieval_task import questions

HERE = Path(__file__).parent
K = 3
OWN = (sys.executable, "-m", "holdfast", "serve")
REFERENCE = (sys.executable, str(HERE / "retrieval_reference.py"))
ARMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "reference bm25s": (REFERENCE, ("--ranking", "bm25s")),
    "batched bm25s": (REFERENCE, ("--serving", "holdfast", "--ranking", "bm25s")),
    "reference own": (REFERENCE, ("--ranking", "own")),
    "single": (OWN, ("--batch", "1", "--wait-ms", "0", "--cache-size", "0")),
    "batched": (OWN, ("--cache-size", "0")),
    "cached": (OWN, ()),
}


@dataclass(slots=True)
class Round:
    """One load on one arm."""

    rate: float
    """Queries a second."""
    cpu_ms: float
    """CPU milliseconds of the server a query."""
    latencies: list[float]
    """Seconds, sorted."""
    wrong: int
    """Answers that differ from those of one batch."""


@dataclass(slots=True)
class Server:
    name: str
    process: subprocess.Popen[bytes]
    port: int
    rounds: dict[str, list[Round]] = field(default_factory=dict)


def start(name: str, index: Path) -> Server:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, options = ARMS[name]
    process = subprocess.Popen(
        [*program, str(index), "--port", str(port), *options], stdout=subprocess.DEVNULL, env={**os.environ}
    )
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/ready"):
                return Server(name, process, port)
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.1)
    process.kill()
    raise SystemExit(f"{name} does not start")


async def ask_all(port: int, queries: Sequence[str], clients: int) -> tuple[list[bytes], list[float]]:
    """The body of every answer, and its seconds. Plain sockets: a client library would take more time than a server."""
    todo = iter(range(len(queries)))
    bodies, seconds = [b""] * len(queries), [0.0] * len(queries)

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for i in todo:
            body = json.dumps({"queries": [queries[i]], "topk": K, "return_scores": True}).encode()
            head = (
                "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}"
            )
            began = time.perf_counter()
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
            bodies[i] = await reader.readexactly(length)
            seconds[i] = time.perf_counter() - began
            if not answer.startswith(b"http/1.1 200"):
                raise SystemExit(f"an answer that is none: {answer!r} {bodies[i]!r}")
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return bodies, seconds


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: Server, queries: Sequence[str], clients: int, expected: dict[str, Any] | None) -> Round:
    cpu, began = cpu_seconds(server.process), time.perf_counter()
    bodies, seconds = asyncio.run(ask_all(server.port, queries, clients))
    took, cpu = time.perf_counter() - began, cpu_seconds(server.process) - cpu
    wrong = 0
    if expected is not None:
        for query, body in zip(queries, bodies, strict=True):
            (hits,) = json.loads(body)["result"]
            wrong += [(hit["document"]["id"], hit["score"]) for hit in hits] != expected[query]
    return Round(len(queries) / took, 1000 * cpu / len(queries), sorted(seconds), wrong)


def run(options: argparse.Namespace) -> list[Server]:
    fives = options.queries // 5
    asked = questions(options.corpus, options.rounds * (options.queries + fives) + 200)
    pool = iter(asked)
    retriever = BM25Retriever.load(options.index)
    expected = {
        query: [(hit.document.id, hit.score) for hit in hits]
        for query, hits in zip(asked, retriever.search(asked, K), strict=True)
    }
    servers: list[Server] = []
    try:
        for name in ARMS:
            servers.append(start(name, options.index))
        warm = [next(pool) for _ in range(200)]
        for server in servers:
            measure(server, warm, options.clients, None)
        order = random.Random(0)
        for number in range(options.rounds):
            unique = [next(pool) for _ in range(options.queries)]
            five = [query for query in (next(pool) for _ in range(fives)) for _ in range(5)]
            for load, queries in (("unique", unique), ("five", five), ("again", five)):
                for server in order.sample(servers, len(servers)):
                    # bm25s drops other function words and cuts words otherwise: its answers are its own.
                    slow = server.name.endswith("bm25s")
                    sent = queries[: options.slow] if slow else queries
                    done = measure(server, sent, options.clients, None if slow else expected)
                    server.rounds.setdefault(load, []).append(done)
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()
    return servers


def report(servers: Sequence[Server]) -> str:
    lines = []
    base = {server.name: server.rounds for server in servers}
    for load in ("unique", "five", "again"):
        rows = []
        for server in servers:
            rounds = server.rounds[load]
            rate, low, high = median_interval([load_round.rate for load_round in rounds])
            ratios = [
                statistics.median(
                    load_round.rate / other.rate for load_round, other in zip(rounds, base[name][load], strict=True)
                )
                for name in ("reference bm25s", "reference own")
            ]
            latencies = sorted(second for load_round in rounds for second in load_round.latencies)
            p50, p99 = (1000 * latencies[int(share * (len(latencies) - 1))] for share in (0.5, 0.99))
            cpu = statistics.median(load_round.cpu_ms for load_round in rounds)
            wrong = sum(load_round.wrong for load_round in rounds) if not server.name.endswith("bm25s") else "–"
            cells = [f"{rate:.0f}", f"{low:.0f}–{high:.0f}", *(f"{ratio:.2f}" for ratio in ratios)]
            rows.append([server.name, *cells, f"{p50:.0f}", f"{p99:.0f}", f"{cpu:.2f}", wrong])
        header = ["queries/s", "range", "× bm25s", "× own", "p50 ms", "p99 ms", "CPU ms/query", "wrong"]
        lines += [load, table(["server", *header], rows), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--queries", type=int, default=2000, help="of a round and load")
    parser.add_argument("--slow", type=int, default=300)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--json", help="write the raw numbers there")
    options = parser.parse_args()
    servers = run(options)
    print(report(servers))
    raw = {
        server.name: {
            load: [
                {"rate": one.rate, "cpu_ms": one.cpu_ms, "p99": one.latencies[-len(one.latencies) // 100]}
                for one in rounds
            ]
            for load, rounds in server.rounds.items()
        }
        for server in servers
    }
    write_json(options.json, raw)


if __name__ == "__main__":
    main()
