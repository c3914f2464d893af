"""The design of Search-R1's retrieval server, stated again: what `retrieval_serving.py` compares with.

    python benchmarks/retrieval_reference.py INDEX --port 8001 --ranking bm25s

One process; a synchronous endpoint, which the framework runs in its pool of 40 threads; a request searches its queries
one after another; passages are fetched row by row; the answer is built as objects and encoded by the framework. No
batches across requests, no de-duplication, no cache. Written from a description of the design, not from its code.

`--ranking bm25s` ranks as FlashRAG does with bm25s (`bm25s.tokenize`, `BM25.retrieve`). `--ranking own` ranks with
holdfast's own search in the same index, so that the serving alone is compared. `--serving holdfast --ranking bm25s` is
the other way round: holdfast's server, without a cache, around bm25s' ranking.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s
import Stemmer
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.bm25_building import ROWS, SCORES, STARTS, VOCABULARY
from holdfast.retrieval.server.app import make_app
from holdfast.retrieval.server.batching import QueryCache
from holdfast.retrieval.storage import mapped
from holdfast.retrieval.types import Ranked


class QueryRequest(BaseModel):
    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


class Bm25sSearch:
    """One query at a time with bm25s' own ranking, on the same memory-mapped arrays."""

    def __init__(self, folder: Path, retriever: BM25Retriever) -> None:
        self._index = bm25s.BM25(method="lucene", backend="numpy")
        scores, rows, starts = (mapped(folder / name) for name in (SCORES, ROWS, STARTS))
        count = len(retriever.documents)
        self._index.scores = {"data": scores, "indices": rows, "indptr": starts, "num_docs": count}
        self._index.vocab_dict = json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))
        self._index.unique_token_ids_set = set(self._index.vocab_dict.values())
        self._index.nonoccurrence_array = None
        self._stemmer = Stemmer.Stemmer("english")
        self.documents, self.corpus_hash = retriever.documents, retriever.corpus_hash

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        return [self._one(query, k) for query in queries]

    def search(self, query: str, k: int) -> list[dict[str, Any]]:
        ranked = self._one(query, k)
        return [_item(self.documents[int(row)], score) for row, score in zip(ranked.rows, ranked.scores, strict=True)]

    def _one(self, query: str, k: int) -> Ranked:
        tokens = bm25s.tokenize([query], stopwords="en", stemmer=self._stemmer, show_progress=False)
        rows, scores = self._index.retrieve(tokens, k=k, show_progress=False, n_threads=0)
        return Ranked(rows[0], scores[0])


class OwnSearch:
    """One query at a time with holdfast's ranking."""

    def __init__(self, retriever: BM25Retriever) -> None:
        self._retriever = retriever

    def search(self, query: str, k: int) -> list[dict[str, Any]]:
        return [_item(hit.document, hit.score) for hit in self._retriever.search([query], k)[0]]


def _item(document: Any, score: float) -> dict[str, Any]:
    return {"document": {"id": document.id, "contents": document.contents}, "score": float(score)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--ranking", choices=["bm25s", "own"], default="bm25s")
    parser.add_argument("--serving", choices=["reference", "holdfast"], default="reference")
    options = parser.parse_args()
    retriever = BM25Retriever.load(options.index)
    if options.serving == "holdfast":
        app = make_app(Bm25sSearch(options.index, retriever), cache=QueryCache(0))  # type: ignore[arg-type]
        uvicorn.run(app, port=options.port, log_level="warning", access_log=False)
        return
    search = Bm25sSearch(options.index, retriever) if options.ranking == "bm25s" else OwnSearch(retriever)
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: QueryRequest) -> dict[str, Any]:
        k = request.topk or 3
        results = [search.search(query, k) for query in request.queries]
        if not request.return_scores:
            return {"result": [[item["document"] for item in items] for items in results]}
        return {"result": results}

    @app.get("/ready")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
