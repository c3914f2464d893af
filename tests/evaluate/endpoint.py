"""A served agent that says what it is told, on a socket of this machine."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from holdfast.agent.agent import SearchAgent
from holdfast.agent.protocol import CLEAN
from holdfast.evaluate.endpoint.app import make_app
from holdfast.evaluate.endpoint.line import Desk
from holdfast.model.sampler.policy import Completion, Request
from holdfast.retrieval.server.connections import Server
from holdfast.retrieval.types import Document

from ..agent.conftest import ScriptedPolicy, Shelf

PASSAGES = ['"Mira"\nThat is Kelan Orso.', '"Zed"\nZed has rival Bo.']
SEARCHES = "<think> look </think>\n<search> mentor of Mira </search>"
ANSWERS = "<think> there </think>\n<answer> Kelan Orso </answer>"


class Policy(ScriptedPolicy):
    """Says these turns, one after another, to whoever asks."""

    temperature = 1.0

    def __init__(self, tokenizer: Any, *turns: str, before: Callable[[], object] = lambda: None) -> None:
        super().__init__(tokenizer, {"ask": list(turns)})
        self.before, self.samplings = before, list[dict[str, Any]]()

    def answer(self, request: Request) -> Completion:
        self.before()
        return super().answer(request)

    def with_sampling(self, **sampling: Any) -> Policy:
        self.samplings.append(sampling)
        return self


def desk(policy: Policy, *, broken: bool = False, protocol: dict[str, Any] | None = None, **settings: Any) -> Desk:
    found = [Document(f"p{i}", text) for i, text in enumerate(PASSAGES)]
    shelf = Shelf(lambda query: found if query == "mentor of Mira" else [], {"mentor of Mira": 99 * broken})
    own: Any = policy
    agent = SearchAgent(policy=own, retriever=shelf, protocol=replace(CLEAN, **(protocol or {})))
    return Desk(agent=agent, name="night", **settings)


@contextmanager
def served(desk: Desk, **settings: Any) -> Iterator[str]:
    """The address, while the endpoint runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready = threading.Event()
        server = Server(make_app(desk, **settings), listener, ready.set)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        try:
            assert ready.wait(60)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(90)
