"""A policy that says what it is told, a retriever that finds what it is given, a server that speaks OpenAI's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.evaluate.model import EvaluatedModel
from holdfast.evaluate.openai import WordTokenizer
from holdfast.model.sampler.policy import Completion, Request
from holdfast.model.text.tokens import decode
from holdfast.recipe import load
from holdfast.retrieval.types import Document
from holdfast.tasks.questions import Example
from holdfast.train.listener import Listener

from ..agent import conftest as agent

Saying = Callable[[str, Request], "str | tuple[str, str]"]
"""(context as text, request) -> what is said, and how it ended if not by itself."""


class ScriptedPolicy(agent.ScriptedPolicy):
    """Says what a function of the context returns, cut at the first stop text; keeps every call."""

    def __init__(self, tokenizer: Any, saying: Saying) -> None:
        super().__init__(tokenizer, {})
        self.saying = saying
        self.calls: list[tuple[str, str, Request]] = []
        """(id, context, request) in the order they were answered."""

    def answer(self, request: Request) -> Completion:
        context = decode(self.tokenizer, request.token_ids)
        self.calls.append((request.id, context, request))
        said = self.saying(context, request)
        text, reason = said if isinstance(said, tuple) else (said, "eos")
        ends = [text.index(mark) + len(mark) for mark in request.stop if mark in text]
        if ends:
            text, reason = text[: min(ends)], "stop"
        if reason == "error":
            return Completion(id=request.id, token_ids=None, logprobs=None, stop_reason="eos", text="", error=text)
        return Completion(id=request.id, token_ids=None, logprobs=None, stop_reason=reason, text=text)  # type: ignore[arg-type]


class Shelf(agent.Shelf):
    """Finds for each query what was put there. A query of `broken` fails."""

    def __init__(self, contents: dict[str, list[str]], broken: Sequence[str] = ()) -> None:
        super().__init__(
            lambda query: [Document(text.partition("\n")[0], text) for text in self.contents.get(query, ())],
            dict.fromkeys(broken, 99),
        )
        self.contents = contents


@dataclass
class CompletionServer:
    """Answers by a function of the posted body; `replies`, first to last, come before it."""

    url: str
    saying: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """The choice: `text`, `finish_reason`."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    replies: list[tuple[int, bytes]] = field(default_factory=list)
    hold: threading.Event | None = None
    """When set to an event, calls wait for it."""
    pages: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Path -> (status, JSON) of what is read; 404 for others."""
    retry_after: str | None = None
    """Sent with every status but 200."""


@pytest.fixture
def completion_server() -> Iterator[CompletionServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.bodies.append({"path": self.path, **body})
                state.headers.append(dict(self.headers))
                status, answer = state.replies.pop(0) if state.replies else (200, None)
            if state.hold is not None:
                state.hold.wait(60)
            if answer is None:
                assert state.saying is not None
                answer = json.dumps({"choices": [state.saying(body)]}).encode()
            self.send_response(status)
            if state.retry_after is not None and status != 200:
                self.send_header("Retry-After", state.retry_after)
            # With status 201 the server dies in the middle of its answer.
            self.send_header("Content-Length", str(len(answer) + (10 if status == 201 else 0)))
            self.end_headers()
            self.wfile.write(answer)
            if status == 201:
                self.close_connection = True

        def do_GET(self) -> None:
            state.headers.append(dict(self.headers))
            status, payload = state.pages.get(self.path, (404, {"detail": "Not Found"}))
            answer = json.dumps(payload).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Nothing on the console."""

    lock = threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that went away
    state = CompletionServer(f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield state
    server.shutdown()
    server.server_close()


TINY = {"id": "tiny", "object": "model"}


def serve(server: CompletionServer, *entries: dict[str, Any]) -> None:
    """Let the server list these models."""
    server.pages["/v1/models"] = (200, {"object": "list", "data": list(entries)})


class Told(Listener):
    """A listener that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.advanced: list[int] = []

    def advance(self, done: int, detail: Any = None) -> None:
        self.advanced.append(done)

    def note(self, message: str) -> None:
        self.notes.append(message)


def example(index: int, question: str, *golds: str, source: str = "nq", **metadata: Any) -> Example:
    return Example(source=source, split="test", index=index, question=question, golden_answers=golds, metadata=metadata)


def evaluated_model(policy: Any, *settings: str, local: bool = True) -> EvaluatedModel:
    return EvaluatedModel(
        name="scripted",
        config=load(None, settings),
        policy=policy,
        tokenizer=policy.tokenizer,
        positions=100_000,
        local=local,
        weights="scripted",
        decoding="greedy",
    )


@pytest.fixture
def words() -> WordTokenizer:
    return WordTokenizer()
