"""Vectors of one byte a dimension with faiss: half the memory of half precision, at a small loss of order.

The file is faiss' own (IndexScalarQuantizer, 8 bits, inner product), written chunk by chunk: `index.add` would hold
all codes, and twice of them while they grow.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError, MissingExtra
from holdfast.retrieval.building import Watcher, begin
from holdfast.retrieval.postings import Ranked

CHUNK_ROWS = 16_384
_SAMPLE = 100_000  # rows that the range of a dimension is learned from
_NTOTAL = slice(8, 16)  # in faiss' header, behind the kind (4 bytes) and the dimensions (4)


def write_sq8(vectors: NDArray[Any], path: Path, watcher: Watcher) -> None:
    """Quantise `vectors` [rows, dimensions] into a faiss file. Memory: the sample and one chunk."""
    faiss = _faiss()
    count, dimensions = vectors.shape
    index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    step = max(count // _SAMPLE, 1)
    index.train(np.ascontiguousarray(vectors[::step][:_SAMPLE], np.float32))
    head = bytearray(faiss.serialize_index(index).tobytes())
    if head[_NTOTAL] != bytes(8) or head[-8:] != bytes(8):
        raise DataError("this version of faiss writes its files in another way; install faiss-cpu 1.15")
    head[_NTOTAL] = count.to_bytes(8, "little")
    head[-8:] = (count * index.code_size).to_bytes(8, "little")
    begin(watcher, "quantising", count)
    with open(path, "wb") as file:
        file.write(head)
        for first in range(0, count, CHUNK_ROWS):
            chunk = np.ascontiguousarray(vectors[first : first + CHUNK_ROWS], np.float32)
            file.write(index.sa_encode(chunk).data)
            watcher.advance(min(first + CHUNK_ROWS, count))
    if SQ8Search(path).count != count:
        raise DataError(f"faiss cannot read back what was written to {path}; install faiss-cpu 1.15")


class SQ8Search:
    """A faiss file, mapped into memory where faiss can."""

    def __init__(self, path: Path) -> None:
        """Raises `DataError` for a file that faiss cannot read."""
        faiss = _faiss()
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{path} is damaged: faiss cannot read it") from error
        self.count, self.dimensions = int(self._index.ntotal), int(self._index.d)

    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]:
        """The `k` best rows of each of `queries` [queries, dimensions], by what the codes stand for."""
        scores, rows = self._index.search(np.ascontiguousarray(queries), min(k, self.count))
        return [Ranked(own.astype(np.int64), score) for own, score in zip(rows, scores, strict=True)]


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss-cpu", "dense") from None
    return faiss
