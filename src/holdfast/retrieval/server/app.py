"""The server's endpoints. Batching, cache, metrics and message formats are modules of their own."""

from __future__ import annotations

import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from time import perf_counter
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import __version__
from holdfast.base.answers import MOST_BYTES, shown
from holdfast.retrieval.server import formats
from holdfast.retrieval.server.batching import Batcher, Batching, Overloaded, QueryCache
from holdfast.retrieval.server.metrics import Metrics
from holdfast.retrieval.types import IndexedRetriever, Ranked
from holdfast.retrieval.wire import REQUEST_ID

_REQUEST_ID = REQUEST_ID.encode()

Body = TypeVar("Body", bound=BaseModel)


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
    answer: int = MOST_BYTES
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

    `token` is required as `Authorization: Bearer TOKEN` on every path except `/health` and `/ready`. With `local`, only
    requests to that name, or to a name or address of the loopback interface, are answered: a web page that gives its
    own name this address (DNS rebinding) gets nothing.
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
        body = await _read(request, formats.RetrieveRequest, limits.body)
        results = await outcomes(body.queries, body.topk or topk)
        return _answer(formats.retrieve_answer(documents, results, scores=body.return_scores), limits.answer)

    @app.post("/search", openapi_extra=_body_schema(formats.SearchRequest))
    async def search(request: Request) -> Response:
        """ReCall's protocol, one query."""
        body = await _read(request, formats.SearchRequest, limits.body)
        if not body.query.strip():
            raise HTTPException(400, "the query is blank")
        (result,) = await passages_only([body.query], body.top_n)
        return _answer(formats.search_answer(documents, result, scores=body.return_score), limits.answer)

    @app.post("/batch_search", openapi_extra=_body_schema(formats.BatchSearchRequest))
    async def batch_search(request: Request) -> Response:
        """ReCall's protocol, several queries."""
        body = await _read(request, formats.BatchSearchRequest, limits.body)
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
    app.add_middleware(_Middleware, metrics=metrics, token=token, local=local, paths=paths)
    return app


class _Middleware:
    """Around every request: checks host and token, sends the request's id back, counts responses and seconds."""

    _OPEN = ("/health", "/ready")

    def __init__(self, app: Any, metrics: Metrics, token: str | None, local: str | None, paths: frozenset[str]) -> None:
        self._app, self._metrics, self._local, self._paths = app, metrics, local, paths
        self._authorization = None if token is None else f"Bearer {token}".encode()

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

        if (refusal := self._refusal(path, headers)) is not None:
            await refusal(scope, receive, counted)
            return
        await self._app(scope, receive, counted)
        self._metrics.seconds.observe(perf_counter() - began)

    def _refusal(self, path: str, headers: Mapping[bytes, bytes]) -> Response | None:
        """Why the request is not answered; None if it is."""
        if self._local is not None and not _is_local(headers.get(b"host", b"localhost"), self._local):
            return _json(
                b'{"detail": "this server is for its own machine, and the request names another host. Call it by '
                b'localhost or 127.0.0.1, or start it with --host or with a token"}',
                421,
            )
        is_open = self._authorization is None or path in self._OPEN
        if is_open or hmac.compare_digest(headers.get(b"authorization", b""), self._authorization or b""):
            return None
        return _json(b'{"detail": "send the header Authorization: Bearer TOKEN"}', 401)


def _is_local(header: bytes, bound: str) -> bool:
    """Whether a Host header names the loopback interface, or the name by which the server was bound to it."""
    try:
        name = urlsplit(f"//{header.decode('latin-1')}").hostname or ""
        return name == bound.lower() or name.split(".")[-1] == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def _read(request: Request, kind: type[Body], most: int) -> Body:
    """Read and check the body. Raises 413 before a body that is too long is read, 422 for one of another shape, and 400
    for one that breaks off, whose client is gone."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the body broke off") from None
    try:
        return kind.model_validate_json(_ESCAPES.sub(_whole, body) if b"\\u" in body else body)
    except ValidationError as error:
        problems = [{"field": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in error.errors()[:5]]
        raise HTTPException(422, problems) from None


_ESCAPES = re.compile(rb"\\(?:u(d[89ab][\da-f]{2}\\ud[c-f][\da-f]{2})|u(d[89a-f][\da-f]{2})|.)", re.I | re.S)


def _whole(escape: re.Match[bytes]) -> bytes:
    """An escape of a JSON text, `?` for half of a surrogate pair: it must not cost the other queries their answers."""
    return b"?" if escape[2] else escape[0]


def _body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Describe the body for OpenAPI, since `_read` reads it by hand, with a limit."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": kind.model_json_schema()}}}}


def _answer(parts: formats.Parts, most: int) -> Response:
    body = bytearray()
    for part in parts:
        body += part
        if len(body) > most:
            raise HTTPException(413, f"the answer is longer than {most} bytes; ask for fewer passages at once")
    return _json(bytes(body))


def _json(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")
