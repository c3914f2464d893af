"""Clients of a `/retrieve` server: one for threads, one for an event loop. Nothing waits without an end.

What may pass by itself (no connection, a timeout, 429, 500, 502, 503, 504) is tried again, after pauses that double and
are jittered, so that a hundred workers that failed together do not come back together. What is left after that, and
every answer that is no answer, is a `RetrievalError` with the address in it.

Proxy variables of the environment are not read: a retriever is a neighbour, and a proxy meant for downloads would only
lose its calls.
"""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, MissingExtra, RetrievalError
from holdfast.retrieval.types import Hit
from holdfast.retrieval.wire import parse_answer, request_body, retrieve_url

if TYPE_CHECKING:
    import httpx

PASSING = frozenset({429, 500, 502, 503, 504})
_CONNECTIONS = 64
_jitter = random.Random()  # of its own: a retry must not move anybody's seeded random numbers


class HTTPRetriever:
    """A retriever behind an address; safe to share between threads.

    Args:
        address: as `http://127.0.0.1:8000`; `/retrieve` is added where there is no path.
        timeout: seconds one attempt may take.
        retries: attempts after the first.
        backoff: seconds before the second attempt, on average; doubles from one attempt to the next.

    Raises:
        ConfigError: the address or a number cannot be used.
        MissingExtra: httpx is not installed.
    """

    in_process = False

    def __init__(self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5) -> None:
        self.url = _checked(address, timeout, retries, backoff)
        self._retries, self._backoff, self._timeout = retries, backoff, timeout
        httpx = _httpx()
        self._client = httpx.Client(timeout=timeout, limits=_limits(httpx), trust_env=False)
        self._end = weakref.finalize(self, self._client.close)  # a run ends without closing its retriever

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        if not queries:
            return []
        attempt = 0
        while True:
            try:
                answer = self._client.post(self.url, json=request_body(queries, k))
            except _httpx().TransportError as error:
                if attempt == self._retries:
                    raise _unreachable(self.url, error, self._timeout) from error
            else:
                if attempt == self._retries or answer.status_code not in PASSING:
                    return parse_answer(answer.status_code, answer.content, queries=len(queries), k=k, url=self.url)
            attempt += 1
            time.sleep(_pause(self._backoff, attempt))

    def close(self) -> None:
        """Close the connections."""
        self._end()


class AsyncHTTPRetriever:
    """The same for `await`. Belongs to the event loop it is first used in."""

    def __init__(self, address: str, *, timeout: float = 30.0, retries: int = 2, backoff: float = 0.5) -> None:
        self.url = _checked(address, timeout, retries, backoff)
        self._retries, self._backoff, self._timeout = retries, backoff, timeout
        httpx = _httpx()
        # A search waits for its turn as long as it must: only an attempt that is on its way can time out.
        limits = httpx.Timeout(timeout, pool=None)
        self._client = httpx.AsyncClient(timeout=limits, limits=_limits(httpx), trust_env=False)

    async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        if not queries:
            return []
        attempt = 0
        while True:
            try:
                answer = await self._client.post(self.url, json=request_body(queries, k))
            except _httpx().TransportError as error:
                if attempt == self._retries:
                    raise _unreachable(self.url, error, self._timeout) from error
            else:
                if attempt == self._retries or answer.status_code not in PASSING:
                    return parse_answer(answer.status_code, answer.content, queries=len(queries), k=k, url=self.url)
            attempt += 1
            await asyncio.sleep(_pause(self._backoff, attempt))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _checked(address: str, timeout: float, retries: int, backoff: float) -> str:
    if not (timeout > 0 and retries >= 0 and backoff >= 0):
        raise ConfigError(
            f"a retriever with timeout={timeout}, retries={retries}, backoff={backoff} cannot work; the timeout must "
            "be above 0 seconds, the others 0 or more"
        )
    return retrieve_url(address)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise MissingExtra("httpx", "train") from error
    return httpx


def _limits(httpx: Any) -> httpx.Limits:
    return httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)


def _pause(backoff: float, attempt: int) -> float:
    """Seconds before attempt 1, 2, …: `backoff`, twice that, …, each between half and one and a half times."""
    return backoff * 2 ** (attempt - 1) * _jitter.uniform(0.5, 1.5)


def _unreachable(url: str, error: httpx.TransportError, timeout: float) -> RetrievalError:
    if isinstance(error, _httpx().TimeoutException):
        return RetrievalError(f"{url} did not answer within {timeout:g} seconds; is the retriever overloaded?")
    return RetrievalError(f"{url} cannot be reached ({error or type(error).__name__}); is the retriever running there?")
