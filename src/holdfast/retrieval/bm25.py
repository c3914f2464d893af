"""BM25 in process: scores as bm25s computes them, our own words and ranking, so that equal inputs give equal hits
everywhere, in memory or memory-mapped."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from holdfast.errors import DataError, MissingExtra
from holdfast.retrieval.arrays import mapped
from holdfast.retrieval.corpus import corpus_hash
from holdfast.retrieval.documents import DocumentWriter, StoredDocuments, write_offsets
from holdfast.retrieval.manifest import MANIFEST, check_files, read_manifest, refuse_other_corpus, write_manifest
from holdfast.retrieval.postings import Postings, Ranked
from holdfast.retrieval.types import Document, Hit
from holdfast.retrieval.words import Vocabulary, query_words, stemmer

ARRAYS, LARGEST = "bm25s", "largest.npy"
DATA, ROWS, STARTS = "data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy"
VOCABULARY, PARAMETERS = "vocab.index.json", "params.index.json"


class BM25Retriever:
    """Ranks passages by BM25 (Lucene's variant: a score is above 0 exactly when a word of the query occurs). Safe to
    share between threads.

    >>> documents = [Document("a", "Orsa\\nA town by the lake."), Document("b", "Mora\\nTowns have lakes.")]
    >>> [hit.document.id for hit in BM25Retriever.build(documents).search(["Where is Orsa?"], k=3)[0]]
    ['a']
    """

    in_process = True

    def __init__(
        self,
        postings: Postings,
        vocabulary: dict[str, int],
        documents: Sequence[Document],
        settings: dict[str, Any],
    ) -> None:
        """Use `build` or `load`."""
        self._postings, self._vocabulary = postings, vocabulary
        self._stem, self._stemming = stemmer(settings["stem"]), threading.Lock()
        self._settings = settings
        self._built: Any = None
        self.documents = documents

    @classmethod
    def build(
        cls, documents: Iterable[Document], *, stem: bool = True, k1: float = 0.9, b: float = 0.4
    ) -> BM25Retriever:
        """Index `documents` (title and text) in memory. `stem` folds English inflections; `k1` and `b` default to the
        values of the published Lucene baselines. Raises `DataError` for no documents, for ids that occur twice, and
        for documents without a single word."""
        documents = tuple(documents)
        if not documents:
            raise DataError("the corpus is empty: there is nothing to index")
        _require_unique_ids(documents)
        vocabulary = Vocabulary(stem)
        words = [vocabulary.learn(document.contents) for document in documents]
        if not vocabulary.numbers:
            raise DataError(f"none of the {len(documents)} documents holds a word, so nothing could ever be found")
        # The numpy backend even where numba is installed: both must rank alike.
        index = _bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
        index.index((words, vocabulary.numbers), create_empty_token=False, show_progress=False)
        data, rows, starts = (index.scores[name] for name in ("data", "indices", "indptr"))
        largest = np.maximum.reduceat(data, starts[:-1])
        settings = {"kind": "bm25", "documents": len(documents), "corpus_sha256": corpus_hash(documents)}
        settings |= {"stem": stem, "k1": k1, "b": b}
        postings = Postings(data, rows, starts, largest, len(documents))
        made = cls(postings, vocabulary.numbers, documents, settings)
        made._built = (index, largest)
        return made

    @property
    def stem(self) -> bool:
        """Whether words are stemmed."""
        return bool(self._settings["stem"])

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the indexed documents and their order (`holdfast.retrieval.corpus.corpus_hash`)."""
        return str(self._settings["corpus_sha256"])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first, equal scores in corpus order. A query of which no word occurs in the
        corpus has none."""
        return [
            [Hit(self.documents[int(row)], float(score)) for row, score in zip(found.rows, found.scores, strict=True)]
            for found in self.rank(queries, k)
        ]

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """As `search`, in rows of `documents` and scores."""
        if k < 1:
            raise ValueError(f"k = {k}; ask for 1 hit or more")
        with self._stemming:
            words = [query_words(query, self._vocabulary, self._stem) for query in queries]
        return [self._postings.best(own, k) for own in words]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index, its documents and a manifest to `folder`, whole or not at all. An index that is there is
        replaced; a folder that holds anything else is refused (`DataError`). An index that was loaded is not saved
        again: copy its folder."""
        if self._built is None:
            raise DataError("this index was loaded from a folder; copy the folder instead of saving it again")
        folder = Path(folder)
        refuse_other_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        index, largest = self._built
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            fresh = Path(temporary) / "new"
            fresh.mkdir()
            index.save(fresh / ARRAYS, show_progress=False)
            np.save(fresh / LARGEST, largest)
            writer = DocumentWriter(fresh)
            for document in self.documents:
                writer.add(document)
            writer.close()
            write_offsets(fresh, len(self.documents))
            write_manifest(fresh, self._settings)
            if folder.exists():
                folder.rename(Path(temporary) / "old")
            fresh.rename(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, expected_hash: str | None = None) -> BM25Retriever:
        """Open what `save` or `holdfast index build` wrote, memory-mapped. `expected_hash` is the `corpus_hash` of the
        corpus the caller means.

        Raises `DataError` when the folder holds no index, a damaged one, the index of another corpus, or a dense one.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if manifest["kind"] != "bm25":
            raise DataError(f"{folder} is a {manifest['kind']} index; `holdfast.retrieval.index.open_index` opens it")
        refuse_other_corpus(folder, manifest, expected_hash)
        check_files(folder, manifest)
        arrays = folder / ARRAYS
        vocabulary = json.loads((arrays / VOCABULARY).read_text(encoding="utf-8"))
        documents = StoredDocuments(folder)
        data, rows, starts = (mapped(arrays / name) for name in (DATA, ROWS, STARTS))
        postings = Postings(data, rows, starts, mapped(folder / LARGEST), len(documents))
        settings = {key: value for key, value in manifest.items() if key not in ("format", "files")}
        return cls(postings, vocabulary, documents, settings)


def refuse_other_folder(folder: Path) -> None:
    """Raises `DataError` when `folder` holds anything but an index."""
    if folder.exists() and not (folder / MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} exists and is not an index; name a new folder")


def _bm25s() -> ModuleType:
    try:
        import bm25s
    except ImportError:
        raise MissingExtra("bm25s", "train") from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # its import sets DEBUG
    return bm25s


def _require_unique_ids(documents: Sequence[Document]) -> None:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"two documents have the id {document.id!r}; ids must be unique")
        seen.add(document.id)
