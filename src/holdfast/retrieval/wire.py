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
import math
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from holdfast.base.answers import Answer, address_parts, secret_in, shown, whole_characters
from holdfast.base.errors import ConfigError, RetrieverGarbled, RetrieverRefused
from holdfast.retrieval.types import Document, Hit

TOKEN = "HOLDFAST_TOKEN"
REQUEST_ID = "holdfast-request"
"""The header that says which request an answer belongs to. In lower case, as in ASGI."""
_MAX_CHARACTERS = 2**16  # of a passage that are kept: no observation shows more, and each may become a token
_VARIABLE = re.compile(r"=\$([A-Za-z_]\w*)")
_QUERY = re.compile(rf"[\w.~-]+{_VARIABLE.pattern}(&[\w.~-]+{_VARIABLE.pattern})*", re.ASCII)


def retrieve_url(address: str) -> str:
    """The URL to post to: `/retrieve` is added to an address without a path. Values of its query stay the names of
    environment variables, because a run writes its address down; `filled` puts them in.

    >>> retrieve_url("http://10.0.0.5:8000"), retrieve_url("https://h/find?api_key=$MY_KEY")
    ('http://10.0.0.5:8000/retrieve', 'https://h/find?api_key=$MY_KEY')

    Raises `ConfigError` as `address_parts` does, and for any other query, which it does not repeat.
    """
    parts = address_parts(address, of="a retriever", example="http://127.0.0.1:8000/retrieve", key=TOKEN)
    base, mark, query = address.partition("?")
    if "#" in address or (mark and not _QUERY.fullmatch(query)):
        raise ConfigError(
            f"the address of a retriever, {shown(re.sub('[?#].*', '', address))!r}, contains a query. It may be a "
            "key, and a run stores the address. Put each value into an environment variable, and write the "
            "variable's name: ?api_key=$MY_KEY"
        )
    return f"{base if parts.path.strip('/') else f'{parts.scheme}://{parts.netloc}/retrieve'}{mark}{query}"


def filled(url: str) -> tuple[str, list[str]]:
    """(A `retrieve_url` with the values of its variables, these values). Raises `ConfigError` for one without value."""
    base, mark, query = url.partition("?")
    values: dict[str, str] = {}
    for name in _VARIABLE.findall(query):
        if (value := secret_in(name)) is None:
            raise ConfigError(f"{name}, which the address of the retriever names, is not set; export it")
        values[name] = value
    query = _VARIABLE.sub(lambda variable: f"={quote(values[variable[1]], safe='')}", query)
    return f"{base}{mark}{query}", list(values.values())


def environment_token() -> str | None:
    """The token in `HOLDFAST_TOKEN`, which servers require and clients send. Raises `ConfigError` as `secret_in`."""
    return secret_in(TOKEN)


def request_body(queries: Sequence[str], k: int) -> dict[str, Any]:
    """The body to post. It always requests scores: Search-R1's own server fails without them."""
    return {"queries": list(queries), "topk": k, "return_scores": True}


def parse_answer(answer: Answer, *, queries: int, k: int) -> list[list[Hit]]:
    """The hits in a server's answer, at most `k` per query.

    A hit without a score gets NaN, a hit without an id a digest of its text.

    Raises `RetrieverRefused` for any status other than 200 and when a query of the request failed. Raises
    `RetrieverGarbled` when the body is not JSON, does not have one list per query, or has items of another shape. The
    message has the address.
    """
    if answer.status != 200:
        raise RetrieverRefused(
            f"{answer.url} answered {answer.status} to {queries} queries: {answer.quoted()}", answer.status
        )
    try:
        payload = answer.json()
    except ValueError as error:
        raise RetrieverGarbled(f"{answer.url} answered with {error}: {answer.quoted()}") from None
    result = payload.get("result") if isinstance(payload, dict) else None
    if not isinstance(result, list) or not all(isinstance(hits, list) for hits in result):
        raise RetrieverGarbled(f"{answer.url} answered without a `result` of one list per query: {answer.quoted()}")
    if len(result) != queries:
        raise RetrieverGarbled(
            f"{answer.url} answered {len(result)} of {queries} queries; a /retrieve server gives one list per query"
        )
    errors = payload.get("errors")
    if isinstance(errors, list) and (failed := [error for error in errors if error]):
        # An empty list would say that nothing matches.
        raise RetrieverRefused(
            f"{answer.url} failed on {len(failed)} of {queries} queries; the first: {answer.quoted(str(failed[0]))}",
            200,
        )
    return [[_hit(item, answer) for item in hits[:k]] for hits in result]


def _hit(item: Any, answer: Answer) -> Hit:
    score: Any = None
    if isinstance(item, dict) and "document" in item:
        item, score = item["document"], item.get("score")
    return Hit(_document(item, answer), float(score) if isinstance(score, int | float) else math.nan)


def _document(item: Any, answer: Answer) -> Document:
    contents, identity = item, None
    if isinstance(item, dict):
        contents, identity = item.get("contents"), item.get("id")
        if contents is None and isinstance(item.get("text"), str):
            contents = f"{item.get('title') or ''}\n{item['text']}"
    if not isinstance(contents, str):
        fields = f"the fields {', '.join(item)}" if isinstance(item, dict) else type(item).__name__
        raise RetrieverGarbled(
            f"{answer.url} returned a document with neither `contents` nor `text`: it is {answer.quoted(fields)}"
        )
    contents = whole_characters(contents[:_MAX_CHARACTERS])
    if identity is None:
        identity = hashlib.sha1(contents.encode()).hexdigest()[:12]
    return Document(whole_characters(str(identity)), contents)  # some servers read ids from tables, as numbers
