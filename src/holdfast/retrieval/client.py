"""Clients of a `/retrieve` server: one for threads, one for an event loop. Every call has a timeout.

Transient failures are retried: no connection, a timeout, 429, 500, 502, 503, 504, an answer to another request. What
still fails, and every answer that cannot be read, is a `RetrievalError` with a class that says what happened and a
message that has the address.

Proxy variables of the environment are not read, because a proxy for downloads would only lose the calls to a retriever
nearby. `HOLDFAST_TOKEN` is read: a server that was started with it requires it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from uuid import uuid4

from holdfast.base.answers import Answer, HTTPClient
from holdfast.base.errors import (
    RetrieverGarbled,
    RetrieverRefused,
    RetrieverTimeout,
    RetrieverUnreachable,
)
from holdfast.base.retries import Retries
from holdfast.base.workers import LoopThread
from holdfast.retrieval.types import Hit
from holdfast.retrieval.wire import REQUEST_ID, environment_token, filled, parse_answer, request_body, retrieve_url

RETRIED_STATUSES = frozenset({429, 500, 502, 503, 504})
_CONCURRENT_ATTEMPTS = 64


class AsyncHTTPRetriever:
    """A retriever behind an address, for `await`. Belongs to the event loop of its first search.

    Args:
        address: such as `http://127.0.0.1:8000`; without a path, `/retrieve` is added. Values of a query are names of
            environment variables, as in `https://h/find?api_key=$MY_KEY`.
        timeout: seconds for one attempt, from connecting to the last byte.
        retries: attempts after the first.
        backoff: mean seconds before the second attempt; doubles with each further attempt.
        patience: seconds for which a server that cannot be reached is tried after that: it may be restarting. One that
            stays away that long is not waited for again until it has answered.

    Raises:
        ConfigError: the address or `HOLDFAST_TOKEN` is not valid, or a variable that the address names is not set.
        MissingExtra: httpx is not installed.
    """

    def __init__(
        self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5, patience: float = 0.0
    ) -> None:
        self.url = retrieve_url(address)
        self._target, values = filled(self.url)
        self._http = HTTPClient(self.url, secret=environment_token(), hidden=values)
        self._timeout, self._retries = timeout, Retries(retries, backoff=backoff, patience=patience)
        # A search waits for its turn as long as it must; only an attempt that was sent can time out.
        self._turns = asyncio.Semaphore(_CONCURRENT_ATTEMPTS)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if not queries:
            return []
        answer = await self._answer(json.dumps(request_body(queries, k)).encode())
        return parse_answer(answer, queries=len(queries), k=k)

    async def _answer(self, body: bytes) -> Answer:
        """The first attempt's answer that needs no retry, or else the last attempt's."""
        failures = 0
        while True:
            failures += 1
            try:
                answer = await self._attempt(body)
                self._retries.answered()
                if answer.status not in RETRIED_STATUSES:
                    return answer
                pause = self._retries.pause(failures, asked=min(answer.retry_after, self._timeout))
                if pause is None:
                    return answer
            except (RetrieverUnreachable, RetrieverTimeout, RetrieverGarbled) as error:
                pause = self._retries.pause(
                    failures, away=str(error) if isinstance(error, RetrieverUnreachable) else None
                )
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def _attempt(self, body: bytes) -> Answer:
        request_id = uuid4().hex
        headers = {"Content-Type": "application/json", REQUEST_ID: request_id}
        async with self._turns:
            try:
                answer = await self._http.exchange(
                    "POST", self._target, content=body, headers=headers, seconds=self._timeout
                )
            except TimeoutError as error:
                raise RetrieverTimeout(f"{error}; is the retriever overloaded?") from None
            except ConnectionError as error:
                raise RetrieverUnreachable(f"{error}; is the retriever running there?") from None
            except ValueError as error:
                raise RetrieverRefused(f"{error}; ask for fewer passages at once", 200) from None
        if answer.headers.get(REQUEST_ID, request_id) != request_id:
            raise RetrieverGarbled(
                f"{answer.url} sent the answer (status {answer.status}) of another request. Does a proxy mix up "
                "connections?"
            )
        return answer


class HTTPRetriever:
    """The same for threads, any number of which may share it. It runs an `AsyncHTTPRetriever` on a thread."""

    in_process = False

    def __init__(
        self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5, patience: float = 0.0
    ) -> None:
        self._settings = (address, timeout, retries, backoff, patience)
        self._start()
        self.url = self._client.url

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """See `Retriever.search`."""
        if os.getpid() != self._process:  # a forked process has only the thread that forked
            self._start()
        return self._thread.run(self._client.search(queries, k))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _start(self) -> None:
        address, timeout, retries, backoff, patience = self._settings
        self._client = AsyncHTTPRetriever(address, timeout=timeout, retries=retries, backoff=backoff, patience=patience)
        self._process = os.getpid()
        self._thread = LoopThread("retriever")
