"""The best passages of a query against adding up everything, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.retrieval.bm25 import Postings


def make(rng: random.Random, words: int, count: int, values: Sequence[float] | None = None) -> tuple[Postings, list]:
    """Random columns, the frequent words first; and the columns themselves."""
    columns = []
    for word in range(words):
        share = 0.9 / (1 + word)
        rows = np.array(sorted(rng.sample(range(count), max(int(count * share), 1))), np.int32)
        scores = rng.choices(values, k=len(rows)) if values else [rng.uniform(0.1, 2) * (1 + word / 3) for _ in rows]
        columns.append((rows, np.array(scores, np.float32)))
    starts = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in columns])])
    largest = np.array([scores.max() for _, scores in columns])
    data, rows = (np.concatenate([column[i] for column in columns]) for i in (1, 0))
    return Postings(data, rows, starts, largest, count), columns


def exhaustive(columns: list, words: Sequence[int], k: int, count: int) -> tuple[list[int], NDArray[np.float32]]:
    sums = np.zeros(count, np.float32)
    for word in words:
        rows, scores = columns[word]
        sums[rows] += scores
    found = np.flatnonzero(sums > 0)
    best = found[np.argsort(-sums[found], kind="stable")][:k]
    return best.tolist(), sums[best]


@pytest.mark.parametrize("k", [1, 3, 20, 1000])
@pytest.mark.parametrize("values", [None, [0.5, 1.0]], ids=["any scores", "many ties"])
def test_the_best_are_those_of_all(k: int, values: list[float] | None) -> None:
    rng = random.Random(k)
    count = 500
    postings, columns = make(rng, 25, count, values)
    for _ in range(200):
        words = [rng.randrange(25) for _ in range(rng.randint(1, 8))]  # words repeat
        expected, scores = exhaustive(columns, words, k, count)
        found = postings.best(words, k)
        assert found.rows.tolist() == expected
        assert found.scores.tobytes() == scores.tobytes()


def test_frequent_words_are_looked_up_and_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    postings, _ = make(random.Random(0), 25, 500)
    read: list[int] = []
    looked_up: list[int] = []
    column, look_up = Postings._column, Postings._look_up
    monkeypatch.setattr(Postings, "_column", lambda self, word: read.append(word) or column(self, word))
    monkeypatch.setattr(Postings, "_look_up", lambda self, word, c: looked_up.append(word) or look_up(self, word, c))
    postings.best([0, 24, 23, 22], 1)
    added_up = [word for word in set(read) if read.count(word) > looked_up.count(word)]
    assert 24 in added_up  # the rarest
    assert 0 not in added_up  # in nine of ten passages


def test_nothing_asked_and_nothing_left_behind() -> None:
    postings, columns = make(random.Random(1), 10, 100)
    assert postings.best([], 3).rows.tolist() == []
    first = postings.best([3, 4], 5)
    for word in range(10):
        postings.best([word, 9 - word], 2)
    assert postings.best([3, 4], 5).scores.tobytes() == first.scores.tobytes()
    assert exhaustive(columns, [3, 4], 5, 100)[0] == first.rows.tolist()
