"""Build a BM25 index larger than memory: count words chunk by chunk, then merge one range of words at a time.

It writes the files that bm25s would write, with the same scores, bit for bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.files import write_whole
from holdfast.base.progress import Progress
from holdfast.retrieval.bm25 import ARRAYS, DATA, LARGEST, PARAMETERS, ROWS, STARTS, VOCABULARY, Vocabulary
from holdfast.retrieval.building import CHUNK, build, commits, copy_passages, start_stage
from holdfast.retrieval.storage import SCRATCH, NpyWriter, mapped
from holdfast.retrieval.types import Document

_PAIRS_AT_ONCE = 1 << 25
"""(word, passage) pairs merged in memory: 32 million, about 1 GB."""


def build_bm25(
    corpus: Path,
    out: Path,
    *,
    stem: bool = True,
    k1: float = 0.9,
    b: float = 0.4,
    replace: bool = False,
    progress: Progress | None = None,
    chunk: int = CHUNK,
    pairs_at_once: int = _PAIRS_AT_ONCE,
) -> None:
    """Index a corpus (`holdfast.retrieval.corpus.passages`) into the folder `out`.

    An interrupted build continues when called again with the same arguments. `replace`: put U+FFFD where a line is not
    UTF-8, instead of skipping the line. Memory: the vocabulary, one hash per id, and `pairs_at_once` (32 bytes each).
    Raises `DataError`.
    """

    def work(folder: Path, progress: Progress) -> dict[str, Any]:
        counter = _Counter(folder, stem)
        copied = copy_passages(folder, corpus, progress, sink=counter, replace=replace, chunk=chunk)
        if not counter.vocabulary.numbers:
            raise DataError(f"none of the {copied.documents} passages contains a word, so no search could have a hit")
        _merge(folder, counter.vocabulary.numbers, copied.documents, k1, b, progress, pairs_at_once)
        manifest = {"kind": "bm25", "documents": copied.documents, "corpus_sha256": copied.corpus_sha256}
        return manifest | {"stem": stem, "k1": k1, "b": b}

    settings = {"kind": "bm25", "stem": stem, "k1": k1, "b": b, "replace": replace, "chunk": chunk}
    build(corpus, out, settings, work, progress or Progress())


class _Counter:
    """Counts the words of a chunk. Writes (word, row, times) sorted by word, the lengths, and the new words."""

    def __init__(self, folder: Path, stem: bool) -> None:
        self._folder = folder / SCRATCH
        self.vocabulary = Vocabulary(stem)
        self._words_written = 0
        self._words: list[list[int]] = []

    def add(self, document: Document) -> None:
        self._words.append(self.vocabulary.learn(document.contents))

    def write(self, number: int, first_row: int) -> None:
        lengths = np.array([len(words) for words in self._words], np.int64)
        words = np.fromiter(chain.from_iterable(self._words), np.int64, int(lengths.sum()))
        count = len(self._words)
        keys, times = np.unique(words * count + np.repeat(np.arange(count), lengths), return_counts=True)
        pairs = np.stack([keys // count, keys % count + first_row, times]).astype(np.int32)
        np.save(_file(self._folder, number, "lengths"), lengths)
        np.save(_file(self._folder, number, "pairs"), pairs)
        new = list(self.vocabulary.numbers)[self._words_written :]
        write_whole(self._folder / f"{number:06d}.words", json.dumps(new, ensure_ascii=False))
        self._words_written, self._words = len(self.vocabulary.numbers), []

    def recall(self, number: int) -> None:
        for word in json.loads((self._folder / f"{number:06d}.words").read_text(encoding="utf-8")):
            self.vocabulary.numbers.setdefault(word, len(self.vocabulary.numbers))
        self._words_written = len(self.vocabulary.numbers)


def _merge(
    folder: Path, vocabulary: dict[str, int], count: int, k1: float, b: float, progress: Progress, pairs_at_once: int
) -> None:
    chunks = range(len(commits(folder)))
    frequencies = np.zeros(len(vocabulary), np.int64)
    for number in chunks:
        words = mapped(_file(folder / SCRATCH, number, "pairs"))[0]
        frequencies += np.bincount(words, minlength=len(vocabulary))
    starts = np.concatenate([[0], np.cumsum(frequencies)])
    lengths = np.concatenate([np.load(_file(folder / SCRATCH, number, "lengths")) for number in chunks])
    # As in bm25s, down to the types: its scores are float64 until they are stored.
    norms = k1 * ((1 - b) + b * lengths / lengths.mean())
    idf = _idf(frequencies, count)
    arrays = folder / ARRAYS
    arrays.mkdir(exist_ok=True)
    np.save(arrays / STARTS, starts)
    write_whole(arrays / VOCABULARY, json.dumps(vocabulary, ensure_ascii=False))
    write_whole(arrays / PARAMETERS, json.dumps(_parameters(k1, b, count), indent=4))
    total = int(starts[-1])
    start_stage(progress, "sorting by word", total)
    with (
        NpyWriter(arrays / DATA, np.float32, total) as data,
        NpyWriter(arrays / ROWS, np.int32, total) as rows,
        NpyWriter(folder / LARGEST, np.float32, len(vocabulary)) as largest,
    ):
        for first, end in _ranges(starts, pairs_at_once):
            part = _range(folder, chunks, starts, norms, idf, first, end)
            data.write(part[0])
            rows.write(part[1])
            largest.write(np.maximum.reduceat(part[0], starts[first:end] - starts[first]))
            progress.advance(int(starts[end]))


def _range(
    folder: Path,
    chunks: Sequence[int],
    starts: NDArray[np.int64],
    norms: NDArray[np.float64],
    idf: NDArray[np.float32],
    first: int,
    end: int,
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Scores and rows of the words in [first, end), by word and then by row."""
    size = int(starts[end] - starts[first])
    scores, rows = np.empty(size, np.float32), np.empty(size, np.int32)
    next_place = starts[first:end] - starts[first]
    for number in chunks:
        pairs = mapped(_file(folder / SCRATCH, number, "pairs"))
        low, high = np.searchsorted(pairs[0], np.array([first, end], np.int32))
        words, part_rows, times = pairs[0, low:high] - first, pairs[1, low:high], pairs[2, low:high].astype(np.float64)
        counts = np.bincount(words, minlength=end - first)
        before = np.cumsum(counts) - counts
        places = (next_place - before)[words] + np.arange(len(words))
        scores[places] = idf[first:end][words] * (times / (norms[part_rows] + times))
        rows[places] = part_rows
        next_place += counts
    return scores, rows


def _ranges(starts: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of words with at most `most` pairs; a word with more forms its own range."""
    first, words = 0, len(starts) - 1
    while first < words:
        end = int(np.searchsorted(starts, starts[first] + most, side="right")) - 1
        end = max(end, first + 1)
        yield first, end
        first = end


def _idf(frequencies: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """ln(1 + (N − n + ½) / (n + ½)). `math.log`, as in bm25s: numpy's may differ in the last bit."""
    values, which = np.unique(frequencies, return_inverse=True)
    logs = [math.log(1 + (count - n + 0.5) / (n + 0.5)) for n in values.tolist()]
    return np.array(logs, np.float32)[which]


def _parameters(k1: float, b: float, count: int) -> dict[str, Any]:
    """What bm25s reads when it opens the files."""
    fixed = {"delta": 0.5, "method": "lucene", "idf_method": "lucene", "dtype": "float32", "int_dtype": "int32"}
    return {"k1": k1, "b": b, **fixed, "num_docs": count, "version": version("bm25s"), "backend": "numpy"}


def _file(chunks: Path, number: int, what: str) -> Path:
    return chunks / f"{number:06d}.{what}.npy"
