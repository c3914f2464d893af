"""Dense retrieval in process: an encoder for queries, and the vectors of all passages."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import DataError
from holdfast.retrieval.documents import StoredDocuments
from holdfast.retrieval.encoder import Encoder, EncoderSpec
from holdfast.retrieval.exact import ExactSearch
from holdfast.retrieval.manifest import check_files, read_manifest, refuse_other_corpus
from holdfast.retrieval.postings import Ranked
from holdfast.retrieval.sq8 import SQ8Search
from holdfast.retrieval.types import Document, Hit

VECTORS, SQ8 = "vectors.npy", "sq8.faiss"
PROBE = "Which town lies by the northern lake?"
"""A query whose vector the manifest holds: another model, prefix or pooling gives another one."""
_SAME = 0.995  # cosine; half precision stays far above
_NONE = Ranked(np.empty(0, np.int64), np.empty(0, np.float32))


class _Search(Protocol):
    def best(self, queries: NDArray[np.float32], k: int) -> list[Ranked]: ...


class DenseRetriever:
    """Ranks passages by the inner product of vectors. Threads may share it; one searches at a time."""

    in_process = True

    def __init__(
        self, encoder: Encoder, search: _Search, documents: Sequence[Document], settings: dict[str, Any]
    ) -> None:
        """Use `load`."""
        self._encoder, self._search, self._settings = encoder, search, settings
        self._one = threading.Lock()
        self.documents = documents

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the indexed documents and their order (`holdfast.retrieval.corpus.corpus_hash`)."""
        return str(self._settings["corpus_sha256"])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first. A query of blanks has none."""
        return [
            [Hit(self.documents[int(row)], float(score)) for row, score in zip(found.rows, found.scores, strict=True)]
            for found in self.rank(queries, k)
        ]

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """As `search`, in rows of `documents` and scores."""
        if k < 1:
            raise ValueError(f"k = {k}; ask for 1 hit or more")
        asked = [query for query in queries if query.strip()]
        if not asked:
            return [_NONE for _ in queries]
        with self._one:
            found = iter(self._search.best(self._encoder.queries(asked), k))
        return [next(found) if query.strip() else _NONE for query in queries]

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        expected_hash: str | None = None,
        model: str | None = None,
        device: str = "auto",
    ) -> DenseRetriever:
        """Open what `holdfast index build --dense` wrote.

        Args:
            expected_hash: the `corpus_hash` of the corpus the caller means.
            model: where the encoder is now, if not where it was when the index was built.
            device: auto, cpu or cuda.

        Raises:
            DataError: no index, a damaged one, one of another corpus, or of another model.
            ModelError: the encoder cannot be loaded.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest["kind"] != "dense":
            raise DataError(f"{folder} is a {manifest['kind']} index; `holdfast.retrieval.index.open_index` opens it")
        refuse_other_corpus(folder, manifest, expected_hash)
        check_files(folder, manifest)
        spec = EncoderSpec(**(manifest["encoder"] | ({"model": model} if model else {})))
        encoder = Encoder(spec, device)
        refuse_other_model(encoder, manifest["probe"], f"the index {folder}")
        # Copy-on-write, because torch wants memory it could write to; nothing does.
        vectors = np.asarray(np.load(folder / VECTORS, mmap_mode="c"))
        search: _Search = ExactSearch(vectors, encoder.device)
        if manifest["storage"] == "sq8":
            search = SQ8Search(folder / SQ8, vectors)
        return cls(encoder, search, StoredDocuments(folder), manifest)


def refuse_other_model(encoder: Encoder, probe: Sequence[float], what: str) -> None:
    """Raises `DataError` when the encoder gives the probe another vector than the one that was kept."""
    kept, own = np.array(probe), encoder.queries([PROBE])[0]
    if kept.shape != own.shape or kept @ own < _SAME * np.linalg.norm(kept) * np.linalg.norm(own):
        raise DataError(
            f"{what} was built with another model than {encoder.spec.model}, or an older version of it; name the right "
            "one with --model, or build the index again"
        )
