"""The server's endpoints. Everything that is not an endpoint is elsewhere: batching, cache, shapes, metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from holdfast import __version__
from holdfast.retrieval.index import IndexedRetriever
from holdfast.retrieval.postings import Ranked
from holdfast.retrieval.server import wire
from holdfast.retrieval.server.batching import Batcher, Batching, Overloaded
from holdfast.retrieval.server.kept import KeptQueries
from holdfast.retrieval.server.metrics import Metrics
from holdfast.retrieval.wire import MOST_BYTES, REQUEST_ID

_log = logging.getLogger("holdfast")
_REQUEST_ID = REQUEST_ID.encode()
_TURN = 2**20  # bytes of an answer that are put together before others get their turn

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may ask for. More is refused with a sentence."""

    body: int = 16 * 2**20
    """Bytes."""
    queries: int = 4096
    characters: int = 10_000
    """Of a query; a longer one fails alone."""
    passages: int = 50_000
    """Queries times passages a query: of wiki-18 an answer of 40 MB."""
    answer: int = MOST_BYTES
    """Bytes, for passages that are longer."""


def make_app(
    retriever: IndexedRetriever,
    *,
    topk: int = 3,
    token: str | None = None,
    batching: Batching | None = None,
    limits: Limits | None = None,
    kept: KeptQueries | None = None,
) -> FastAPI:
    """An ASGI application that answers for `retriever`. `token` is asked for as `Authorization: Bearer TOKEN` on every
    path but `/health` and `/ready`."""
    limits, metrics = limits or Limits(), Metrics()
    kept = KeptQueries(100_000) if kept is None else kept
    batcher = Batcher(retriever.rank, batching or Batching(), kept, metrics)
    passages = wire.Passages(retriever.documents)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    app = FastAPI(title="holdfast retriever", version=__version__, lifespan=lifespan)
    app.add_middleware(_Watched, metrics=metrics, token=token)
    metrics.watch("holdfast_waiting_queries", "Queries that wait for a search", lambda: batcher.waiting)
    metrics.watch("holdfast_cached_queries", "Queries in the cache", lambda: len(kept))
    metrics.watch("holdfast_passages", "Passages in the index", lambda: len(retriever.documents))

    async def outcomes(queries: Sequence[str], k: int) -> list[Ranked | str]:
        """Per query what was found, or what went wrong. Refuses the request when nothing went right."""
        if len(queries) > limits.queries:
            raise HTTPException(413, f"{len(queries)} queries; a request may hold {limits.queries}")
        if len(queries) * k > limits.passages:
            raise HTTPException(
                413,
                f"{len(queries)} queries of {k} passages each; a request may ask for {limits.passages} passages. "
                "Send it in parts",
            )
        fit = [query for query in queries if len(query) <= limits.characters]
        try:
            answers = iter(await batcher.ask(fit, k))
        except Overloaded as error:
            raise HTTPException(429, f"{error}; come again in a second", {"Retry-After": "1"}) from None
        found: list[Ranked | str] = []
        for query in queries:
            if len(query) > limits.characters:
                found.append(f"the query holds {len(query)} characters; it may hold {limits.characters}")
            else:
                answer = next(answers)
                found.append(f"the search failed: {answer}" if isinstance(answer, Exception) else answer)
        if queries and all(isinstance(outcome, str) for outcome in found):
            raise HTTPException(500 if fit else 422, str(found[0]))
        return found

    async def all_found(queries: Sequence[str], k: int) -> list[Ranked]:
        """As `outcomes`, for shapes that have no place for errors."""
        found = []
        for one in await outcomes(queries, k):
            if isinstance(one, str):
                raise HTTPException(422, one)
            found.append(one)
        return found

    @app.post("/retrieve", openapi_extra=_takes(wire.RetrieveRequest))
    async def retrieve(request: Request) -> Response:
        """Search-R1's protocol: `queries`, or one `query`."""
        asked = await _read(request, wire.RetrieveRequest, limits.body)
        found = await outcomes(asked.queries, asked.topk or topk)
        return await _answer(wire.retrieve_answer(passages, found, scores=asked.return_scores), limits.answer)

    @app.post("/search", openapi_extra=_takes(wire.SearchRequest))
    async def search(request: Request) -> Response:
        """ReCall's protocol, one query."""
        asked = await _read(request, wire.SearchRequest, limits.body)
        if not asked.query.strip():
            raise HTTPException(400, "the query is blank")
        (found,) = await all_found([asked.query], asked.top_n)
        return await _answer(wire.search_answer(passages, found, scores=asked.return_score), limits.answer)

    @app.post("/batch_search", openapi_extra=_takes(wire.BatchSearchRequest))
    async def batch_search(request: Request) -> Response:
        """ReCall's protocol, several queries."""
        asked = await _read(request, wire.BatchSearchRequest, limits.body)
        found = await all_found(asked.query, asked.top_n)
        return await _answer(wire.batch_search_answer(passages, found, scores=asked.return_score), limits.answer)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 while the process answers at all."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        """200 when a search sent now would be taken up, else 503."""
        if not batcher.running or batcher.full:
            raise HTTPException(503, "too many queries wait" if batcher.running else "the search has stopped")
        return {"status": "ready", "passages": len(retriever.documents), "corpus_sha256": retriever.corpus_hash}

    @app.get("/metrics")
    async def prometheus() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type=metrics.content_type)

    return app


class _Watched:
    """Around everything: asks for the token, sends the id of a request back, counts answers and seconds."""

    _OPEN = ("/health", "/ready")

    def __init__(self, app: Any, metrics: Metrics, token: str | None) -> None:
        self._app, self._metrics = app, metrics
        self._wanted = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, path, headers = perf_counter(), scope["path"], dict(scope["headers"])
        request = headers.get(_REQUEST_ID)

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                route = path if scope.get("route") is not None or message["status"] == 401 else "other"
                self._metrics.requests.labels(route, message["status"]).inc()
                if request is not None:
                    message = {**message, "headers": [*message["headers"], (_REQUEST_ID, request)]}
            await send(message)

        if self._wanted is not None and path not in self._OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                refusal = _json(b'{"detail": "send the header Authorization: Bearer TOKEN"}', 401)
                await refusal(scope, receive, counted)
                return
        await self._app(scope, receive, counted)
        self._metrics.seconds.observe(perf_counter() - began)


async def _read(request: Request, kind: type[Body], most: int) -> Body:
    """The body, checked. 413 before a body that is too long was read, 422 for one of another shape."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
    except ClientDisconnect:
        _log.warning("a caller of %s went away after %d bytes of its request", request.url.path, len(body))
        raise HTTPException(400, "the request ended before its body was whole") from None
    try:
        return kind.model_validate_json(bytes(body))
    except ValidationError as error:
        wrong = [{"field": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in error.errors()[:5]]
        raise HTTPException(422, wrong) from None


def _takes(kind: type[BaseModel]) -> dict[str, Any]:
    """The body, for OpenAPI: it is read by hand, with a limit."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


async def _answer(pieces: Iterator[bytes], most: int) -> Response:
    """The pieces as one body. A long one is put together in turns with whatever else the loop does."""
    body, turn = bytearray(), _TURN
    for piece in pieces:
        body += piece
        if len(body) > most:
            raise HTTPException(413, f"the answer is longer than {most} bytes; ask for fewer passages at once")
        if len(body) > turn:
            turn = len(body) + _TURN
            await asyncio.sleep(0)
    return _json(bytes(body))


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
