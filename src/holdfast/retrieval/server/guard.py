"""Who may call a server, and what a request may hold: for the retriever's and the agent's alike."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from holdfast.base.answers import shown

Body = TypeVar("Body", bound=BaseModel)


class Guard:
    """Refuses requests by their headers.

    `token` is required as `Authorization: Bearer TOKEN` on every path but those of `is_open`. With `local`, only
    requests to that name, or to a name or address of the loopback interface, are answered: a web page that gives its
    own name this address (DNS rebinding) gets nothing. Without a token, pages of other sites get nothing either: they
    could not read the answer, but the work would be done, tools included.
    """

    def __init__(self, token: str | None, local: str | None, *, is_open: Collection[str]) -> None:
        self._local, self._is_open = local, is_open
        self._authorization = None if token is None else f"Bearer {token}".encode()

    def refusal(self, path: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Status and sentence for a request that is not answered; None if it is."""
        if self._local is not None and not _is_local(headers.get(b"host", b"localhost"), self._local):
            return 421, (
                "this server answers only its own machine, but the request names another host. Call it by localhost "
                "or 127.0.0.1, or start it with --host or with a token"
            )
        if self._authorization is None:
            origin = headers.get(b"origin")
            if origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower():
                return None
            return 403, (
                f"a page of another site, {shown(origin.decode('latin-1'))}, calls this server, which needs no token; "
                "if this is intended, start the server with a token"
            )
        if path in self._is_open:
            return None
        if hmac.compare_digest(headers.get(b"authorization", b""), self._authorization):
            return None
        return 401, "send the header Authorization: Bearer TOKEN"


def _is_local(header: bytes, bound: str) -> bool:
    """Whether a Host header names the loopback interface, or the name by which the server was bound to it."""
    try:
        name = urlsplit(f"//{header.decode('latin-1')}").hostname or ""
        return name == bound.lower() or name.split(".")[-1] == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def read_body(request: Request, kind: type[Body], most: int) -> Body:
    """Read and check the body. Raises 413 before a body that is too long is read, 422 for one of another shape, and 400
    for one that breaks off, whose client is gone."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise HTTPException(413, f"the body is longer than {most} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the request body is incomplete") from None
    try:
        return kind.model_validate_json(_ESCAPES.sub(_whole, body) if b"\\u" in body else body)
    except ValidationError as error:
        problems = [{"field": ".".join(map(str, e["loc"])), "problem": e["msg"]} for e in error.errors()[:5]]
        raise HTTPException(422, problems) from None


_ESCAPES = re.compile(rb"\\(?:u(d[89ab][\da-f]{2}\\ud[c-f][\da-f]{2})|u(d[89a-f][\da-f]{2})|.)", re.I | re.S)


def _whole(escape: re.Match[bytes]) -> bytes:
    """An escape of a JSON text, `?` for half of a surrogate pair: it must not cost the other queries their answers."""
    return b"?" if escape[2] else escape[0]
