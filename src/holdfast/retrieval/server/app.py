"""The server's endpoints. Batching, cache, metrics and message formats are modules of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import __version__
from holdfast.base.answers import MAX_BYTES, shown
from holdfast.retrieval.server import formats
from holdfast.retrieval.server.batching import Batcher, Batching, Overloaded, QueryCache
from holdfast.retrieval.server.guard import Guard, read_body
from holdfast.retrieval.types import IndexedRetriever, Ranked
from holdfast.retrieval.wire import REQUEST_ID

_REQUEST_ID = REQUEST_ID.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one request may ask for. More is refused."""

    body: int = 16 * 2**20
    """Bytes."""
    queries: int = 4096
    characters: int = 10_000
    """Per query. A longer query fails; the others of its request do not."""
    passages: int = 50_000
    """Queries times passages per query. For wiki-18 the answer has 40 MB."""
    answer: int = MAX_BYTES
    """Bytes; reached where passages are longer."""


def make_app(
    retriever: IndexedRetriever,
    *,
    topk: int = 3,
    token: str | None = None,
    local: str | None = None,
    batching: Batching | None = None,
    limits: Limits | None = None,
    cache: QueryCache | None = None,
) -> FastAPI:
    """An ASGI application that answers for `retriever`.

    `token` and `local`: as in `Guard`; `/health` and `/ready` are open.
    """
    limits, metrics = limits or Limits(), Metrics()
    cache = QueryCache(100_000) if cache is None else cache
    batcher = Batcher(retriever.rank, batching or Batching(), cache, metrics)
    documents = retriever.documents

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        yield
        await batcher.stop()

    app = FastAPI(title="holdfast retriever", version=__version__, lifespan=lifespan)
    metrics.gauge("waiting_queries", "Queries waiting for a search", lambda: batcher.waiting)
    metrics.gauge("cached_queries", "Queries in the cache", lambda: len(cache))
    metrics.gauge("passages", "Passages in the index", lambda: len(documents))

    async def outcomes(queries: Sequence[str], k: int) -> list[Ranked | str]:
        """Per query its passages or an error sentence. Raises when every query failed."""
        if len(queries) > limits.queries:
            raise HTTPException(413, f"{len(queries)} queries; a request may have {limits.queries}")
        if len(queries) * k > limits.passages:
            raise HTTPException(
                413,
                f"{len(queries)} queries of {k} passages each; a request may ask for {limits.passages} passages. "
                "Send it in parts",
            )
        searchable = [query for query in queries if len(query) <= limits.characters]
        try:
            answers = iter(await batcher.ask(searchable, k))
        except Overloaded as error:
            raise HTTPException(429, f"{error}; try again in a second", {"Retry-After": "1"}) from None
        results: list[Ranked | str] = []
        for query in queries:
            if len(query) > limits.characters:
                results.append(f"the query has {len(query)} characters; it may have {limits.characters}")
            else:
                answer = next(answers)
                results.append(f"the search failed: {answer}" if isinstance(answer, Exception) else answer)
        if queries and all(isinstance(result, str) for result in results):
            raise HTTPException(500 if searchable else 422, str(results[0]))
        return results

    async def passages_only(queries: Sequence[str], k: int) -> list[Ranked]:
        """As `outcomes`, for formats without a field for errors. Raises when any query failed."""
        results = []
        for result in await outcomes(queries, k):
            if isinstance(result, str):
                raise HTTPException(422, result)
            results.append(result)
        return results

    @app.post("/retrieve", openapi_extra=_body_schema(formats.RetrieveRequest))
    async def retrieve(request: Request) -> Response:
        """Search-R1's protocol: `queries`, or one `query`."""
        body = await read_body(request, formats.RetrieveRequest, limits.body)
        results = await outcomes(body.queries, body.topk or topk)
        return _answer(formats.retrieve_answer(documents, results, scores=body.return_scores), limits.answer)

    @app.post("/search", openapi_extra=_body_schema(formats.SearchRequest))
    async def search(request: Request) -> Response:
        """ReCall's protocol, one query."""
        body = await read_body(request, formats.SearchRequest, limits.body)
        if not body.query.strip():
            raise HTTPException(400, "the query is blank")
        (result,) = await passages_only([body.query], body.top_n)
        return _answer(formats.search_answer(documents, result, scores=body.return_score), limits.answer)

    @app.post("/batch_search", openapi_extra=_body_schema(formats.BatchSearchRequest))
    async def batch_search(request: Request) -> Response:
        """ReCall's protocol, several queries."""
        body = await read_body(request, formats.BatchSearchRequest, limits.body)
        results = await passages_only(body.query, body.top_n)
        return _answer(formats.batch_search_answer(documents, results, scores=body.return_score), limits.answer)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """200 while the process responds at all."""
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> dict[str, Any]:
        """200 if a search sent now would be accepted, else 503."""
        if not batcher.running or batcher.full:
            raise HTTPException(503, "too many queries are waiting" if batcher.running else "the search has stopped")
        return {"status": "ready", "passages": len(documents), "corpus_sha256": retriever.corpus_hash}

    @app.get("/metrics")
    async def prometheus() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type=metrics.content_type)

    @app.exception_handler(404)
    async def nothing_here(request: Request, _: Exception) -> Response:
        paths = "POST /retrieve, /search and /batch_search, and GET /health, /ready, /metrics and /docs"
        return JSONResponse({"detail": f"there is no {shown(request.url.path)}; the paths are {paths}"}, 404)

    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))
    guard = Guard(token, local, is_open=("/health", "/ready"))
    app.add_middleware(_Middleware, metrics=metrics, guard=guard, paths=paths)
    return app


class _Middleware:
    """Around every request: refuses what the guard does, sends the request's id back, counts responses and seconds."""

    def __init__(self, app: Any, metrics: Metrics, guard: Guard, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._guard, self._paths = app, metrics, guard, paths

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, path, headers = perf_counter(), scope["path"], dict(scope["headers"])
        request = headers.get(_REQUEST_ID)

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests.labels(path if path in self._paths else "other", message["status"]).inc()
                if request is not None:
                    message = {**message, "headers": [*message["headers"], (_REQUEST_ID, request)]}
            await send(message)

        if (refusal := self._guard.refusal(path, headers)) is not None:
            status, why = refusal
            await JSONResponse({"detail": why}, status)(scope, receive, counted)
            return
        await self._app(scope, receive, counted)
        self._metrics.seconds.observe(perf_counter() - began)


def _body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe the body for OpenAPI, since `read_body` reads it by hand, with a limit."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _answer(parts: formats.Parts, most: int) -> Response:
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > most:
            raise HTTPException(413, f"the answer is longer than {most} bytes; ask for fewer passages at once")
    return Response(bytes(body), media_type="application/json")


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Prometheus metrics of one server, in a separate registry: two servers in one process do not add up."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        common: Any = {"namespace": "holdfast", "registry": self._registry}
        self.requests = Counter("requests", "Responses by path and status", ["path", "status"], **common)
        self.seconds = Histogram("request_seconds", "Seconds from request to response", buckets=_SECONDS, **common)
        self.queries = Counter(
            "queries",
            "Queries by outcome: searched, cached, joined to an equal query in flight, refused (429), or searched and "
            "failed",
            ["outcome"],
            **common,
        )
        self.batch_size = Histogram("batch_queries", "Queries per batch", buckets=_SIZES, **common)

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read on request."""
        Gauge(name, help, namespace="holdfast", registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
