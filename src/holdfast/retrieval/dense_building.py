"""A dense index: passages are encoded block by block, each written before the next is begun."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError
from holdfast.listener import Listener
from holdfast.retrieval.arrays import NpyWriter
from holdfast.retrieval.building import CHUNK, begin, build, read_into, write_whole
from holdfast.retrieval.dense import PROBE, SQ8, VECTORS
from holdfast.retrieval.documents import StoredDocuments
from holdfast.retrieval.encoder import Encoder, EncoderSpec
from holdfast.retrieval.manifest import SCRATCH
from holdfast.retrieval.sq8 import write_sq8
from holdfast.retrieval.vectors import open_vectors, refuse_strange_vectors

BLOCK = 4096
"""Passages between two commits."""
_PROGRESS = "encoded.json"


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
    listener: Listener | None = None,
    block: int = BLOCK,
    chunk: int = CHUNK,
) -> None:
    """Encode a corpus (`holdfast.retrieval.corpus.passages`) into the index folder `out`.

    Interrupted, it goes on when called again with the same arguments. Vectors are stored in half precision; with `sq8`
    they are searched by codes of a byte a dimension, beside them. `vectors`: take them from a file
    (`holdfast.retrieval.vectors`) instead of encoding; a few are encoded all the same, to see whether they are this
    model's. Raises `DataError`, `ModelError`.
    """

    def work(folder: Path, listener: Listener) -> dict[str, Any]:
        read = read_into(folder, corpus, listener, sink=None, replace=replace, chunk=chunk)
        listener.stage("loading the model")
        encoder = Encoder(spec, device, batch=batch)
        documents = StoredDocuments(folder)
        given = None if vectors is None else open_vectors(vectors, len(documents), encoder.dimensions)
        if given is not None:
            refuse_strange_vectors(given, documents, encoder, str(vectors))
        _encode(folder, documents, encoder, given, listener, block)
        if sq8:
            write_sq8(folder / VECTORS, folder / SQ8, listener)
        probe = [round(float(value), 6) for value in encoder.queries([PROBE])[0]]
        settings = {"kind": "dense", "documents": read.documents, "corpus_sha256": read.corpus_sha256}
        storage = {"storage": "sq8" if sq8 else "fp16", "dimensions": encoder.dimensions}
        return settings | storage | {"encoder": spec.settings(), "probe": probe}

    # Vectors may come from any file: all are checked to be this model's.
    plan = {"kind": "dense", "encoder": spec.settings(), "sq8": sq8, "replace": replace, "chunk": chunk}
    build(corpus, out, plan, work, listener or Listener())


def _encode(
    folder: Path,
    documents: StoredDocuments,
    encoder: Encoder,
    given: NDArray[Any] | None,
    listener: Listener,
    block: int,
) -> None:
    progress = folder / SCRATCH / _PROGRESS
    done = int(json.loads(progress.read_text())) if progress.is_file() else 0
    begin(listener, "encoding passages" if given is None else "copying vectors", len(documents), done)
    if done:
        listener.note(f"going on after {done:,} passages")
    with NpyWriter(folder / VECTORS, np.float16, (len(documents), encoder.dimensions), rows=done) as out:
        for first in range(done, len(documents), block):
            end = min(first + block, len(documents))
            if given is None:
                made = encoder.passages([document.contents for document in documents[first:end]])
            else:
                made = np.asarray(given[first:end], np.float32)
            halves = made.astype(np.float16)
            if not np.isfinite(halves).all():
                row = first + int(np.flatnonzero(~np.isfinite(halves).all(axis=1))[0])
                raise DataError(
                    f"the vector of passage {documents[row].id!r} (row {row}) is not finite in half precision; "
                    + (f"{encoder.spec.model} cannot be used for it" if given is None else "check the file of vectors")
                )
            out.write(halves)
            out.flush()
            os.fsync(out.fileno())
            write_whole(progress, json.dumps(end))
            listener.advance(end)
