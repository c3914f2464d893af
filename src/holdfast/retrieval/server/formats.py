"""Requests and answers of the server: Search-R1's `/retrieve` with its variants, and ReCall's two endpoints.

    POST /retrieve      {"queries": [str], "topk": int?, "return_scores": bool?}       Search-R1, verl, verl-tool, slime
                        {"query": str, ...}                                            SkyRL
    200  {"result": [[{"document": {"id", "contents"}, "score"}]]}                     one list per query, best first
         {"result": [[{"id", "contents"}]]}                                            without return_scores

    POST /search        {"query": str, "top_n": int?, "return_score": bool?}           ReCall, ReSearch
    200  [{"id", "contents"}]      or   [[{"id", "contents"}], [score]]

    POST /batch_search  {"query": [str], "top_n": int?, "return_score": bool?}
    200  [[{"id", "contents"}]]    or   [[[{"id", "contents"}]], [[score]]]

`top_k` and `k` are read as `topk` or `top_n`, and these as each other; other fields are ignored. When some queries of a
`/retrieve` request fail, their lists are empty, and a field `errors` has one sentence or null per query.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field, model_validator

from holdfast.retrieval.storage import as_json
from holdfast.retrieval.types import Document, Ranked

MAX_HITS = 1000


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is required, not true or false")
    return value


Count = Annotated[int, BeforeValidator(_number)]
"""Pydantic reads true as 1."""


class RetrieveRequest(BaseModel):
    """Body of `/retrieve`."""

    queries: list[str] = Field(
        default=[], description="What to search for. The answer has one list of passages per query."
    )
    topk: Count | None = Field(
        None,
        ge=0,
        le=MAX_HITS,
        validation_alias=AliasChoices("topk", "top_k", "k", "top_n"),
        description="Passages per query. 0 or null: the server's default.",
    )
    return_scores: bool = Field(False, description="Return each passage with its score, as {document, score}.")

    @model_validator(mode="before")
    @classmethod
    def _one_query(cls, data: object) -> object:
        if isinstance(data, dict):
            if "queries" not in data and isinstance(data.get("query"), str):
                return {**data, "queries": [data["query"]]}
            if isinstance(data.get("queries"), str):
                return {**data, "queries": [data["queries"]]}
            if "queries" not in data:
                raise ValueError("`queries` (a list of strings) or `query` (one string) is required")
        return data


class _Search(BaseModel):
    top_n: Count = Field(10, ge=1, le=MAX_HITS, validation_alias=AliasChoices("top_n", "topk", "top_k", "k"))
    return_score: bool = False


class SearchRequest(_Search):
    """Body of `/search`."""

    query: str


class BatchSearchRequest(_Search):
    """Body of `/batch_search`."""

    query: list[str]


# Passages are written from the lines that the index stores; nothing is parsed. Bodies come in parts, one passage at a
# time, so that whoever puts them together can stop at any length.

Parts = Iterator[bytes]


def retrieve_answer(documents: Sequence[Document], outcomes: Sequence[Ranked | str], *, scores: bool) -> Parts:
    """The body of an answer of `/retrieve`. An outcome that is a string says why that query failed."""
    write = _scored if scores else _bare
    yield b'{"result": '
    yield from _list((b"[]",) if isinstance(outcome, str) else write(documents, outcome) for outcome in outcomes)
    errors = [outcome if isinstance(outcome, str) else None for outcome in outcomes]
    if any(errors):
        yield b', "errors": ' + json.dumps(errors).encode()
    yield b"}"


def search_answer(documents: Sequence[Document], result: Ranked, *, scores: bool) -> Parts:
    """The body of an answer of `/search`."""
    passages = _bare(documents, result)
    return _list((passages, _scores(result))) if scores else passages


def batch_search_answer(documents: Sequence[Document], results: Sequence[Ranked], *, scores: bool) -> Parts:
    """The body of an answer of `/batch_search`."""
    passages = _list(_bare(documents, result) for result in results)
    return _list((passages, _list(map(_scores, results)))) if scores else passages


def _bare(documents: Sequence[Document], result: Ranked) -> Parts:
    """`[{"id", "contents"}]`."""
    return _list((as_json(documents, row),) for row in result.rows.tolist())


def _scored(documents: Sequence[Document], result: Ranked) -> Parts:
    """`[{"document": {"id", "contents"}, "score"}]`."""
    pairs = zip(result.rows.tolist(), result.scores.tolist(), strict=True)
    return _list((b'{"document": %b, "score": %a}' % (as_json(documents, row), score),) for row, score in pairs)


def _scores(result: Ranked) -> Parts:
    return _list((b"%a" % score,) for score in result.scores.tolist())


def _list(items: Iterable[Iterable[bytes]]) -> Parts:
    comma = b"["
    for item in items:
        yield comma
        yield from item
        comma = b", "
    yield b"[]" if comma == b"[" else b"]"
