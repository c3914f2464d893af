"""The endpoint as an ASGI application."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from holdfast.base.answers import shown
from holdfast.base.errors import HoldfastError
from holdfast.evaluate.endpoint.line import Desk, Gone, Visit
from holdfast.evaluate.endpoint.messages import (
    ALIVE,
    DONE,
    ChatRequest,
    Ending,
    Json,
    asked_of,
    error_body,
    event,
    reasoning,
)
from holdfast.retrieval.server.batching import Overloaded
from holdfast.retrieval.server.guard import Guard, read_body

_log = logging.getLogger("holdfast")
_BODY = 2 * 2**20
"""Bytes. Clients send the whole conversation."""
_MODELS, _CHAT = _PATHS = ("/v1/models", "/v1/chat/completions")
_PAGE = Path(__file__).with_name("page.html")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(desk: Desk, *, token: str | None = None, local: str | None = None) -> Any:
    """An ASGI application that answers for the agent of a desk. `token` and `local` as in `Guard`; the page and
    `/health` are open."""
    begun = int(time.time())

    async def page(_: Request) -> Response:
        return HTMLResponse(_PAGE.read_text(encoding="utf-8"), headers=_HEADERS)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(_: Request) -> Response:
        model = {"id": desk.name, "object": "model", "created": begun, "owned_by": "holdfast"}
        return JSONResponse(
            {"object": "list", "data": [model | {"about": desk.about, "examples": list(desk.examples)}]}
        )

    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatRequest, _BODY)
        try:
            visit = desk.take(asked_of(body, desk.name))
        except Overloaded as error:
            raise HTTPException(429, f"{error}; try again in a few seconds", {"Retry-After": "5"}) from None
        if body.stream:
            counts = body.stream_options is not None and body.stream_options.include_usage
            return StreamingResponse(stream(visit, counts=counts), media_type="text/event-stream")
        return await whole(request, visit)

    def envelope(kind: str) -> Json:
        return {"id": f"chatcmpl-{secrets.token_hex(12)}", "object": kind, "created": int(time.time())} | {
            "model": desk.name
        }

    async def whole(request: Request, visit: Visit) -> Response:
        """The answer at once."""
        thoughts = ""
        async with aclosing(desk.follow(visit)) as news:
            async for new in news:
                if isinstance(new, Ending):
                    message = {"role": "assistant", "content": new.content, "annotations": new.annotations}
                    message |= {"reasoning_content": thoughts, "reasoning": thoughts}
                    choice = {"index": 0, "message": message, "finish_reason": new.reason, "logprobs": None}
                    body = {"choices": [choice], "usage": new.usage, "search_results": new.results}
                    return JSONResponse(envelope("chat.completion") | body)
                if new is not None:
                    thoughts += reasoning(new)
                elif await request.is_disconnected():
                    break
        raise Gone("the client has disconnected")

    async def stream(visit: Visit, *, counts: bool) -> AsyncIterator[bytes]:
        """The answer in events: each turn when it ends, then the answer."""
        head = envelope("chat.completion.chunk")

        def chunk(delta: Json, reason: str | None = None, **more: Any) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
            return event(head | {"choices": [choice]} | more)

        yield chunk({"role": "assistant", "content": ""})
        try:
            async with aclosing(desk.follow(visit)) as news:
                async for new in news:
                    if new is None:
                        yield ALIVE
                    elif isinstance(new, Ending):
                        yield chunk({"content": new.content})
                        yield chunk({"annotations": new.annotations}, new.reason, search_results=new.results)
                        if counts:
                            yield event(head | {"choices": [], "usage": new.usage})
                    else:
                        text = reasoning(new)
                        yield chunk({"reasoning_content": text, "reasoning": text}, step=new)
        except HTTPException as failure:
            yield event(error_body(failure.status_code, failure.detail))
        except Exception as error:
            if not isinstance(error, HoldfastError):
                _log.exception("a rollout failed")
            yield event(error_body(500, _sentence(error)))
        yield DONE

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, why = error.status_code, error.detail
        if isinstance(why, list):  # of `read_body`
            status, why = 400, "; ".join(f"{each['field'] or 'body'}: {each['problem']}" for each in why)
        elif status == 405 or (status == 404 and request.url.path not in _PATHS):
            asked = shown(f"{request.method} {request.url.path}")
            why = f"there is no {asked}; there are POST {_CHAT}, GET {_MODELS}, and GET / to ask by hand"
        return JSONResponse(error_body(status, why), status, headers=error.headers)

    async def fail(_: Request, error: Exception) -> Response:
        return JSONResponse(error_body(500, _sentence(error)), 500)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        desk.workers.close()

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/health", health),
            Route(_MODELS, models),
            Route(_CHAT, chat, methods=["POST"]),
        ],
        exception_handlers={HTTPException: refuse, HoldfastError: fail, Exception: fail},
        lifespan=lifespan,
    )
    guard = Guard(token, local, is_open=("/", "/health"))

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        refusal = guard.refusal(scope["path"], dict(scope["headers"])) if scope["type"] == "http" else None
        answer = app if refusal is None else JSONResponse(error_body(*refusal), refusal[0])
        await answer(scope, receive, send)

    return guarded


def _sentence(error: Exception) -> str:
    """What a client reads of an error."""
    unforeseen = f"the agent failed ({type(error).__name__}); the server's log says where"
    return str(error) if isinstance(error, HoldfastError) else unforeseen
