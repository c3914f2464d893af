"""Vectors that somebody else computed: flat faiss indexes, `.npy` files, raw float32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError
from holdfast.retrieval.encoder import Encoder
from holdfast.retrieval.types import Document

_FLAT = (b"IxFI", b"IxF2", b"IxFl")
_FLAT_HEAD = 45  # kind 4, dimensions 4, count 8, two dummies 16, trained 1, metric 4, number of floats 8
_CHECKED = 4
_SAME = 0.99


def open_vectors(path: Path, count: int, dimensions: int) -> NDArray[Any]:
    """An array [count, dimensions], mapped: from a flat faiss index such as Search-R1's `e5_Flat.index`, from a `.npy`
    of float32 or float16, or from raw float32 as its index builder leaves them (`.memmap`). Raises `DataError` for
    another shape."""
    try:
        if path.suffix == ".npy":
            found = np.load(path, mmap_mode="r")
        else:
            with open(path, "rb") as file:
                kind = file.read(4)
            offset = _FLAT_HEAD if kind in _FLAT else 0
            raw = np.memmap(path, np.float32, "r", offset=offset)
            if raw.size != count * dimensions:
                raise DataError(
                    f"{path} holds {raw.size:,} numbers; {count:,} passages of {dimensions} dimensions need "
                    f"{count * dimensions:,}"
                )
            found = raw.reshape(count, dimensions)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as vectors: {error}") from error
    if found.shape != (count, dimensions) or found.dtype not in (np.float32, np.float16):
        raise DataError(
            f"{path} holds {found.dtype} of shape {list(found.shape)}; needed are float32 or float16 of "
            f"{[count, dimensions]}: a row a passage, in the order of the corpus"
        )
    return found


def refuse_strange_vectors(vectors: NDArray[Any], documents: Sequence[Document], encoder: Encoder, name: str) -> None:
    """Encode a few passages and compare: vectors of another model, another corpus, or made with another prefix, give
    searches that look almost right. Raises `DataError`."""
    rows = sorted({round(i * (len(documents) - 1) / (_CHECKED - 1)) for i in range(_CHECKED)})
    own = encoder.passages([documents[row].contents for row in rows])
    for row, expected in zip(rows, own, strict=True):
        given = np.asarray(vectors[row], np.float32)
        likeness = float(expected @ given / max(np.linalg.norm(expected) * np.linalg.norm(given), 1e-9))
        if not likeness >= _SAME:
            raise DataError(
                f"{name}: the vector of row {row} is not what {encoder.spec.model} gives for passage "
                f"{documents[row].id!r} (cosine {likeness:.3f}). The file belongs to another corpus or model, or was "
                f"made without the prefix {encoder.spec.passage_prefix!r}"
            )
