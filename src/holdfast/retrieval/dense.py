"""Dense retrieval in process: an encoder for queries, the vectors of all passages, and two ways to search them.

`ExactSearch` compares a query with every vector. `SQ8Search` compares it with codes of one byte per dimension, which
take half the memory of half precision. By the codes alone, close neighbours change places: of three hits, one in thirty
is another one. So the codes, in memory, only select candidates, whose vectors are then read from disk and compared.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.importing import optional
from holdfast.retrieval.encoder import Encoder, EncoderSpec
from holdfast.retrieval.storage import StoredDocuments, intact, open_manifest
from holdfast.retrieval.types import Document, Hit, Ranked, hits_of

VECTORS, SQ8 = "vectors.f2", "sq8.faiss"
PROBE = "Which town lies by the northern lake?"
"""The manifest holds this query's vector. Another model, prefix or pooling gives another vector."""
EXACT_CHUNK_ROWS = 65_536
_SAME_MODEL = 0.995  # cosine; half precision stays far above
_MARGIN = 2e-5  # the most by which two ways to sum an inner product differ, relative to the largest product
_CANDIDATES_PER_HIT, _LEAST_CANDIDATES = 4, 32
_NO_HITS = Ranked(np.empty(0, np.int64), np.empty(0, np.float32))


class ExactSearch:
    """Inner products with every vector, a chunk at a time. Memory is bounded by the chunk.

    Vectors are [rows, dimensions] in half precision: mapped from disk on a CPU, held by a GPU as far as they fit.

    Products of a chunk are taken in float32. Those that can be among the best are then computed again one by one in
    float64. A score therefore does not depend on the rest of the batch, and equal vectors tie, in corpus order.
    """

    def __init__(self, vectors: NDArray[Any], device: torch.device, *, chunk_rows: int = EXACT_CHUNK_ROWS) -> None:
        self._vectors, self._device, self._chunk_rows = vectors, device, chunk_rows
        self._on_gpu: dict[int, torch.Tensor] = {}

    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]:
        """The `k` best rows for each of `queries` [queries, dimensions]."""
        query_vectors = torch.from_numpy(np.ascontiguousarray(queries, np.float32)).to(self._device)
        reached = torch.full((len(queries), 1), -torch.inf, device=self._device)
        candidates: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for first in range(0, len(self._vectors), self._chunk_rows):
            products = query_vectors @ self._chunk(first).T
            chunk_best = torch.topk(products, min(k, products.shape[1]), dim=1).values
            if chunk_best.shape[1] == k:
                reached = torch.maximum(reached, chunk_best[:, -1:])
            bound = reached - _MARGIN * torch.clamp(chunk_best[:, :1].abs(), min=1.0)
            query_numbers, rows = torch.nonzero(products >= bound, as_tuple=True)
            candidates.append((query_numbers.cpu().numpy(), rows.cpu().numpy() + first))
        query_numbers_all, rows_all = (np.concatenate(parts) for parts in zip(*candidates, strict=True))
        return [
            rescore_exact(self._vectors, query, rows_all[query_numbers_all == i], k) for i, query in enumerate(queries)
        ]

    def _chunk(self, first: int) -> torch.Tensor:
        if first in self._on_gpu:
            return self._on_gpu[first].float()
        chunk = torch.from_numpy(self._vectors[first : first + self._chunk_rows]).to(self._device)
        if self._device.type == "cuda" and torch.cuda.mem_get_info(self._device)[0] > 4 * chunk.nbytes + 2**30:
            self._on_gpu[first] = chunk
        return chunk.float()


class SQ8Search:
    """A faiss file of 8-bit codes, mapped into memory where faiss can, and the vectors it was made from."""

    def __init__(self, path: Path, vectors: NDArray[Any]) -> None:
        """Raises `DataError` for a file that faiss cannot read, `MissingExtra` without faiss."""
        try:
            self._index = import_faiss().read_index(str(path), import_faiss().IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{path} is damaged: faiss cannot read it") from error
        self._vectors = vectors

    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]:
        """The `k` best rows for each of `queries` [queries, dimensions]."""
        count = min(max(_CANDIDATES_PER_HIT * k, _LEAST_CANDIDATES), len(self._vectors))
        _, rows = self._index.search(np.ascontiguousarray(queries, np.float32), count)
        return [
            rescore_exact(self._vectors, query, candidates, k) for query, candidates in zip(queries, rows, strict=True)
        ]


def rescore_exact(vectors: NDArray[Any], query: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> Ranked:
    """The `k` best of a few rows, by products in float64; equal ones in corpus order."""
    rows = np.unique(rows)
    products = (vectors[rows].astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    best = np.argsort(-products, kind="stable")[:k]
    return Ranked(rows[best], products[best].astype(np.float32))


def import_faiss() -> Any:
    """Raises `MissingExtra`."""
    return optional("faiss", "dense", "faiss-cpu")


class DenseRetriever:
    """Ranks passages by the inner product of vectors. Threads may share it; one of them searches at a time."""

    in_process = True

    def __init__(
        self, encoder: Encoder, search: ExactSearch | SQ8Search, documents: Sequence[Document], corpus_hash: str
    ) -> None:
        """Use `load`."""
        self._encoder, self._search = encoder, search
        self._lock = threading.Lock()
        self.documents = documents
        self.corpus_hash = corpus_hash

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first. A blank query has none."""
        return hits_of(self.rank(queries, k), self.documents)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The hits of `search`, as rows of `documents` and scores."""
        if k < 1:
            raise ValueError(f"k = {k}; ask for 1 hit or more")
        not_blank = [query for query in queries if query.strip()]
        if not not_blank:
            return [_NO_HITS for _ in queries]
        with self._lock:
            ranked = iter(self._search.best(self._encoder.queries(not_blank), k))
        return [next(ranked) if query.strip() else _NO_HITS for query in queries]

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        expected_hash: str | None = None,
        model: str | None = None,
        device: str = "auto",
    ) -> DenseRetriever:
        """Open what `holdfast index build --dense` wrote, as `holdfast.retrieval.open_index` does."""
        folder = Path(folder)
        with intact(folder):
            manifest = open_manifest(folder, "dense", expected_hash)
            spec = EncoderSpec(**(manifest["encoder"] | ({"model": model} if model else {})))
        encoder = Encoder(spec, device)
        refuse_other_model(encoder, manifest["probe"], f"the index {folder}")
        with intact(folder):
            # Copy-on-write: torch warns about read-only memory. Nothing writes to it.
            vectors = np.asarray(np.memmap(folder / VECTORS, np.float16, "c")).reshape(-1, manifest["dimensions"])
            is_sq8 = manifest["storage"] == "sq8"
            search = SQ8Search(folder / SQ8, vectors) if is_sq8 else ExactSearch(vectors, encoder.device)
            return cls(encoder, search, StoredDocuments(folder), str(manifest["corpus_sha256"]))


def refuse_other_model(encoder: Encoder, probe: Sequence[float], what: str) -> None:
    """Raises `DataError` when the encoder gives the probe query another vector than the index has."""
    expected, actual = np.array(probe), encoder.queries([PROBE])[0]
    if expected.shape != actual.shape or (
        expected @ actual < _SAME_MODEL * np.linalg.norm(expected) * np.linalg.norm(actual)
    ):
        raise DataError(
            f"{what} was built with another model than {encoder.spec.model}, or with an older version of it; name the "
            "right one with --model, or build the index again"
        )
