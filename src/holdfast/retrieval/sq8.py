"""Vectors of one byte a dimension with faiss: half the memory of half precision, and nearly its order.

By the codes alone, neighbours that lie close to each other change places: of three hits one in thirty is another one.
So the codes, which are in memory, only choose; the vectors of what they chose are read from the disk and compared.

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
from holdfast.listener import Listener
from holdfast.retrieval.arrays import blocks
from holdfast.retrieval.building import begin
from holdfast.retrieval.exact import settle
from holdfast.retrieval.postings import Ranked

CHUNK_ROWS = 4_096
_CHOSEN_PER_HIT, _LEAST_CHOSEN = 4, 32
_NTOTAL = slice(8, 16)  # in faiss' header, behind the kind (4 bytes) and the dimensions (4)


def write_sq8(vectors: Path, path: Path, listener: Listener) -> None:
    """Quantise a `.npy` file of vectors [rows, dimensions] into a faiss file: one pass for the range of each dimension,
    one for the codes. Memory: one chunk."""
    faiss = _faiss()
    count, dimensions = np.load(vectors, mmap_mode="r").shape
    begin(listener, "ranges of dimensions", count)
    low, high = np.full(dimensions, np.inf, np.float32), np.full(dimensions, -np.inf, np.float32)
    done = 0
    for block in blocks(vectors, CHUNK_ROWS):
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        done += len(block)
        listener.advance(done)
    index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(np.stack([low, high]).astype(np.float32))  # what training on all rows would learn
    head = bytearray(faiss.serialize_index(index).tobytes())
    if head[_NTOTAL] != bytes(8) or head[-8:] != bytes(8):
        raise DataError("this version of faiss writes its files in another way; install faiss-cpu 1.15")
    head[_NTOTAL] = count.to_bytes(8, "little")
    head[-8:] = (count * index.code_size).to_bytes(8, "little")
    begin(listener, "quantising", count)
    with open(path, "wb") as file:
        file.write(head)
        done = 0
        for block in blocks(vectors, CHUNK_ROWS):
            file.write(index.sa_encode(np.ascontiguousarray(block, np.float32)).data)
            done += len(block)
            listener.advance(done)
    if int(_open(path).ntotal) != count:
        raise DataError(f"faiss cannot read back what was written to {path}; install faiss-cpu 1.15")


class SQ8Search:
    """A faiss file, mapped into memory where faiss can, and the vectors it was made of."""

    def __init__(self, path: Path, vectors: NDArray[Any]) -> None:
        """Raises `DataError` for a file that faiss cannot read."""
        self._index, self._vectors = _open(path), vectors

    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]:
        """The `k` best rows of each of `queries` [queries, dimensions]."""
        chosen = min(max(_CHOSEN_PER_HIT * k, _LEAST_CHOSEN), len(self._vectors))
        _, rows = self._index.search(np.ascontiguousarray(queries, np.float32), chosen)
        return [settle(self._vectors, query, own, k) for query, own in zip(queries, rows, strict=True)]


def _open(path: Path) -> Any:
    faiss = _faiss()
    try:
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise DataError(f"{path} is damaged: faiss cannot read it") from error


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError:
        raise MissingExtra("faiss-cpu", "dense") from None
    return faiss
