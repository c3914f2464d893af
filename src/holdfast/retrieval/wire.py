"""The `/retrieve` protocol of Search-R1, which verl, SkyRL and slime speak too: what is sent, and what may come back.

    POST {"queries": [str], "topk": int, "return_scores": true}
    200  {"result": [[{"document": {"id", "contents"}, "score"}]]}     one list per query, best first

Servers differ in the items: with or without the wrapper and the score, a document as an object or as one text, an
object with `contents`, or with `title` and `text`, with or without an id. All of these are read.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, RetrieverGarbled, RetrieverRefused
from holdfast.retrieval.types import Document, Hit

_SHOWN = 160  # characters of a strange answer that an error quotes


def retrieve_url(address: str) -> str:
    """The address to post to: `/retrieve` is added to one without a path.

    >>> retrieve_url("http://10.0.0.5:8000")
    'http://10.0.0.5:8000/retrieve'

    Raises `ConfigError` for anything that is not http(s) with a host.
    """
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        raise ConfigError(f"{address!r} is no address of a retriever; write one like http://127.0.0.1:8000/retrieve")
    return address if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/retrieve"


def request_body(queries: Sequence[str], k: int) -> dict[str, Any]:
    """What is posted. Scores are always asked for: Search-R1's own server fails without them."""
    return {"queries": list(queries), "topk": k, "return_scores": True}


def parse_answer(status: int, body: bytes, *, queries: int, k: int, url: str) -> list[list[Hit]]:
    """The hits in a server's answer, at most `k` per query.

    A hit without a score gets NaN, one without an id a digest of its text. Raises `RetrieverRefused` for any other
    status than 200 and when a query of the request failed, `RetrieverGarbled` for what is not JSON and for another
    number of lists than queries; the message is a sentence with the address.
    """
    if status != 200:
        raise RetrieverRefused(f"{url} answered {status} to {queries} queries: {_quote(body)}", status)
    try:
        payload = json.loads(body)
    except ValueError:  # UnicodeDecodeError is one too
        raise RetrieverGarbled(f"{url} answered with something that is not JSON: {_quote(body)}") from None
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list) or not all(isinstance(hits, list) for hits in result):
        raise RetrieverGarbled(f"{url} answered without a `result` that holds one list per query: {_quote(body)}")
    if len(result) != queries:
        raise RetrieverGarbled(
            f"{url} answered {len(result)} of {queries} queries; a /retrieve server gives one list per query"
        )
    if failed := [error for error in payload.get("errors") or () if error]:
        # An empty list would say that nothing matches.
        raise RetrieverRefused(f"{url} failed on {len(failed)} of {queries} queries; the first: {failed[0]}", status)
    return [[_hit(item, url) for item in hits[:k]] for hits in result]


def _hit(item: Any, url: str) -> Hit:
    score: Any = None
    if isinstance(item, dict) and "document" in item:
        item, score = item["document"], item.get("score")
    number = isinstance(score, int | float) and not isinstance(score, bool)
    return Hit(_document(item, url), float(score) if number else math.nan)


def _document(item: Any, url: str) -> Document:
    if isinstance(item, str):
        contents: Any = item
    elif isinstance(item, dict):
        contents = item.get("contents")
        if contents is None and isinstance(item.get("text"), str):
            contents = f"{item.get('title') or ''}\n{item['text']}"
    else:
        contents = None
    if not isinstance(contents, str):
        fields = f"the fields {', '.join(map(str, item))}" if isinstance(item, dict) else type(item).__name__
        raise RetrieverGarbled(f"{url} returned a document with neither `contents` nor `text`: it is {fields}")
    own = item.get("id") if isinstance(item, dict) else None
    return Document(str(own) if own is not None else hashlib.sha1(contents.encode()).hexdigest()[:12], contents)


def _quote(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return (text[:_SHOWN] + " …" if len(text) > _SHOWN else text) or "an empty answer"
