"""Two hundred callers at once against one batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.retrieval import open_index
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.dense_building import build_dense
from holdfast.retrieval.encoder import spec_of


@pytest.mark.parametrize("kind", ["bm25", "dense", "sq8"])
def test_a_caller_among_many_gets_what_one_batch_gives(
    write_corpus: Any, encoder: Any, served: Any, tmp_path: Path, kind: str
) -> None:
    corpus = write_corpus(400)
    if kind == "bm25":
        build_bm25(corpus, tmp_path / "index")
    else:
        build_dense(corpus, tmp_path / "index", spec_of(str(encoder())), sq8=kind == "sq8", device="cpu")
    index = open_index(tmp_path / "index", device="cpu")
    queries = [f"w{i} w{3 * i % 71} w{i % 5}" for i in range(200)]

    async def talk(client: Any) -> list[Any]:
        bodies = ({"queries": [query], "topk": 3, "return_scores": True} for query in queries)
        answers = await asyncio.gather(*(client.post("/retrieve", json=body) for body in bodies))
        return [answer.json()["result"][0] for answer in answers]

    tolerance = 0.0 if kind == "bm25" else 1e-5
    for hits, expected in zip(served(talk, index), index.search(queries, 3), strict=True):
        assert [hit["document"]["id"] for hit in hits] == [hit.document.id for hit in expected]
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=tolerance, rel=0)
