"""The `/retrieve` protocol of Search-R1, also used by verl, SkyRL and slime: what is sent, and what may come back.

    POST {"queries": [str], "topk": int, "return_scores": true}
    200  {"result": [[{"document": {"id", "contents"}, "score"}]]}     one list per query, best first

Servers differ in the items: with or without the wrapper and the score, a document as an object or as one text, an
object with `contents`, or with `title` and `text`, with or without an id. All of these are read.

holdfast adds one header. A request carries `Holdfast-Request: ID`, and our server sends it back with the answer. An
answer with another id belongs to another request.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from holdfast.base.errors import ConfigError, RetrieverGarbled, RetrieverRefused
from holdfast.retrieval.types import Document, Hit

TOKEN = "HOLDFAST_TOKEN"
REQUEST_ID = "holdfast-request"
"""The header that says which request an answer belongs to. In lower case, as in ASGI."""
MOST_BYTES = 64 * 2**20
"""The longest body of an answer: our server sends no more, our clients read no more. 50,000 passages of wiki-18 have
40 MB."""
_SHOWN = 160  # characters of an unreadable answer that an error quotes
_VISIBLE = re.compile(r"[!-~]+")  # ASCII without blanks: what a header and a request line may contain


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sent."""

    status: int
    retry_after: float
    """Seconds that the server asks to wait before another attempt; 0 when it does not say."""
    body: bytes


def retrieve_url(address: str) -> str:
    """The URL to post to: `/retrieve` is added to an address without a path.

    >>> retrieve_url("http://10.0.0.5:8000")
    'http://10.0.0.5:8000/retrieve'

    Raises `ConfigError` unless the address is http(s) with a host. Also raises it for a user or a password in the
    address, which would not be sent; no message repeats them.
    """
    shown = re.sub("//.*@", "//", address, flags=re.DOTALL)
    try:
        parts = urlsplit(address)
        usable = (
            _VISIBLE.fullmatch(address) is not None
            and parts.scheme in ("http", "https")
            and bool((parts.hostname or "").encode("idna"))
            and (parts.port or 1) > 0
        )
    except ValueError:  # a port that is not a number, a host with a name that is too long
        usable = False
    if not usable:
        raise ConfigError(
            f"{_shortened(shown)!r} is not the address of a retriever; write one like http://127.0.0.1:8000/retrieve"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"the address of the retriever {shown} has a user or a password in it, which are not sent; leave them out. "
            f"A server that requires a token gets the one in {TOKEN}"
        )
    return address if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/retrieve"


def environment_token() -> str | None:
    """The token in `HOLDFAST_TOKEN`, which servers require and clients send; None when it is empty or not set.

    Raises `ConfigError` for a token that an HTTP header cannot carry.
    """
    token = os.environ.get(TOKEN) or None
    if token is not None and not _VISIBLE.fullmatch(token):
        raise ConfigError(
            f"{TOKEN} has a blank, a line break or a character that is not ASCII, which an HTTP header cannot carry; "
            "use letters, digits and punctuation of ASCII"
        )
    return token


def request_body(queries: Sequence[str], k: int) -> dict[str, Any]:
    """The body to post. It always requests scores: Search-R1's own server fails without them."""
    return {"queries": list(queries), "topk": k, "return_scores": True}


def parse_answer(status: int, body: bytes, *, queries: int, k: int, url: str) -> list[list[Hit]]:
    """The hits in a server's answer, at most `k` per query.

    A hit without a score gets NaN, a hit without an id a digest of its text.

    Raises `RetrieverRefused` for any status other than 200 and when a query of the request failed. Raises
    `RetrieverGarbled` when the body is not JSON, does not have one list per query, or has items of another shape. The
    message has the address.
    """
    if status != 200:
        raise RetrieverRefused(f"{url} answered {status} to {queries} queries: {quoted(body)}", status)
    try:
        payload = json.loads(body)
    except ValueError:  # UnicodeDecodeError is one
        raise RetrieverGarbled(f"{url} answered with something that is not JSON: {quoted(body)}") from None
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list) or not all(isinstance(hits, list) for hits in result):
        raise RetrieverGarbled(f"{url} answered without a `result` of one list per query: {quoted(body)}")
    if len(result) != queries:
        raise RetrieverGarbled(
            f"{url} answered {len(result)} of {queries} queries; a /retrieve server gives one list per query"
        )
    errors = payload.get("errors")
    if isinstance(errors, list) and (failed := [error for error in errors if error]):
        # An empty list would say that nothing matches.
        raise RetrieverRefused(
            f"{url} failed on {len(failed)} of {queries} queries; the first: {_shortened(str(failed[0]))}", status
        )
    return [[_hit(item, url) for item in hits[:k]] for hits in result]


def _hit(item: Any, url: str) -> Hit:
    score: Any = None
    if isinstance(item, dict) and "document" in item:
        item, score = item["document"], item.get("score")
    return Hit(_document(item, url), float(score) if isinstance(score, int | float) else math.nan)


def _document(item: Any, url: str) -> Document:
    contents, identity = item, None
    if isinstance(item, dict):
        contents, identity = item.get("contents"), item.get("id")
        if contents is None and isinstance(item.get("text"), str):
            contents = f"{item.get('title') or ''}\n{item['text']}"
    if not isinstance(contents, str):
        fields = f"the fields {', '.join(item)}" if isinstance(item, dict) else type(item).__name__
        raise RetrieverGarbled(
            f"{url} returned a document with neither `contents` nor `text`: it is {_shortened(fields)}"
        )
    contents = contents.encode("utf-8", "replace").decode()  # a server may cut a character in half
    if identity is None:
        identity = hashlib.sha1(contents.encode()).hexdigest()[:12]
    return Document(str(identity), contents)  # some servers read ids from tables, as numbers


def retry_after(header: str | None) -> float:
    """Seconds that a `Retry-After` header asks to wait, given as a number or as a date; 0 when it does not say.

    >>> retry_after("2.5"), retry_after(None), retry_after("Wed, 21 Oct 2015 07:28:00 GMT")
    (2.5, 0.0, 0.0)
    """
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return 0.0
    return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def quoted(body: bytes) -> str:
    """The beginning of an unreadable answer, in one line, for an error sentence."""
    return _shortened(body[:4096].decode("utf-8", "replace"))


def _shortened(text: str) -> str:
    """The text in one line that any terminal can show."""
    text = " ".join(text.encode("utf-8", "replace").decode().split())
    return (text[:_SHOWN] + " …" if len(text) > _SHOWN else text) or "an empty answer"
