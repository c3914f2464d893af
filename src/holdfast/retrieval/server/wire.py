"""What callers of the server send, and what they get: Search-R1's `/retrieve` with its relatives, and ReCall's two.

    POST /retrieve      {"queries": [str], "topk": int?, "return_scores": bool?}       Search-R1, verl, verl-tool, slime
                        {"query": str, ...}                                            SkyRL
    200  {"result": [[{"document": {"id", "contents"}, "score"}]]}                     one list per query, best first
         {"result": [[{"id", "contents"}]]}                                            without return_scores

    POST /search        {"query": str, "top_n": int?, "return_score": bool?}           ReCall, ReSearch
    200  [{"id", "contents"}]      or   [[{"id", "contents"}], [score]]

    POST /batch_search  {"query": [str], "top_n": int?, "return_score": bool?}
    200  [[{"id", "contents"}]]    or   [[[{"id", "contents"}]], [[score]]]

Fields that are not named here are ignored. When some queries of a `/retrieve` fail and others do not, the lists of
those that failed are empty and a field `errors` holds one sentence per query, null where there is none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import BaseModel, Field, model_validator

from holdfast.retrieval.documents import as_json
from holdfast.retrieval.postings import Ranked
from holdfast.retrieval.types import Document

MOST_HITS = 1000


class RetrieveRequest(BaseModel):
    """Body of `/retrieve`."""

    queries: list[str] = Field(default=[], description="What to search for; one list of passages comes back for each.")
    topk: int | None = Field(None, ge=0, le=MOST_HITS, description="Passages a query; 0 or null: the server's default.")
    return_scores: bool = Field(False, description="Each passage with its score, as {document, score}.")

    @model_validator(mode="before")
    @classmethod
    def _one_query(cls, data: object) -> object:
        if isinstance(data, dict):
            if "queries" not in data and isinstance(data.get("query"), str):
                return {**data, "queries": [data["query"]]}
            if isinstance(data.get("queries"), str):
                return {**data, "queries": [data["queries"]]}
            if "queries" not in data:
                raise ValueError("`queries` (a list of texts) or `query` (one text) is required")
        return data


class SearchRequest(BaseModel):
    """Body of `/search`."""

    query: str
    top_n: int = Field(10, ge=1, le=MOST_HITS)
    return_score: bool = False


class BatchSearchRequest(BaseModel):
    """Body of `/batch_search`."""

    query: list[str]
    top_n: int = Field(10, ge=1, le=MOST_HITS)
    return_score: bool = False


class Passages:
    """Writes hits as JSON, from the lines the index keeps: nothing is parsed on the way."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def bare(self, found: Ranked) -> str:
        """`[{"id", "contents"}]`."""
        return f"[{', '.join(self._lines(found))}]"

    def scored(self, found: Ranked) -> str:
        """`[{"document": {"id", "contents"}, "score"}]`."""
        pairs = zip(self._lines(found), found.scores.tolist(), strict=True)
        items = [f'{{"document": {line}, "score": {score!r}}}' for line, score in pairs]
        return f"[{', '.join(items)}]"

    def _lines(self, found: Ranked) -> list[str]:
        return [as_json(self._documents, row) for row in found.rows.tolist()]


def retrieve_answer(passages: Passages, outcomes: Sequence[Ranked | str], *, scores: bool) -> bytes:
    """Body of an answer of `/retrieve`; an outcome that is a text is what went wrong with that query."""
    write = passages.scored if scores else passages.bare
    lists = ["[]" if isinstance(outcome, str) else write(outcome) for outcome in outcomes]
    text = f'{{"result": [{", ".join(lists)}]'
    if any(isinstance(outcome, str) for outcome in outcomes):
        errors = [outcome if isinstance(outcome, str) else None for outcome in outcomes]
        text += f', "errors": {json.dumps(errors)}'
    return (text + "}").encode("utf-8")


def search_answer(passages: Passages, found: Ranked, *, scores: bool) -> bytes:
    """Body of an answer of `/search`."""
    documents = passages.bare(found)
    return (f"[{documents}, {found.scores.tolist()}]" if scores else documents).encode("utf-8")


def batch_search_answer(passages: Passages, found: Sequence[Ranked], *, scores: bool) -> bytes:
    """Body of an answer of `/batch_search`."""
    documents = f"[{', '.join(map(passages.bare, found))}]"
    return (f"[{documents}, {[one.scores.tolist() for one in found]}]" if scores else documents).encode("utf-8")
