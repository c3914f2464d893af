"""BM25 in process: our own tokenizer and ranking, with the scores of bm25s.

Equal inputs give equal hits, in memory or memory-mapped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.stored import read_json
from holdfast.retrieval.bm25_building import (
    K1,
    LARGEST,
    ROWS,
    SCORES,
    STARTS,
    VOCABULARY,
    B,
    Vocabulary,
    bm25_settings,
    count_words,
    stemmer,
    weigh,
    word_starts,
    words_of,
    write_words,
)
from holdfast.retrieval.corpus import corpus_hash
from holdfast.retrieval.storage import (
    REBUILD,
    StoredDocuments,
    intact,
    mapped,
    new_index,
    open_manifest,
    write_array,
    write_documents,
    write_manifest,
)
from holdfast.retrieval.types import Document, Hit, Ranked, hits_of

# Lucene's stop words. They are indexed, and dropped from a query only when it has other words, so that a question
# about the film "It" has hits.
_STOP_LINE = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
_STOP_WORDS = frozenset(_STOP_LINE.split())
_ABOVE_ZERO = 1e-30
_SLACK = 2.4e-7  # of a sum, for each word in it: float32 rounds by 6e-8, in the sums here and in the final ones
_NO_HITS = Ranked(np.empty(0, np.int64), np.empty(0, np.float32))


def query_words(query: str, numbers: Mapping[str, int], stem: Callable[[str], str]) -> list[int]:
    """Numbers of those words of a query that occur in the corpus, in order, repetitions included."""
    words = words_of(query)
    words = [word for word in words if word not in _STOP_WORDS] or words
    return [number for word in words if (number := numbers.get(stem(word))) is not None]


class Postings:
    """For each word the passages that contain it, ascending, and its score in each: columns of a sparse matrix.

    `best` is exact. Its scores are, bit for bit, the sums of the columns in the order of the query's words, and equal
    scores come in corpus order. It skips passages whose score cannot reach the k-th best (MaxScore: Turtle and Flood
    1995). Words are added up from the rarest on. As soon as k passages score above everything that the remaining words
    could add, no new passage can enter, and the remaining words are only looked up in the candidates.
    """

    def __init__(
        self, scores: NDArray[Any], rows: NDArray[Any], starts: NDArray[Any], largest: NDArray[Any], count: int
    ) -> None:
        """`scores` [pairs] float32 and `rows` [pairs] hold word w in `starts[w]:starts[w + 1]`. `largest` [words] is
        the highest score of each word, `count` the number of passages."""
        self.scores, self.rows, self.starts, self.largest, self._count = scores, rows, starts, largest, count
        self._thread_local = threading.local()

    def best(self, words: Sequence[int], k: int) -> Ranked:
        """The `k` best passages among those that contain any of `words`, which may repeat."""
        if not words:
            return _NO_HITS
        candidates = self._candidates(words, k)
        scores = np.zeros(len(candidates), np.float32)
        columns: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for word in words:
            if word not in columns:
                columns[word] = self._look_up(word, candidates)
            places, values = columns[word]
            scores[places] += values
        hits = np.flatnonzero(scores > 0)
        if len(hits) > k:
            # Everything that ties with the k-th best stays in, or the partition would choose among equals at random.
            hits = hits[scores[hits] >= _kth(scores[hits], k)]
        best = hits[np.argsort(-scores[hits], kind="stable")][:k]
        return Ranked(candidates[best].astype(np.int64), scores[best])

    def _candidates(self, words: Sequence[int], k: int) -> NDArray[Any]:
        """Ascending rows: the k best, and as few others as is cheap."""
        counts: dict[int, int] = {}
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        rare_first = sorted(counts, key=lambda word: (self.starts[word + 1] - self.starts[word], word))
        bounds = [float(self.largest[word]) * counts[word] for word in rare_first]
        remaining = sum(bounds)
        slack = _SLACK * (len(words) + 2) * remaining
        sums = self._buffer()
        touched: list[NDArray[Any]] = []
        reached = 0.0  # at least k passages score this much
        try:
            for word, bound in zip(rare_first, bounds, strict=True):
                if reached - slack > remaining:
                    break
                rows, values = self._column(word)
                touched.append(rows)
                word_sums = sums[rows]
                word_sums += values * np.float32(counts[word]) if counts[word] > 1 else values
                sums[rows] = word_sums
                remaining -= bound
                if len(rows) >= k:
                    reached = max(reached, _kth(word_sums, k))
            least = max(reached - remaining - slack, _ABOVE_ZERO)
            candidate_parts, sum_parts = [], []
            for rows in touched:
                word_sums = sums[rows]
                sums[rows] = 0  # so that a passage with two of the words is taken once
                above = word_sums >= least
                candidate_parts.append(rows[above])
                sum_parts.append(word_sums[above])
        except BaseException:
            sums[:] = 0
            raise
        candidates, partial = np.concatenate(candidate_parts), np.concatenate(sum_parts)
        order = np.argsort(candidates)
        candidates, partial = candidates[order], partial[order]
        for word, bound in zip(rare_first[len(touched) :], bounds[len(touched) :], strict=True):
            if len(candidates) <= k:
                break
            places, values = self._look_up(word, candidates)
            partial[places] += values * np.float32(counts[word])
            remaining -= bound
            reached = max(reached, _kth(partial, k))
            above = partial >= reached - remaining - slack
            candidates, partial = candidates[above], partial[above]
        return candidates

    def _column(self, word: int) -> tuple[NDArray[Any], NDArray[Any]]:
        part = slice(self.starts[word], self.starts[word + 1])
        return self.rows[part], self.scores[part]

    def _look_up(self, word: int, candidates: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(places in `candidates`, scores) of the candidates that contain a word."""
        rows, values = self._column(word)
        places = np.searchsorted(rows, candidates)
        places[places == len(rows)] = 0  # beyond the last; the comparison below drops these
        matches = np.flatnonzero(rows[places] == candidates)
        return matches, values[places[matches]]

    def _buffer(self) -> NDArray[np.float32]:
        """This thread's zeros, one per passage."""
        if not hasattr(self._thread_local, "sums"):
            self._thread_local.sums = np.zeros(self._count, np.float32)
        sums: NDArray[np.float32] = self._thread_local.sums
        return sums


def _kth(values: NDArray[Any], k: int) -> float:
    """The k-th largest of at least k values."""
    return float(np.partition(values, -k)[-k])


class BM25Retriever:
    """Ranks passages by BM25, in Lucene's variant: a score is above 0 exactly when a word of the query occurs. Threads
    may share it.

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
        self._stem, self._stemmer_lock = stemmer(settings["stem"]), threading.Lock()
        self._settings = settings
        self.documents = documents

    @classmethod
    def build(cls, documents: Iterable[Document], *, stem: bool = True, k1: float = K1, b: float = B) -> BM25Retriever:
        """Index `documents` (title and text) in memory.

        `stem` folds English inflections. Raises
        `DataError` when there are no documents, when an id occurs twice, and when no document contains a word.
        """
        documents = tuple(documents)
        if not documents:
            raise DataError("the corpus is empty: there is nothing to index")
        _require_unique_ids(documents)
        vocabulary = Vocabulary(stem)
        words = [vocabulary.learn(document.contents) for document in documents]
        if not vocabulary.numbers:
            raise DataError(f"none of the {len(documents)} documents contains a word, so no search could have a hit")
        chunks = [count_words(words, first_row=0)]
        starts, lengths = word_starts(chunks, len(vocabulary.numbers)), np.array([len(text) for text in words])
        ((scores, rows, largest),) = weigh(lambda: chunks, starts, lengths, k1, b, pairs_at_once=int(starts[-1]))
        settings = bm25_settings(len(documents), corpus_hash(documents), stem, k1, b)
        return cls(Postings(scores, rows, starts, largest, len(documents)), vocabulary.numbers, documents, settings)

    @property
    def corpus_hash(self) -> str:
        """Fingerprint of the indexed documents and their order (`holdfast.retrieval.corpus.corpus_hash`)."""
        return str(self._settings["corpus_sha256"])

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """At most `k` hits per query, best first, equal scores in corpus order. A query without any word of the corpus
        has none."""
        return hits_of(self.rank(queries, k), self.documents)

    def rank(self, queries: Sequence[str], k: int) -> list[Ranked]:
        """The hits of `search`, as rows of `documents` and scores."""
        if k < 1:
            raise ValueError(f"k = {k}; ask for 1 hit or more")
        with self._stemmer_lock:
            words = [query_words(query, self._vocabulary, self._stem) for query in queries]
        return [self._postings.best(query, k) for query in words]

    def save(self, folder: str | os.PathLike[str], more: Mapping[str, str] | None = None) -> None:
        """Write the index to a new folder, complete or not there, with `more` in its manifest. Raises `DataError`."""
        with new_index(Path(folder)) as fresh:
            write_array(fresh / SCORES, self._postings.scores)
            write_array(fresh / ROWS, self._postings.rows)
            write_words(fresh, self._vocabulary, self._postings.starts, self._postings.largest)
            write_documents(fresh, self.documents)
            write_manifest(fresh, {**self._settings, **(more or {})})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, expected_hash: str | None = None) -> BM25Retriever:
        """Open what `save` or `holdfast index build` wrote, memory-mapped.

        `expected_hash` is the `corpus_hash` of the corpus that the caller expects. Raises `DataError` when the folder
        is not an index, is damaged, belongs to another corpus, or is a dense index.
        """
        folder = Path(folder)
        with intact(folder):
            manifest = open_manifest(folder, "bm25", expected_hash)
            vocabulary = read_json(folder / VOCABULARY, DataError, REBUILD, max_bytes=manifest["files"][VOCABULARY])
            documents = StoredDocuments(folder)
            scores, rows, starts, largest = (mapped(folder / name) for name in (SCORES, ROWS, STARTS, LARGEST))
            words, pairs = (len(vocabulary), len(starts) - 1, len(largest)), (len(scores), len(rows), int(starts[-1]))
            is_whole = isinstance(vocabulary, dict) and len(documents) == manifest["documents"]
            if not is_whole or len(set(words)) > 1 or len(set(pairs)) > 1:
                raise ValueError("its files do not fit each other")
            return cls(Postings(scores, rows, starts, largest, len(documents)), vocabulary, documents, manifest)


def _require_unique_ids(documents: Sequence[Document]) -> None:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"two documents have the id {document.id!r}; ids must be unique")
        seen.add(document.id)
