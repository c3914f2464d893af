"""BM25 in process: bm25s for the scores, our own words and ranking, so that equal inputs give equal hits everywhere."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import DataError, MissingExtra
from holdfast.jsonl import write_jsonl
from holdfast.retrieval.corpus import corpus_hash
from holdfast.retrieval.types import Document, Hit

if TYPE_CHECKING:
    import bm25s

_WORD = re.compile(r"\w+")
# The function words Lucene drops. Ours are indexed all the same, and dropped from a query only beside other words, so
# that a question about the film "It" finds something.
_STOP_LINE = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
_STOP_WORDS = frozenset(_STOP_LINE.split())
_MANIFEST, _DOCUMENTS, _ARRAYS = "manifest.json", "documents.jsonl", "bm25s"
_FORMAT = 1


class BM25Retriever:
    """Ranks passages by BM25 (Lucene's variant: a score is above 0 exactly when a word of the query occurs).

    >>> documents = [Document("a", "Orsa\\nA town by the lake."), Document("b", "Mora\\nTowns have lakes.")]
    >>> [hit.document.id for hit in BM25Retriever.build(documents).search(["Where is Orsa?"], k=3)[0]]
    ['a']
    """

    in_process = True

    def __init__(
        self, index: bm25s.BM25, documents: tuple[Document, ...], stem: bool, settings: dict[str, Any]
    ) -> None:
        """Use `build` or `load`."""
        self._index = index
        self._stem = _stemmer() if stem else _identity
        self._settings = settings
        self.documents = documents

    @classmethod
    def build(
        cls, documents: Iterable[Document], *, stem: bool = True, k1: float = 0.9, b: float = 0.4
    ) -> BM25Retriever:
        """Index `documents` (title and text). `stem` folds English inflections; `k1` and `b` default to the values
        of the published Lucene baselines. Raises `DataError` for no documents, for ids that occur twice, and for
        documents without a single word."""
        documents = tuple(documents)
        if not documents:
            raise DataError("the corpus is empty: there is nothing to index")
        _require_unique_ids(documents)
        stems = _stemmer() if stem else _identity
        vocabulary: dict[str, int] = {}
        cache: dict[str, int] = {}  # word as written -> id of its stem; a corpus repeats its words
        ids = []
        for document in documents:
            row = []
            for word in _words(document.contents):
                if word not in cache:
                    cache[word] = vocabulary.setdefault(stems(word), len(vocabulary))
                row.append(cache[word])
            ids.append(row)
        if not vocabulary:
            raise DataError(f"none of the {len(documents)} documents holds a word, so nothing could ever be found")
        # The numpy backend even where numba is installed: both must rank alike.
        index = _bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy")
        index.index((ids, vocabulary), create_empty_token=False, show_progress=False)
        settings = {"stem": stem, "k1": k1, "b": b, "corpus_sha256": corpus_hash(documents)}
        return cls(index, documents, stem, settings)

    @property
    def stem(self) -> bool:
        """Whether words are stemmed."""
        return self._settings["stem"]

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the indexed documents and their order (`holdfast.retrieval.corpus.corpus_hash`)."""
        return self._settings["corpus_sha256"]

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first, equal scores in corpus order. A query of which no word occurs in the
        corpus has none."""
        if k < 1:
            raise ValueError(f"k = {k}; ask for 1 hit or more")
        return [self._search_one(query, k) for query in queries]

    def _search_one(self, query: str, k: int) -> list[Hit]:
        words = list(_words(query))
        words = [word for word in words if word not in _STOP_WORDS] or words
        ids = [i for word in words if (i := self._index.vocab_dict.get(self._stem(word))) is not None]
        if not ids:
            return []
        scores = self._index.get_scores_from_ids(ids)
        found = np.flatnonzero(scores > 0)
        if len(found) > k:
            # Everything that ties with the k-th best stays in, or the partition would choose among equals at random.
            worst = np.partition(scores[found], -k)[-k]
            found = found[scores[found] >= worst]
        best = found[np.argsort(-scores[found], kind="stable")][:k]
        return [Hit(self.documents[i], float(scores[i])) for i in best]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the index, its documents and a manifest to `folder`, whole or not at all. An index that is there is
        replaced; a folder that holds anything else is refused (`DataError`)."""
        folder = Path(folder)
        if folder.exists() and not (folder / _MANIFEST).is_file() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"{folder} exists and is not an index; name a new folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            fresh = Path(temporary) / "new"
            fresh.mkdir()
            self._index.save(fresh / _ARRAYS, show_progress=False)
            write_jsonl(fresh / _DOCUMENTS, ({"id": d.id, "contents": d.contents} for d in self.documents))
            manifest = {"format": _FORMAT, **self._settings, "files": _checksums(fresh)}
            (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                folder.rename(Path(temporary) / "old")
            fresh.rename(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, expected_hash: str | None = None) -> BM25Retriever:
        """Read what `save` wrote. `expected_hash` is the `corpus_hash` of the corpus the caller means.

        Raises `DataError` when the folder holds no index, a damaged one, or the index of another corpus.
        """
        folder = Path(folder)
        again = "delete the folder and build the index again"
        try:
            manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"{folder} holds no index: there is no {_MANIFEST} in it") from None
        except (OSError, ValueError) as error:
            raise DataError(f"the index {folder} is damaged ({_MANIFEST}: {error}); {again}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
            raise DataError(f"the index {folder} was made by another version of holdfast; {again}")
        if expected_hash is not None and expected_hash != manifest["corpus_sha256"]:
            raise DataError(f"the index {folder} was built from another corpus than yours, or an older one; {again}")
        found, files = _checksums(folder), manifest.pop("files")
        for name in files:
            if found.get(name) != files[name]:
                state = "has changed" if name in found else "is missing"
                raise DataError(f"the index {folder} is damaged: {name} {state} since it was saved; {again}")
        with open(folder / _DOCUMENTS, encoding="utf-8") as file:
            documents = tuple(Document(**json.loads(line)) for line in file)
        index = _bm25s().BM25.load(folder / _ARRAYS, show_progress=False, backend="numpy")
        del manifest["format"]
        return cls(index, documents, manifest["stem"], manifest)


def _words(text: str) -> Iterable[str]:
    return _WORD.findall(text.lower())


def _identity(word: str) -> str:
    return word


def _stemmer() -> Callable[[str], str]:
    try:
        import Stemmer
    except ImportError:
        raise MissingExtra("PyStemmer", "train") from None
    return Stemmer.Stemmer("english").stemWord


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


def _checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of an index but its manifest, by path from `folder`."""
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _MANIFEST:
            with open(path, "rb") as file:
                sums[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return sums
