"""Build a dense index: passages are encoded block by block, each written before the next begins."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.files import write_whole
from holdfast.base.progress import Progress
from holdfast.base.stored import read_object
from holdfast.retrieval.corpus import Reading, files_seen
from holdfast.retrieval.dense import PROBE, SQ8, VECTORS, import_faiss
from holdfast.retrieval.encoder import Encoder, EncoderSpec
from holdfast.retrieval.storage import (
    StoredDocuments,
    read_passages,
    resumable_index,
    start_stage,
    write_documents,
    write_manifest,
)
from holdfast.retrieval.types import Document

BLOCK = 4096
"""Passages encoded between two writes."""
SQ8_CHUNK_ROWS = 4_096
_TRAINING_ROWS = 65_536
_FLAT = (b"IxFI", b"IxF2", b"IxFl")
_INDEX = re.compile(rb"(?:IH|INS|IP|Iv|Iw|Ix)\w+", re.ASCII)
"""How faiss begins its files."""
_KINDS = {b"IH": "HNSW", b"Iv": "IVF", b"Iw": "IVF"}
_NUMPY = b"\x93NUMPY"
_FLAT_HEAD = 45  # kind 4, dimensions 4, count 8, two dummies 16, trained 1, metric 4, number of floats 8
_PASSAGES_CHECKED = 4
_SAME_VECTOR = 0.99  # cosine


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
    fields: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    block: int = BLOCK,
) -> Reading:
    """Encode a corpus (`holdfast.retrieval.corpus.passages`) into the index folder `out`.

    An interrupted build continues when called again with the same arguments. Vectors are stored in half precision.

    Args:
        sq8: also store codes of one byte per dimension, and search by these.
        vectors: a file of vectors (`open_vectors`) to use instead of encoding. A few passages are encoded all the
            same, to check that the vectors are this model's.
        replace, fields: as of `passages`.

    Returns:
        What was read and skipped.

    Raises:
        DataError: the corpus or the vectors cannot be used, or `holdfast.retrieval.storage.resumable_index` refuses.
        ModelError: the encoder cannot be loaded.
    """

    progress, reading = progress or Progress(), Reading(corpus)
    with resumable_index(out) as folder:
        digest = write_documents(folder, read_passages(corpus, reading, progress, replace=replace, fields=fields or {}))
        progress.stage("loading the model")
        encoder = Encoder(spec, device, batch=batch)
        documents = StoredDocuments(folder)
        _refuse_other_vectors(folder.parent, {"corpus_sha256": digest, "encoder": asdict(spec)})
        given = None if vectors is None else open_vectors(vectors, len(documents), encoder.dimensions)
        if given is not None:
            refuse_foreign_vectors(given, documents, encoder, str(vectors))
        _encode(folder / VECTORS, documents, encoder, given, progress, block)
        if sq8:
            halves = np.memmap(folder / VECTORS, np.float16, "r").reshape(len(documents), -1)
            write_sq8(halves, folder / SQ8, progress)
        probe = [round(float(value), 6) for value in encoder.queries([PROBE])[0]]
        manifest = {"kind": "dense", "documents": len(documents), "corpus_sha256": digest}
        manifest["corpus_files"] = files_seen(corpus, fields)
        storage = {"storage": "sq8" if sq8 else "fp16", "dimensions": encoder.dimensions}
        write_manifest(folder, manifest | storage | {"encoder": asdict(spec), "probe": probe})
    return reading


def _refuse_other_vectors(parent: Path, made_from: dict[str, Any]) -> None:
    """Note what the vectors are made from. Raises `DataError` if an interrupted build noted something else."""
    path = parent / "made-from.json"
    if not path.is_file():
        write_whole(path, json.dumps(made_from))
    elif read_object(path, DataError, f"delete {parent}") != made_from:
        raise DataError(f"{parent} has vectors of another corpus or encoder; give the same ones, or delete that folder")


def _encode(
    path: Path,
    documents: StoredDocuments,
    encoder: Encoder,
    given: NDArray[Any] | None,
    progress: Progress,
    block: int,
) -> None:
    row_bytes = 2 * encoder.dimensions
    with open(path, "ab") as out:
        done = out.tell() // row_bytes // block * block  # whole blocks, as a build without a stop encodes them
        out.truncate(done * row_bytes)
        start_stage(progress, "encoding passages" if given is None else "copying vectors", len(documents), done)
        if done:
            progress.note(f"continuing after {done:,} passages")
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
            out.write(halves.data)
            out.flush()
            progress.advance(end)


def open_vectors(path: Path, count: int, dimensions: int) -> NDArray[Any]:
    """Precomputed vectors [count, dimensions], memory-mapped.

    Reads a flat faiss index such as Search-R1's `e5_Flat.index`, a `.npy` file of float32 or float16, or raw float32
    as Search-R1's index builder leaves it (`.memmap`). Raises `DataError` for another kind of index and another shape.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(len(_NUMPY))
        if head[:4] not in _FLAT and _INDEX.fullmatch(head[:4]):
            raise ValueError(
                f"it is a faiss index of kind {_KINDS.get(head[:2], head[:4].decode())}. If that keeps whole vectors, "
                "numpy.save('vectors.npy', index.reconstruct_n()) makes a file of them, for IVF after "
                "index.make_direct_map()"
            )
        if head == _NUMPY:
            vectors: NDArray[Any] = np.load(path, mmap_mode="r")
        elif path.suffix == ".npy":
            raise ValueError("it does not begin with numpy's header")
        else:
            offset = _FLAT_HEAD if head[:4] in _FLAT else 0
            if (size := path.stat().st_size - offset) % (4 * dimensions) or size < 4 * dimensions:
                raise ValueError(f"it has {size} bytes, and each vector of float32 takes {4 * dimensions}")
            vectors = np.memmap(path, np.float32, "r", offset).reshape(-1, dimensions)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read as vectors of {dimensions} numbers: {getattr(error, 'strerror', None) or error}. "
            "Give a .npy file, a flat faiss index or raw float32 (.memmap)"
        ) from error
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


def write_sq8(vectors: NDArray[np.float16], path: Path, progress: Progress) -> None:
    """Quantise vectors [rows, dimensions] into a faiss file of 8-bit codes (inner product). Memory: the codes."""
    faiss = import_faiss()
    count, dimensions = vectors.shape
    start_stage(progress, "quantising", count)
    index = faiss.IndexScalarQuantizer(dimensions, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:: -(-count // _TRAINING_ROWS)].astype(np.float32))
    index.codes.resize(count * dimensions)  # reserves the memory: while `add` makes room, it holds the codes twice
    index.codes.clear()
    for first in range(0, count, SQ8_CHUNK_ROWS):
        index.add(vectors[first : first + SQ8_CHUNK_ROWS].astype(np.float32))
        progress.advance(min(first + SQ8_CHUNK_ROWS, count))
    with open(path, "wb") as file:  # faiss itself would raise a `RuntimeError` where the disk is full
        faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
