"""Clients of a `/retrieve` server: one for threads, one for an event loop. Nothing waits without an end.

What may pass by itself is tried again: no connection, a timeout, 429, 500, 502, 503, 504, an answer that may be another
request's. The pauses double and are jittered, so that a hundred workers that failed together do not come back together.
What is left after that, and every answer that cannot be read, is a `RetrievalError` of a class that says what it was,
with the address in it.

Proxy variables of the environment are not read: a retriever is a neighbour, and a proxy meant for downloads would only
lose its calls. `HOLDFAST_TOKEN` is: a server that was started with it asks for it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import weakref
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.errors import ConfigError, RetrievalError, RetrieverTimeout
from holdfast.retrieval.connections import Answer, Connections, require_h11
from holdfast.retrieval.types import Hit
from holdfast.retrieval.wire import environment_token, parse_answer, request_body, retrieve_url

T = TypeVar("T")

PASSING = frozenset({429, 500, 502, 503, 504})
_CONNECTIONS = 64
_jitter = random.Random()  # of its own: a retry must not move anybody's seeded random numbers


@dataclass(slots=True)
class ClientStats:
    """Counts since a client was made. `searches` = `answered` + the sum of `failed`, when none is under way."""

    searches: int = 0
    answered: int = 0
    retries: int = 0
    """Attempts after the first."""
    failed: Counter[str] = field(default_factory=Counter)
    """Searches that failed in the end, by the name of their error's class."""


class AsyncHTTPRetriever:
    """A retriever behind an address, for `await`. Belongs to the event loop it is first used in.

    Args:
        address: as `http://127.0.0.1:8000`; `/retrieve` is added where there is no path.
        timeout: seconds one attempt may take, from the first byte sent to the last received.
        retries: attempts after the first.
        backoff: seconds before the second attempt, on average; doubles from one attempt to the next.

    Raises:
        ConfigError: the address, a number or `HOLDFAST_TOKEN` cannot be used.
        MissingExtra: h11 is not installed.
    """

    def __init__(self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5) -> None:
        self.url = _checked(address, timeout, retries, backoff)
        self.stats = ClientStats()
        self._retries, self._backoff, self._timeout = retries, backoff, timeout
        self._connections = Connections(self.url, token=environment_token())
        # A search waits for its turn as long as it must: only an attempt that is on its way can time out.
        self._turns = asyncio.Semaphore(_CONNECTIONS)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        if not queries:
            return []
        self.stats.searches += 1
        try:
            found = await self._search(queries, k)
        except RetrievalError as error:
            self.stats.failed[type(error).__name__] += 1
            raise
        self.stats.answered += 1
        return found

    async def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    async def _search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        attempt = 0
        while True:
            last, asked_for = attempt == self._retries, 0.0
            try:
                answer = await self._attempt(queries, k)
            except RetrievalError:
                if last:
                    raise
            else:
                if last or answer.status not in PASSING:
                    return parse_answer(answer.status, answer.body, queries=len(queries), k=k, url=self.url)
                asked_for = _retry_after(answer, self._timeout)
            attempt += 1
            self.stats.retries += 1
            await asyncio.sleep(max(_pause(self._backoff, attempt), asked_for))

    async def _attempt(self, queries: Sequence[str], k: int) -> Answer:
        body = json.dumps(request_body(queries, k)).encode()
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._connections.post(body)
            except TimeoutError as error:
                raise RetrieverTimeout(
                    f"{self.url} did not answer within {self._timeout:g} seconds; is the retriever overloaded?"
                ) from error


class HTTPRetriever:
    """The same for threads, any number of which may share it: an `AsyncHTTPRetriever` on a thread of its own."""

    in_process = False

    def __init__(self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5) -> None:
        self.url = _checked(address, timeout, retries, backoff)
        require_h11()
        self._settings = {"timeout": timeout, "retries": retries, "backoff": backoff}
        self._start()

    @property
    def stats(self) -> ClientStats:
        return self._client.stats

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        if os.getpid() != self._process:  # a fork has no threads but the one that forked
            self._start()
        return self._thread.run(self._client.search(queries, k))

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._end()

    def _start(self) -> None:
        self._process = os.getpid()
        self._client = AsyncHTTPRetriever(self.url, **self._settings)  # type: ignore[arg-type]
        self._thread = _LoopThread()
        # A run ends without closing its retriever.
        self._end = weakref.finalize(self, _LoopThread.close, self._thread, self._client)


class _LoopThread:
    """An event loop that runs for as long as it is wanted."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retriever", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, client: AsyncHTTPRetriever) -> None:
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self.run(client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _checked(address: str, timeout: float, retries: int, backoff: float) -> str:
    if not (timeout > 0 and retries >= 0 and backoff >= 0):
        raise ConfigError(
            f"a retriever with timeout={timeout}, retries={retries}, backoff={backoff} cannot work; the timeout must "
            "be above 0 seconds, the others 0 or more"
        )
    return retrieve_url(address)


def _pause(backoff: float, attempt: int) -> float:
    """Seconds before attempt 1, 2, …: `backoff`, twice that, …, each between half and one and a half times."""
    return backoff * 2 ** (attempt - 1) * _jitter.uniform(0.5, 1.5)


def _retry_after(answer: Answer, most: float) -> float:
    """Seconds the server asks to wait, `most` at the longest."""
    try:
        return min(max(float(answer.headers.get("retry-after", 0)), 0.0), most)
    except ValueError:  # a date
        return 0.0
