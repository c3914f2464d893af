"""Open any index folder with the retriever of its kind."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.storage import read_manifest
from holdfast.retrieval.types import IndexedRetriever


def open_index(
    folder: str | os.PathLike[str], *, expected_hash: str | None = None, model: str | None = None, device: str = "auto"
) -> IndexedRetriever:
    """The retriever of an index folder.

    Args:
        expected_hash: `corpus_hash` of the corpus that the caller expects.
        model: for a dense index, the encoder's present location, if it has moved.
        device: for a dense index: auto, cpu or cuda.

    Raises:
        DataError: the folder is not an index, is damaged, or belongs to another corpus or model.
        ModelError: the encoder cannot be loaded.
    """
    if read_manifest(Path(folder))["kind"] == "dense":
        from holdfast.retrieval.dense import DenseRetriever  # torch, which BM25 does not need

        return DenseRetriever.load(folder, expected_hash=expected_hash, model=model, device=device)
    return BM25Retriever.load(folder, expected_hash=expected_hash)
