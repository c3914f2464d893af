"""Any index folder, opened as what it is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.manifest import read_manifest
from holdfast.retrieval.postings import Ranked
from holdfast.retrieval.types import Document, Hit


class IndexedRetriever(Protocol):
    """A retriever over passages of its own."""

    documents: Sequence[Document]

    @property
    def in_process(self) -> bool: ...

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the passages and their order."""
        ...

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """As `Retriever.search`."""
        ...

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """As `search`, in rows of `documents` and scores."""
        ...


def open_index(
    folder: str | os.PathLike[str], *, expected_hash: str | None = None, model: str | None = None, device: str = "auto"
) -> IndexedRetriever:
    """The retriever of an index folder.

    Args:
        expected_hash: the `corpus_hash` of the corpus the caller means.
        model: of a dense index: where its encoder is now, if not where it was.
        device: of a dense index: auto, cpu or cuda.

    Raises:
        DataError: no index, a damaged one, or one of another corpus or model.
        ModelError: the encoder cannot be loaded.
    """
    if read_manifest(Path(folder))["kind"] == "dense":
        from holdfast.retrieval.dense import DenseRetriever  # torch, which BM25 does not need

        return DenseRetriever.load(folder, expected_hash=expected_hash, model=model, device=device)
    return BM25Retriever.load(folder, expected_hash=expected_hash)
