"""Inner products with every vector, a chunk at a time: exact, and with any amount of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.retrieval.postings import Ranked

CHUNK_ROWS = 65_536
_MARGIN = 2e-5  # how far two ways of adding up one inner product may lie apart, as a share of the largest


class ExactSearch:
    """Vectors [rows, dimensions] of half precision, mapped from disk on a CPU, or held by a GPU as far as it has room.

    Products of a chunk are taken in float32; those that can be among the best are then computed again one by one in
    float64. A score therefore does not depend on what else is in the batch, and equal vectors tie, in corpus order.
    """

    def __init__(self, vectors: NDArray[Any], device: torch.device, *, chunk_rows: int = CHUNK_ROWS) -> None:
        self._vectors, self._device, self._chunk_rows = vectors, device, chunk_rows
        self._held: dict[int, torch.Tensor] = {}

    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]:
        """The `k` best rows of each of `queries` [queries, dimensions]."""
        wanted = torch.from_numpy(np.ascontiguousarray(queries, np.float32)).to(self._device)
        count = len(self._vectors)
        reached = torch.full((len(queries), 1), -torch.inf, device=self._device)
        near: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for first in range(0, count, self._chunk_rows):
            products = wanted @ self._chunk(first).T
            own = torch.topk(products, min(k, products.shape[1]), dim=1).values
            if own.shape[1] == k:
                reached = torch.maximum(reached, own[:, -1:])
            bound = reached - _MARGIN * torch.clamp(own[:, :1].abs(), min=1.0)
            which, rows = torch.nonzero(products >= bound, as_tuple=True)
            near.append((which.cpu().numpy(), rows.cpu().numpy() + first))
        owners, found = (np.concatenate(parts) for parts in zip(*near, strict=True))
        return [settle(self._vectors, query, found[owners == i], k) for i, query in enumerate(queries)]

    def _chunk(self, first: int) -> torch.Tensor:
        if first in self._held:
            return self._held[first].float()
        chunk = torch.from_numpy(self._vectors[first : first + self._chunk_rows]).to(self._device)
        if self._device.type == "cuda" and torch.cuda.mem_get_info(self._device)[0] > 4 * chunk.nbytes + 2**30:
            self._held[first] = chunk
        return chunk.float()


def settle(vectors: NDArray[Any], query: NDArray[np.float32], rows: NDArray[np.int64], k: int) -> Ranked:
    """The `k` best of few rows, by products of float64; equal ones in the order of the corpus."""
    rows = np.unique(rows)
    products = (vectors[rows].astype(np.float64) * query.astype(np.float64)).sum(axis=1)
    best = np.argsort(-products, kind="stable")[:k]
    return Ranked(rows[best], products[best].astype(np.float32))
