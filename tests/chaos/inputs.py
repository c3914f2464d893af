"""Attacks from outside: requests that are malformed, and files that are broken. Every answer belongs to its question,
every refusal is a sentence. Retrievers that misbehave: tests/retrieval/test_client.py, tests/train/test_outages.py."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.kit import ROOT, TRACEBACK, Bench, Case, Outcome, quiet_process
from tests.chaos.runs import Runs
from tests.diagnose import test_readers_fuzz as fuzz

from holdfast.base.errors import RetrievalError

RECIPES = ROOT / "src" / "holdfast" / "recipe" / "bundled"
SAMPLE = ROOT / "src" / "holdfast" / "data" / "sample"
INPUT_LIMIT = 60
"""Seconds for one broken input. A reader that takes longer hangs."""


# ---- holdfast serve


def serve(bench: Bench) -> Outcome:
    """Malformed requests, with good ones beside them all the time."""
    root, rng = bench.fresh("serve"), bench.rng("serve")
    texts = {f"p{i}": f"Town {i}\nTown {i} lies by lake {i * 7 % 50} and river {i * 3 % 40}." for i in range(200)}
    (root / "corpus.jsonl").write_bytes(fuzz.lines_of([{"id": key, "contents": text} for key, text in texts.items()]))
    outcome = bench.run("index", "build", root / "corpus.jsonl", "--out", root / "index").judged(0)
    server = bench.start("serve", root / "index", "--port", 0)
    address = ""
    while not address:
        if not server.process.is_alive():
            return outcome + Outcome(wrong=1, said=f"the server did not start: {server.output()[-500:]!r}")
        found = re.search(r" at (http://\S+)", server.output())
        address = found[1] if found else ""
        time.sleep(0.05)

    malformed, good = (30, 10) if bench.small else (500, 100)
    requests = [broken_request(rng) for _ in range(malformed)]
    with ThreadPoolExecutor(5) as pool:
        checking = [pool.submit(ask, root / "index", address, good, client) for client in range(2)]
        statuses = Counter(pool.map(partial(talk, address), requests))
        for future in checking:
            outcome += future.result()
    server.send(signal.SIGTERM)
    ended = server.end()
    failures = sum(count for status, count in statuses.items() if status >= 500)
    said = ", ".join(f"{count} × {status or 'no answer'}" for status, count in sorted(statuses.items()))
    return outcome + ended.judged(0) + Outcome(wrong=failures, said=f"{malformed} malformed requests: {said}")


def ask(index: Path, address: str, count: int, client: int) -> Outcome:
    """Good searches: each answer must be what the index gives."""
    from holdfast.retrieval import open_index
    from holdfast.retrieval.client import HTTPRetriever

    expected, retriever = open_index(index), HTTPRetriever(address, timeout=30.0, retries=2)
    wrong = lost = 0
    for i in range(count):
        queries = [f"town {client} lake {i}", f"river {i}"]
        try:
            wrong += retriever.search(queries, 3) != expected.search(queries, 3)
        except RetrievalError:
            lost += 1
    retriever.close()
    said = f"client {client}: {wrong} wrong and {lost} lost of {count} good requests" if wrong or lost else ""
    return Outcome(wrong=wrong, lost=lost, said=said)


def broken_request(rng: random.Random) -> bytes:
    """What a client should not send: bytes, a body, a length, a path or a method that is not right."""
    values: dict[str, Any] = {"queries": ["lake 7", "river"], "topk": 3, "return_scores": True}
    for _ in range(rng.choice((0, 1, 2))):
        values[rng.choice(("queries", "topk", "return_scores", "query", "top_n", "x"))] = fuzz.weird(rng)
    body = json.dumps(values).encode("utf-8", "surrogatepass")
    if rng.random() < 0.4:
        body = fuzz.broken_bytes(body, rng)
    if rng.random() < 0.05:
        body = b"[" * rng.choice((1000, 200_000))
    length: object = len(body)
    if rng.random() < 0.2:
        length = rng.choice((0, len(body) + 5000, max(0, len(body) - 7), -1, "x", "9" * 30))
    path = rng.choice(
        ("/retrieve", "/retrieve", "/retrieve", "/search", "/../../etc/passwd", "/%00", "/health", "/" + "a" * 9000)
    )
    lines = [f"{rng.choice(('POST', 'POST', 'POST', 'GET', 'PUT', 'FOO'))} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"Content-Length: {length}"] * rng.choice((1, 1, 1, 1, 0, 2))
    lines += rng.choice(
        ([], [], [], ["Transfer-Encoding: chunked"], ["Content-Encoding: gzip"], ["X: " + "y" * 70_000])
    )
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body
    if rng.random() < 0.2:
        request = fuzz.broken_bytes(request, rng)
    return request[: rng.randrange(len(request))] if rng.random() < 0.1 and request else request


def talk(address: str, request: bytes) -> int:
    """Send it, send no more, and read: the status of the answer, 0 without one."""
    host, _, port = address.removeprefix("http://").partition(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65_536):
                answer += part
    except OSError:
        pass
    status = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    return int(status[1]) if status else 0


# ---- broken files

Input = tuple[str, dict[str, bytes], list[str]]
"""Its name, files to write, and the command, in which `{}` is the folder of the files."""


def inputs(bench: Bench, _: Runs) -> list[Case]:
    """Files broken at random, for the commands that read them. Many commands in one process, none of which trains."""
    sizes = {recipes: 200, settings: 100, questions: 150, passages: 50}  # logs: tests/diagnose/test_readers_fuzz.py
    broken = [(make.__name__, partial(read, bench, make, 4 if bench.small else n)) for make, n in sizes.items()]
    return [("holdfast serve", partial(serve, bench)), *((f"broken {name}", case) for name, case in broken)]


TOML = ("true", "-1", "0", "1e999", "nan", "9" * 5000, "[" * 400, "[[1]]", "{}", '""', '"x"', '"\\u0000"', "1979-05-27")


def recipes(rng: random.Random) -> Input:
    """For `holdfast train`, which reads them and trains nothing."""
    path = rng.choice(sorted(RECIPES.glob("*.toml")))
    raw = path.read_bytes()
    if rng.random() < 0.5:
        lines = raw.decode().splitlines()
        places = [i for i, line in enumerate(lines) if " = " in line]
        for i in rng.sample(places, min(len(places), rng.choice((1, 2, 5)))):
            lines[i] = f"{lines[i].partition(' = ')[0]} = {rng.choice(TOML)}"
        raw = "\n".join(lines).encode()
    else:
        raw = fuzz.broken_bytes(raw, rng)
    return path.name, {"a.toml": raw}, ["train", "{}/a.toml", "--dry-run", "--run.dir", "{}/runs"]


def settings(rng: random.Random) -> Input:
    """For `holdfast train`: values that no setting can have, as options."""
    from holdfast.recipe import setting_names

    words = []
    for name in rng.sample(sorted(setting_names()), rng.choice((1, 2, 4))):
        words += [f"--{name}", rng.choice((*TOML, str(fuzz.weird(rng))))]
    return " ".join(words)[:100], {}, ["train", *words, "--dry-run"]


def questions(rng: random.Random) -> Input:
    """For `holdfast data`: rows of questions."""
    raw = (SAMPLE / "questions.jsonl").read_bytes()
    raw = b"".join(raw.splitlines(keepends=True)[:12])
    raw = fuzz.wrapped(rng.choice((fuzz.broken_bytes, fuzz.broken_structure))(raw, rng), rng)
    verb = rng.choice((["validate", "{}/q.jsonl"], ["convert", "{}/q.jsonl", "{}/out.jsonl", "--skip-bad"]))
    return verb[0], {"q.jsonl": raw}, ["data", *verb]


def passages(rng: random.Random) -> Input:
    """For `holdfast index build`: rows of a corpus."""
    raw = (SAMPLE / "corpus.jsonl").read_bytes()
    raw = b"".join(raw.splitlines(keepends=True)[:12])
    raw = fuzz.wrapped(rng.choice((fuzz.broken_bytes, fuzz.broken_structure))(raw, rng), rng)
    more = rng.choice(([], ["--replace-invalid"]))
    return "corpus.jsonl", {"c.jsonl": raw}, ["index", "build", "{}/c.jsonl", "--out", "{}/index", *more]


def read(bench: Bench, make: Callable[[random.Random], Input], count: int) -> Outcome:
    """So many broken inputs, in one process. Each ends with 0, 1 or 2, without a traceback, in time."""
    root = bench.fresh(f"broken {make.__name__}")
    process = bench.fork.Process(target=read_all, args=(make, count, bench.seed, root, bench.folder), daemon=True)
    process.start()
    process.join()
    rows = [json.loads(line) for line in (root / "outcomes.jsonl").read_text().splitlines()]
    codes = Counter(row["code"] for row in rows)
    bad = [row for row in rows if row["problem"]]
    outcome = Outcome(
        tracebacks=sum(row["problem"] == "traceback" for row in bad),
        lost=count - len(rows),
        wrong=sum(row["problem"] != "traceback" for row in bad),
        said=f"{len(rows)} inputs, exit codes {dict(sorted(codes.items()))}",
    )
    for row in bad[:10]:
        outcome += Outcome(said=f"{row['problem']} at input {row['number']} ({row['name']}): {row['said']}")
    return outcome


class Hangs(BaseException):
    """An input that took longer than `INPUT_LIMIT`."""


def read_all(make: Callable[[random.Random], Input], count: int, seed: int, root: Path, shared: Path) -> None:
    """In a process of its own: writes a row for each input to outcomes.jsonl. Inputs that failed stay."""
    quiet_process(root / "log.txt", shared / "cache")
    signal.signal(signal.SIGALRM, _hangs)
    with (root / "outcomes.jsonl").open("w") as file:
        for number in range(count):
            name, files, words = make(random.Random(f"{seed} {make.__name__} {number}"))
            folder = root / str(number)
            folder.mkdir()
            for path, raw in files.items():
                (folder / path).write_bytes(raw)
            code, problem, said = run_in_process([word.replace("{}", str(folder)) for word in words])
            row = {"number": number, "name": name, "code": code, "problem": problem, "said": said}
            file.write(json.dumps(row) + "\n")
            file.flush()
            if not problem:
                shutil.rmtree(folder)


def _hangs(*_: object) -> None:
    raise Hangs


def run_in_process(words: Sequence[str]) -> tuple[int, str, str]:
    """Exit code, problem if any, and what was said of it."""
    from typer.testing import CliRunner

    from holdfast.cli.main import app

    signal.setitimer(signal.ITIMER_REAL, INPUT_LIMIT)
    try:
        result = CliRunner().invoke(app, list(words))
    except Hangs:
        return -1, "no end", f"{INPUT_LIMIT} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if (result.exception is not None and not isinstance(result.exception, SystemExit)) or TRACEBACK in result.output:
        return result.exit_code, "traceback", f"{type(result.exception).__name__}: {result.exception}"[:300]
    if result.exit_code not in (0, 1, 2):
        return result.exit_code, f"exit code {result.exit_code}", result.output[-300:]
    if "--json" in words and result.exit_code != 2:
        try:
            json.loads(result.stdout, parse_constant=_refuse_constant)
        except ValueError as error:
            return result.exit_code, "not JSON", str(error)
    return result.exit_code, "", ""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
