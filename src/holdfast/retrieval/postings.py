"""BM25 scores by word, and the best passages of a query without adding up those that cannot be among them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ABOVE_ZERO = 1e-30
_SLACK = 2.4e-7  # of a sum, for each word in it: float32 rounds by 6e-8, in the sums here and in the final ones


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rows of the corpus, best first, and their scores."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]


_NONE = Ranked(np.empty(0, np.int64), np.empty(0, np.float32))


class Postings:
    """For each word the passages that hold it, ascending, and the word's score in each: columns of a sparse matrix.

    `best` is exact: its scores are, bit for bit, the sums of the columns in the order of the query's words, and equal
    scores come in corpus order. What it leaves out are passages whose score cannot reach the k-th best: once the words
    seen so far lift k passages above everything the remaining (more frequent) words could add, no new passage is taken
    up, and the remaining words are only looked up in those that are left (MaxScore: Turtle and Flood 1995).
    """

    def __init__(
        self, data: NDArray[Any], rows: NDArray[Any], starts: NDArray[Any], largest: NDArray[Any], count: int
    ) -> None:
        """`data` [pairs] float32 and `rows` [pairs] hold word w in `starts[w]:starts[w + 1]`; `largest` [words] is the
        highest score of each; `count` passages."""
        self._data, self._rows, self._starts, self._largest, self._count = data, rows, starts, largest, count
        self._own = threading.local()

    def best(self, words: Sequence[int], k: int) -> Ranked:
        """The `k` best passages that hold one of `words` at all (which may repeat)."""
        if not words:
            return _NONE
        candidates = self._candidates(words, k)
        scores = np.zeros(len(candidates), np.float32)
        columns: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for word in words:
            if word not in columns:
                columns[word] = self._look_up(word, candidates)
            there, values = columns[word]
            scores[there] += values
        found = np.flatnonzero(scores > 0)
        if len(found) > k:
            # Everything that ties with the k-th best stays in, or the partition would choose among equals at random.
            found = found[scores[found] >= _kth(scores[found], k)]
        best = found[np.argsort(-scores[found], kind="stable")][:k]
        return Ranked(candidates[best].astype(np.int64), scores[best])

    def _candidates(self, words: Sequence[int], k: int) -> NDArray[Any]:
        """Ascending rows, the k best among them, as few others as is cheap."""
        counts: dict[int, int] = {}
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        rare_first = sorted(counts, key=lambda word: (self._starts[word + 1] - self._starts[word], word))
        bounds = [float(self._largest[word]) * counts[word] for word in rare_first]
        left = sum(bounds)
        slack = _SLACK * (len(words) + 2) * left
        sums = self._buffer()
        touched: list[NDArray[Any]] = []
        reached = 0.0  # some k passages have at least this
        try:
            for word, bound in zip(rare_first, bounds, strict=True):
                if reached - slack > left:
                    break
                rows, values = self._column(word)
                touched.append(rows)
                own = sums[rows]
                own += values * np.float32(counts[word]) if counts[word] > 1 else values
                sums[rows] = own
                left -= bound
                if len(rows) >= k:
                    reached = max(reached, _kth(own, k))
            least = max(reached - left - slack, _ABOVE_ZERO)
            kept, sums_kept = [], []
            for rows in touched:
                own = sums[rows]
                sums[rows] = 0  # so that a passage of two words is taken once
                there = own >= least
                kept.append(rows[there])
                sums_kept.append(own[there])
        except BaseException:
            sums[:] = 0
            raise
        candidates, partial = np.concatenate(kept), np.concatenate(sums_kept)
        in_order = np.argsort(candidates)
        candidates, partial = candidates[in_order], partial[in_order]
        for word, bound in zip(rare_first[len(touched) :], bounds[len(touched) :], strict=True):
            if len(candidates) <= k:
                break
            there, values = self._look_up(word, candidates)
            partial[there] += values * np.float32(counts[word])
            left -= bound
            reached = max(reached, _kth(partial, k))
            kept_here = partial >= reached - left - slack
            candidates, partial = candidates[kept_here], partial[kept_here]
        return candidates

    def _column(self, word: int) -> tuple[NDArray[Any], NDArray[Any]]:
        part = slice(self._starts[word], self._starts[word + 1])
        return self._rows[part], self._data[part]

    def _look_up(self, word: int, candidates: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """(places in `candidates`, scores) of the candidates that hold a word."""
        rows, values = self._column(word)
        places = np.searchsorted(rows, candidates)
        places[places == len(rows)] = 0  # beyond the last; the comparison below says no
        there = np.flatnonzero(rows[places] == candidates)
        return there, values[places[there]]

    def _buffer(self) -> NDArray[np.float32]:
        """Zeros, one a passage, of this thread."""
        if not hasattr(self._own, "sums"):
            self._own.sums = np.zeros(self._count, np.float32)
        sums: NDArray[np.float32] = self._own.sums
        return sums


def _kth(values: NDArray[Any], k: int) -> float:
    """The k-th largest of at least k values."""
    return float(np.partition(values, -k)[-k])
