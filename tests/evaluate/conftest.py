"""A policy that says what it is told, a retriever that finds what it is given, a server that speaks OpenAI's API."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.evaluate.model import EvaluatedModel
from holdfast.evaluate.openai import WordTokenizer
from holdfast.model.sampler.policy import Completion, Request
from holdfast.model.text.tokens import decode
from holdfast.recipe import load
from holdfast.retrieval.types import Document
from holdfast.tasks.questions import Example

from ..agent import conftest as agent
from ..listening import Told
from ..loopback import Asked, Reply, serving

__all__ = ["Told"]

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
    def complete(asked: Asked) -> Reply:
        if asked.method == "GET":
            state.headers.append(dict(asked.headers))
            return state.pages.get(asked.path, (404, {"detail": "Not Found"}))
        with lock:
            state.bodies.append({"path": asked.path, **asked.body})
            state.headers.append(dict(asked.headers))
            status, answer = state.replies.pop(0) if state.replies else (200, None)
        if state.hold is not None:
            state.hold.wait(60)
        if answer is None:
            assert state.saying is not None
            answer = json.dumps({"choices": [state.saying(asked.body)]}).encode()
        more = {} if state.retry_after is None or status == 200 else {"Retry-After": state.retry_after}
        # With status 201 the server dies in the middle of its answer.
        return status, answer, more | ({"Content-Length": str(len(answer) + 10)} if status == 201 else {})

    lock = threading.Lock()
    with serving(complete) as url:
        state = CompletionServer(url)
        yield state


TINY = {"id": "tiny", "object": "model"}


def serve(server: CompletionServer, *entries: dict[str, Any]) -> None:
    """Let the server list these models."""
    server.pages["/v1/models"] = (200, {"object": "list", "data": list(entries)})


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
