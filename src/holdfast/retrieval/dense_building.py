"""Build a dense index: passages are encoded block by block, each written before the next begins."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.files import write_whole
from holdfast.base.progress import Progress
from holdfast.retrieval.building import CHUNK, build, copy_passages, start_stage
from holdfast.retrieval.dense import PROBE, SQ8, VECTORS, import_faiss, open_faiss
from holdfast.retrieval.encoder import Encoder, EncoderSpec
from holdfast.retrieval.storage import SCRATCH, NpyWriter, StoredDocuments, blocks
from holdfast.retrieval.types import Document

BLOCK = 4096
"""Passages between two commits."""
SQ8_CHUNK_ROWS = 4_096
_PROGRESS = "encoded.json"
_FLAT = (b"IxFI", b"IxF2", b"IxFl")
_FLAT_HEAD = 45  # kind 4, dimensions 4, count 8, two dummies 16, trained 1, metric 4, number of floats 8
_PASSAGES_CHECKED = 4
_SAME_VECTOR = 0.99  # cosine
_NTOTAL = slice(8, 16)  # in faiss' header, after the kind (4 bytes) and the dimensions (4)


def build_dense(
    corpus: Path,
    out: Path,
    spec: EncoderSpec,
    *,
    sq8: bool = False,
    vectors: Path | None = None,
    device: str = "auto",
    batch: int = 64,
    replace: bool = False,
    progress: Progress | None = None,
    block: int = BLOCK,
    chunk: int = CHUNK,
) -> None:
    """Encode a corpus (`holdfast.retrieval.corpus.passages`) into the index folder `out`.

    An interrupted build continues when called again with the same arguments. Vectors are stored in half precision.

    Args:
        sq8: also store codes of one byte per dimension, and search by these.
        vectors: a file of vectors (`open_vectors`) to use instead of encoding. A few passages are encoded all the
            same, to check that the vectors are this model's.
        replace: put U+FFFD where a line is not UTF-8, instead of skipping the line.

    Raises:
        DataError: the corpus or the vectors cannot be used, or `holdfast.retrieval.building.build` refuses.
        ModelError: the encoder cannot be loaded.
    """

    def work(folder: Path, progress: Progress) -> dict[str, Any]:
        copied = copy_passages(folder, corpus, progress, sink=None, replace=replace, chunk=chunk)
        progress.stage("loading the model")
        encoder = Encoder(spec, device, batch=batch)
        documents = StoredDocuments(folder)
        given = None if vectors is None else open_vectors(vectors, len(documents), encoder.dimensions)
        if given is not None:
            refuse_foreign_vectors(given, documents, encoder, str(vectors))
        _encode(folder, documents, encoder, given, progress, block)
        if sq8:
            write_sq8(folder / VECTORS, folder / SQ8, progress)
        probe = [round(float(value), 6) for value in encoder.queries([PROBE])[0]]
        manifest = {"kind": "dense", "documents": copied.documents, "corpus_sha256": copied.corpus_sha256}
        storage = {"storage": "sq8" if sq8 else "fp16", "dimensions": encoder.dimensions}
        return manifest | storage | {"encoder": asdict(spec), "probe": probe}

    # `vectors` is not among them: vectors from any file are checked to be this model's.
    settings = {"kind": "dense", "encoder": asdict(spec), "sq8": sq8, "replace": replace, "chunk": chunk}
    build(corpus, out, settings, work, progress or Progress())


def _encode(
    folder: Path,
    documents: StoredDocuments,
    encoder: Encoder,
    given: NDArray[Any] | None,
    progress: Progress,
    block: int,
) -> None:
    so_far = folder / SCRATCH / _PROGRESS
    done = int(json.loads(so_far.read_text())) if so_far.is_file() else 0
    start_stage(progress, "encoding passages" if given is None else "copying vectors", len(documents), done)
    if done:
        progress.note(f"continuing after {done:,} passages")
    with NpyWriter(folder / VECTORS, np.float16, (len(documents), encoder.dimensions), rows=done) as out:
        for first in range(done, len(documents), block):
            end = min(first + block, len(documents))
            if given is None:
                vectors = encoder.passages([document.contents for document in documents[first:end]])
            else:
                vectors = np.asarray(given[first:end], np.float32)
            halves = vectors.astype(np.float16)
            if not np.isfinite(halves).all():
                row = first + int(np.flatnonzero(~np.isfinite(halves).all(axis=1))[0])
                raise DataError(
                    f"the vector of passage {documents[row].id!r} (row {row}) is not finite in half precision; "
                    + (f"{encoder.spec.model} cannot be used for it" if given is None else "check the file of vectors")
                )
            out.write(halves)
            out.flush()
            os.fsync(out.fileno())
            write_whole(so_far, json.dumps(end))
            progress.advance(end)


def open_vectors(path: Path, count: int, dimensions: int) -> NDArray[Any]:
    """Precomputed vectors [count, dimensions], memory-mapped.

    Reads a flat faiss index such as Search-R1's `e5_Flat.index`, a `.npy` file of float32 or float16, or raw float32
    as Search-R1's index builder leaves it (`.memmap`). Raises `DataError` for another shape.
    """
    try:
        if path.suffix == ".npy":
            vectors: NDArray[Any] = np.load(path, mmap_mode="r")
        else:
            with open(path, "rb") as file:
                kind = file.read(4)
            raw = np.memmap(path, np.float32, "r", offset=_FLAT_HEAD if kind in _FLAT else 0)
            if raw.size != count * dimensions:
                raise DataError(
                    f"{path} holds {raw.size:,} numbers; {count:,} passages of {dimensions} dimensions need "
                    f"{count * dimensions:,}"
                )
            vectors = raw.reshape(count, dimensions)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as vectors: {error}") from error
    if vectors.shape != (count, dimensions) or vectors.dtype not in (np.float32, np.float16):
        raise DataError(
            f"{path} holds {vectors.dtype} of shape {list(vectors.shape)}; needed are float32 or float16 of "
            f"{[count, dimensions]}: one row per passage, in the order of the corpus"
        )
    return vectors


def refuse_foreign_vectors(vectors: NDArray[Any], documents: Sequence[Document], encoder: Encoder, name: str) -> None:
    """Encode a few passages and compare. Raises `DataError`.

    Vectors of another model, of another corpus, or made with another prefix give searches that look almost right.
    """
    rows = sorted({round(i * (len(documents) - 1) / (_PASSAGES_CHECKED - 1)) for i in range(_PASSAGES_CHECKED)})
    encoded = encoder.passages([documents[row].contents for row in rows])
    for row, expected in zip(rows, encoded, strict=True):
        given = np.asarray(vectors[row], np.float32)
        cosine = float(expected @ given / max(np.linalg.norm(expected) * np.linalg.norm(given), 1e-9))
        if not cosine >= _SAME_VECTOR:
            raise DataError(
                f"{name}: the vector of row {row} differs from what {encoder.spec.model} gives for passage "
                f"{documents[row].id!r} (cosine {cosine:.3f}). The file belongs to another corpus or model, or was "
                f"made without the prefix {encoder.spec.passage_prefix!r}"
            )


def write_sq8(vectors: Path, path: Path, progress: Progress) -> None:
    """Quantise a `.npy` file of vectors [rows, dimensions] into a faiss file, in two passes. Memory: one chunk.

    The file is faiss' own (IndexScalarQuantizer, 8 bits, inner product). It is written chunk by chunk because
    `index.add` would hold all codes, and twice as many while they grow.
    """
    faiss = import_faiss()
    count, dimensions = np.load(vectors, mmap_mode="r").shape
    start_stage(progress, "ranges of dimensions", count)
    low, high = np.full(dimensions, np.inf, np.float32), np.full(dimensions, -np.inf, np.float32)
    done = 0
    for block in blocks(vectors, SQ8_CHUNK_ROWS):
        low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        done += len(block)
        progress.advance(done)
    index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(np.stack([low, high]).astype(np.float32))  # what training on all rows would learn
    head = bytearray(faiss.serialize_index(index).tobytes())
    if head[_NTOTAL] != bytes(8) or head[-8:] != bytes(8):
        raise DataError("this version of faiss writes its files in another way; install faiss-cpu 1.15")
    head[_NTOTAL] = count.to_bytes(8, "little")
    head[-8:] = (count * index.code_size).to_bytes(8, "little")
    start_stage(progress, "quantising", count)
    with open(path, "wb") as file:
        file.write(head)
        done = 0
        for block in blocks(vectors, SQ8_CHUNK_ROWS):
            file.write(index.sa_encode(np.ascontiguousarray(block, np.float32)).data)
            done += len(block)
            progress.advance(done)
    if int(open_faiss(path).ntotal) != count:
        raise DataError(f"faiss cannot read back what was written to {path}; install faiss-cpu 1.15")
