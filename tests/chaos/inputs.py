"""Attacks from outside: a retriever that misbehaves, requests that are malformed, and files that are broken. Every
answer belongs to its question, every refusal is a sentence."""

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

from tests.chaos.kit import RECIPE, ROOT, TRACEBACK, Bench, Case, Outcome, quiet_process
from tests.chaos.runs import Runs
from tests.diagnose import test_readers_fuzz as fuzz

from holdfast.base.errors import RetrievalError
from retrieval_faults import ECHO, FAULTS, MORE_FAULTS, faulty_server, judge, with_loop, with_threads

RECIPES = ROOT / "src" / "holdfast" / "recipe" / "bundled"
SAMPLE = ROOT / "src" / "holdfast" / "data" / "sample"
SLOW = ("silence", "drip")  # each costs a search its whole time limit, 30 s in a training run
ASKED = 12
"""Questions of a step of the training run over HTTP."""
INPUT_LIMIT = 60
"""Seconds for one broken input. A reader that takes longer hangs."""


# ---- searches


def searches(bench: Bench, runs: Runs) -> list[Case]:
    """A server that misbehaves, under direct searches and under a training run; and ours, under malformed requests."""
    count = 20 if bench.small else 400

    def direct(name: str, run: Callable[..., Any], path: str) -> Outcome:
        queries = [f"{name} {i}" for i in range(count)]
        with faulty_server(0.3, bench.seed, FAULTS + MORE_FAULTS) as (address, _):
            settings = {"timeout": 0.5, "retries": 3, "backoff": 0.01}
            found = judge(queries, *run(address + path, queries, 16, settings))
        untyped = found.failed["RetrievalError"]
        said = f"{found.answered} of {count} answered, {found.mixed_up} mixed up, failed: {dict(found.failed)}"
        return Outcome(lost=found.lost, wrong=found.mixed_up + untyped + (not found.counted), said=said)

    def training() -> Outcome:
        root, steps = bench.fresh("training"), 2 if bench.small else 6
        model = next(iter((runs.whole.parents[1] / "cache").glob("start/*/model")))
        write_questions(root)
        kinds = [name for name in FAULTS + MORE_FAULTS if name not in SLOW]
        with faulty_server(0.5, bench.seed, kinds) as (address, met):
            changes = {"retrieval.url": address, "train.steps": steps, "train.questions": ASKED}
            changes |= {"run.max_failed_fraction": 1.0, "track.trajectories": ASKED}
            ended = bench.run("train", *own_settings(root, model, changes))
        return ended.judged(0) + judge_run(root / "run", steps) + Outcome(said=f"{sum(met[:-1])} faults")

    def judge_run(run: Path, steps: int) -> Outcome:
        """Rows of every step, and in every rollout passages of the query that asked for them."""
        rows = [json.loads(line) for line in (run / "trajectories.jsonl").read_text().splitlines()]
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        missing = len({*range(1, steps + 1)} - {row["step"] for row in metrics})
        missing += steps * ASKED - len(rows)
        turns = [turn for row in rows for turn in row["turns"] if turn and turn["hits"]]
        mixed = sum(turn["hits"] != [f"{turn['query']}/{i}" for i in range(len(turn["hits"]))] for turn in turns)
        failed = sum(row["status"] == "retrieval_failed" for row in rows)
        said = f"{len(turns)} searches answered, {mixed} mixed up, {failed} rollouts given up"
        return Outcome(lost=missing, wrong=mixed, said=said)

    clients = (("threads", with_threads, ""), ("event loop", with_loop, ""), ("event loop, echo", with_loop, ECHO))
    cases: list[Case] = [(f"searches by {name}", partial(direct, *client)) for client in clients for name in client[:1]]
    return [*cases, ("a training run", training), ("holdfast serve", partial(serve, bench))]


def own_settings(root: Path, model: Path, changes: dict[str, object]) -> list[str]:
    """The words that train a saved model on the questions of a folder."""
    settings = {
        name: value for name, value in RECIPE.items() if not name.startswith(("world.", "warm_start.", "eval."))
    }
    own = {"model.path": model, "data.train": root / "train.jsonl", "data.test": root / "test.jsonl"}
    settings |= {"run.dir": root, "run.name": "run", "eval.every": 0, "loss.kl_coef": 0.0, **own, **changes}
    return [str(root / "own.toml"), *(word for name, value in settings.items() for word in (f"--{name}", str(value)))]


def write_questions(root: Path) -> None:
    """Questions and a recipe of one's own."""
    rows = [{"question": f"Who is the mentor of person {i}?", "golden_answers": [f"person {i + 1}"]} for i in range(40)]
    (root / "train.jsonl").write_bytes(fuzz.lines_of(rows))
    (root / "test.jsonl").write_bytes(
        fuzz.lines_of([{**row, "question": f"And {row['question']}"} for row in rows[:3]])
    )
    (root / "own.toml").write_text('[protocol]\nprompt = "Question: {question}\\n"\n')


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
    return [
        (f"broken {make.__name__}", partial(read, bench, make, 4 if bench.small else count))
        for make, count in sizes.items()
    ]


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
