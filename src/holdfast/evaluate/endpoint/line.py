"""The line in front of an agent: one rollout at a time, a bounded number that wait, and an end for those that left.

A policy holds the state of one batch of rollouts, so it is used by one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from holdfast.agent.agent import SearchAgent, Task
from holdfast.agent.scheduler import Agent
from holdfast.agent.trajectory import Trajectory, Turn
from holdfast.base.errors import HoldfastError
from holdfast.base.workers import Workers
from holdfast.evaluate.endpoint.messages import Asked, Ending, Json, ending_of, step_of, step_of_note
from holdfast.model.sampler.policy import Completion, Request
from holdfast.retrieval.server.batching import Overloaded
from holdfast.retrieval.types import Document, Hit, Retriever


class Gone(HoldfastError):
    """Nobody waits for the answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """An agent that takes requests."""

    agent: SearchAgent
    name: str
    """The model's name in the API."""
    examples: Sequence[str] = ()
    """Questions to try."""
    about: str = "questions"
    """What they are."""
    notes: Callable[[str], Sequence[str]] = lambda question: ()
    """What to say of a question before its answer, such as words that are new to the model."""
    waiting: int = 16
    """Requests that may wait; a further one is refused."""
    quiet: float = 10.0
    """Seconds without news after which a stream says that it lives."""
    workers: Workers = field(default_factory=lambda: Workers(1, "agent"))
    open: set[Future[Ending]] = field(default_factory=set)
    """The rollout that runs, and those that wait."""

    def take(self, asked: Asked) -> Visit:
        """Put a request in line. Raises `Overloaded`. Needs a running event loop."""
        if len(self.open) > self.waiting:
            raise Overloaded(f"{len(self.open) - 1} requests are waiting already")
        visit = Visit()
        visit.future = self.workers.submit(self._answer, asked, visit)
        self.open.add(visit.future)
        visit.future.add_done_callback(self.open.discard)
        return visit

    async def follow(self, visit: Visit) -> AsyncGenerator[Json | Ending | None, None]:
        """The notes and each turn as it ends, as steps, and at last the ending; None after each `quiet` seconds. Raises
        what the rollout raised. Closing the iterator ends the rollout with its turn."""
        visit.future.add_done_callback(visit.tell)
        try:
            while True:
                try:
                    news = await asyncio.wait_for(visit.news.get(), self.quiet)
                except TimeoutError:
                    yield None
                    continue
                if isinstance(news, Future):
                    yield news.result()
                    return
                yield news
        finally:
            visit.gone.set()
            visit.future.cancel()

    def _answer(self, asked: Asked, visit: Visit) -> Ending:
        found, protocol = _Found(self.agent.retriever), self.agent.protocol
        agent = replace(self.agent, retriever=found)
        if asked.temperature is not None:
            heat = asked.temperature or agent.policy.temperature
            agent = replace(agent, policy=agent.policy.with_sampling(temperature=heat, greedy=not asked.temperature))
        if asked.max_tokens is not None:
            most = asked.max_tokens
            agent = replace(agent, wrap=lambda rollout: _bounded(rollout, most))

        def see(_: Task, turn: Turn) -> None:
            if visit.gone.is_set():
                raise Gone("no client is waiting for this answer")
            visit.tell(step_of(turn, found.documents, protocol))

        for note in self.notes(asked.question):
            visit.tell(step_of_note(note))
        trajectory = agent.ask(asked.question, seed=asked.seed, on_turn=see)
        return ending_of(trajectory, list(found.documents.values()), asked, protocol)


class Visit:
    """A request between its handler, in the event loop, and its rollout, in the thread of the agent."""

    future: Future[Ending]

    def __init__(self) -> None:
        self.gone = Event()
        """Set when nobody waits any more."""
        self.news: asyncio.Queue[Json | Future[Ending]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def tell(self, news: Json | Future[Ending]) -> None:
        """Pass on what is new, from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.news.put_nowait, news)


class _Found:
    """A retriever that keeps what it finds."""

    def __init__(self, retriever: Retriever) -> None:
        self._retriever = retriever
        self.documents: dict[str, Document] = {}
        """By id, in order."""

    @property
    def in_process(self) -> bool:
        return self._retriever.in_process

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        results = self._retriever.search(queries, k)
        self.documents |= {hit.document.id: hit.document for hits in results for hit in hits}
        return results


def _bounded(rollout: Agent[Trajectory], most: int) -> Agent[Trajectory]:
    """The rollout, with at most so many tokens of the model; then its turns are empty, which ends it as truncated."""
    reply: Any = None
    while True:
        try:
            call = rollout.send(reply)
        except StopIteration as end:
            trajectory: Trajectory = end.value
            return trajectory
        if not isinstance(call, Request):
            reply = yield call
        elif most:
            reply = yield replace(call, max_new_tokens=min(call.max_new_tokens, most))
            most = max(most - len(reply.token_ids or ()), 0)
        else:
            reply = Completion(id=call.id, token_ids=None, logprobs=None, stop_reason="length", text="")
