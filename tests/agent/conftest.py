"""Policies that follow a script, a retriever that finds what it is given, and the models of `tests/model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from holdfast.base.errors import RetrievalError
from holdfast.model.sampler.policy import Completion, Request
from holdfast.retrieval.types import Document, Hit

from ..model.conftest import make_model, reference, tokenizer

__all__ = ["make_model", "reference", "tokenizer"]


class ScriptedPolicy:
    """Says what the script tells, one request a poll, oldest first; records every context it is given."""

    def __init__(self, tokenizer: Any, script: dict[str, list[str]]) -> None:
        self.tokenizer, self.script = tokenizer, {id: list(turns) for id, turns in script.items()}
        self.queue: list[Request] = []
        self.seen: dict[str, list[Request]] = {}
        self.released: list[str] = []
        self.polls = 0

    def submit(self, requests: Sequence[Request]) -> None:
        self.queue += requests
        for request in requests:
            self.seen.setdefault(request.id, []).append(request)

    def poll(self) -> list[Completion]:
        self.polls += 1
        return [self.answer(self.queue.pop(0))] if self.queue else []

    def answer(self, request: Request) -> Completion:
        text = self.script[request.id].pop(0)
        ids = tuple(self.tokenizer(text)["input_ids"])[: request.max_new_tokens]
        stopped = any(stop in text for stop in request.stop)
        return Completion(
            id=request.id,
            token_ids=ids,
            logprobs=tuple(-0.01 * (1 + i) for i in range(len(ids))),
            stop_reason="stop" if stopped else "length",
            text=self.tokenizer.decode(ids),
        )

    def release(self, ids: Any) -> None:
        self.released += ids
        self.queue = [request for request in self.queue if request.id not in ids]


class Shelf:
    """Finds for a query what `find` returns, and keeps the calls. A query of `broken` fails as often as its number
    says."""

    def __init__(
        self,
        find: Callable[[str], Sequence[Document]] = lambda query: [Document(query, query)],
        broken: Mapping[str, int] | None = None,
        *,
        in_process: bool = True,
        error: type[RetrievalError] = RetrievalError,
    ) -> None:
        self.find, self.broken, self.in_process, self.error = find, dict(broken or {}), in_process, error
        self.calls: list[list[str]] = []

    @property
    def queries(self) -> list[str]:
        return [query for call in self.calls for query in call]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        self.calls.append(list(queries))
        for query in queries:
            self.broken[query] = self.broken.get(query, 0) - 1
            if self.broken[query] >= 0:
                raise self.error(f"no answer for {query}")
        return [[Hit(document, 1.0) for document in self.find(query)[:k]] for query in queries]


@pytest.fixture
def scripted(tokenizer: PreTrainedTokenizerFast) -> Callable[..., ScriptedPolicy]:
    return lambda script: ScriptedPolicy(tokenizer, script)
