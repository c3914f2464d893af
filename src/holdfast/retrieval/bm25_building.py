"""Build a BM25 index: count the words of the passages, then weigh and sort the counts by word.

A word is a run of letters and digits. Where a script puts no blanks between words (Chinese, Japanese, Thai, Lao, Khmer,
Burmese, Tibetan), every two neighbouring characters are a word, in passages and in queries. A question then finds the
passages that have its words, wherever they begin. Korean puts blanks, but particles at the end of its words, so every
two neighbouring syllables of a word are one too; and so is the first syllable of a short word, which may be a noun.

`build_bm25` is for corpora larger than memory: it counts chunk by chunk, and sorts one range of words at a time.
"""

from __future__ import annotations

import io
import json
import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.base.errors import DataError
from holdfast.base.importing import optional
from holdfast.base.progress import Progress
from holdfast.base.scoring import HANGUL, UNSPACED
from holdfast.retrieval.corpus import Reading, files_seen
from holdfast.retrieval.storage import (
    new_index,
    read_passages,
    start_stage,
    write_array,
    write_documents,
    write_manifest,
)
from holdfast.retrieval.types import Document

SCORES, ROWS, STARTS, LARGEST, VOCABULARY = "scores.f4", "rows.i4", "starts.i8", "largest.f4", "vocabulary.json"
K1, B = 0.9, 0.4
"""As in the published Lucene baselines."""
_MAX_CACHED_WORDS = 1 << 20
_CHUNK = 10_000
"""Passages counted at a time."""
_PAIRS_AT_ONCE = 1 << 21
"""(word, passage) pairs sorted at a time: two million, some 120 MB. More are no faster."""

_SHORT = 3
"""Syllables of a Korean word that may be a noun of one with a particle: `강에서`, "in the river"."""
_WORD = re.compile(r"\w+")
_PAIRED = re.compile(f"[{UNSPACED}{HANGUL}]")
_RUN = re.compile(rf"[{UNSPACED}]+|([{HANGUL}]+)|[^\W{UNSPACED}{HANGUL}]+")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case and in order.

    >>> words_of("The lake, 北京的湖 2x")
    ['the', 'lake', '北京', '京的', '的湖', '2x']
    >>> words_of("서울특별시는 강에서")
    ['서울', '울특', '특별', '별시', '시는', '강에', '에서', '강']
    """
    text = text.lower()
    if text.isascii() or not _PAIRED.search(text):
        return _WORD.findall(text)
    words: list[str] = []
    for match in _RUN.finditer(text):
        run = match[0]
        if len(run) > 1 and _PAIRED.match(run):
            words += [run[i : i + 2] for i in range(len(run) - 1)]
            if match[1] and len(run) <= _SHORT:
                words.append(run[0])
        else:
            words.append(run)
    return words


class Vocabulary:
    """Numbers for words, in order of first occurrence."""

    def __init__(self, stem: bool) -> None:
        self.numbers: dict[str, int] = {}
        self._stem = stemmer(stem)
        self._cache: dict[str, int] = {}  # word as written -> number of its stem; a corpus repeats its words

    def learn(self, text: str) -> list[int]:
        """The number of every word of a text; new words get the next numbers."""
        if len(self._cache) > _MAX_CACHED_WORDS:
            self._cache.clear()
        cache, words = self._cache, words_of(text)
        for word in dict.fromkeys(words):  # each once, in order
            if word not in cache:
                cache[word] = self.numbers.setdefault(self._stem(word), len(self.numbers))
        return list(map(cache.__getitem__, words))


def stemmer(stem: bool) -> Callable[[str], str]:
    """A function from a word to its English Snowball stem, or the identity. Raises `MissingExtra`.

    Two threads must not use one stemmer at the same time.
    """
    if not stem:
        return lambda word: word
    stem_word: Callable[[str], str] = optional("Stemmer", "train", "PyStemmer").Stemmer("english").stemWord
    return stem_word


def count_words(texts: Sequence[list[int]], first_row: int) -> NDArray[np.int32]:
    """[3, pairs]: word, row of the passage, and how often it has the word; by word, then by row.

    `texts` are the words of passages (`Vocabulary.learn`), the first of which is row `first_row`.
    """
    lengths = [len(words) for words in texts]
    words = np.fromiter(chain.from_iterable(texts), np.int64, sum(lengths))
    keys, times = np.unique(words * len(texts) + np.repeat(np.arange(len(texts)), lengths), return_counts=True)
    return np.stack([keys // len(texts), keys % len(texts) + first_row, times]).astype(np.int32)


def word_starts(chunks: Iterable[NDArray[np.int32]], words: int) -> NDArray[np.int64]:
    """[words + 1]: where the pairs of each word begin when the pairs of all chunks are sorted by word."""
    frequencies = sum(np.bincount(chunk[0], minlength=words) for chunk in chunks)
    return np.concatenate([[0], np.cumsum(frequencies)])


def weigh(
    chunks: Callable[[], Iterable[NDArray[np.int32]]],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    k1: float,
    b: float,
    pairs_at_once: int,
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]]:
    """Scores and rows of all pairs, sorted by word and then by row, and the largest score of each word; in parts.

    Lucene's variant: idf · times / (times + k1 (1 − b + b · length / mean)), with idf = ln(1 + (N − n + ½) / (n + ½)).
    `lengths` [passages] are in words. `chunks()` is called for each part, so that mapped files need not stay in memory.
    A part has at most `pairs_at_once` pairs, or one word.
    """
    norms = k1 * ((1 - b) + b * lengths / lengths.mean())
    idf = _idf(np.diff(starts), len(lengths))
    first = 0
    while first < len(starts) - 1:
        end = max(int(np.searchsorted(starts, starts[first] + pairs_at_once, side="right")) - 1, first + 1)
        bounds = np.array([first, end], np.int32)
        pairs = np.concatenate([chunk[:, slice(*np.searchsorted(chunk[0], bounds))] for chunk in chunks()], axis=1)
        words, rows, times = pairs[:, np.argsort(pairs[0], kind="stable")]
        scores = (idf[words] * (times / (norms[rows] + times))).astype(np.float32)
        yield scores, rows, np.maximum.reduceat(scores, starts[first:end] - starts[first])
        first = end


def build_bm25(
    corpus: Path,
    out: Path,
    *,
    stem: bool = True,
    replace: bool = False,
    fields: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    chunk: int = _CHUNK,
    pairs_at_once: int = _PAIRS_AT_ONCE,
) -> Reading:
    """Index a corpus (`holdfast.retrieval.corpus.passages`) into the folder `out`, completely or not at all.

    `replace` and `fields`: as of `passages`. Memory: the vocabulary, some 80 bytes
    per passage, and `pairs_at_once` (60 bytes each). Returns what was read and skipped. Raises `DataError`.
    """
    progress, reading = progress or Progress(), Reading(corpus)
    with new_index(out) as folder:
        vocabulary, lengths = Vocabulary(stem), array("q")
        documents = read_passages(corpus, reading, progress, replace=replace, fields=fields or {})
        digest = write_documents(folder, _counted(documents, vocabulary, lengths, folder.parent, chunk))
        if not vocabulary.numbers:
            raise DataError(f"none of the {len(lengths)} passages contains a word, so no search could have a hit")

        def chunks() -> Iterator[NDArray[np.int32]]:
            return (np.load(_file(folder.parent, row), mmap_mode="r") for row in range(0, len(lengths), chunk))

        starts = word_starts(chunks(), len(vocabulary.numbers))
        start_stage(progress, "sorting by word", int(starts[-1]))
        largest, done = [], 0
        with open(folder / SCORES, "wb") as scores_file, open(folder / ROWS, "wb") as rows_file:
            for scores, rows, word_largest in weigh(chunks, starts, np.array(lengths), K1, B, pairs_at_once):
                scores_file.write(scores.data)
                rows_file.write(np.ascontiguousarray(rows).data)
                largest.append(word_largest)
                progress.advance(done := done + len(scores))
        write_words(folder, vocabulary.numbers, starts, np.concatenate(largest))
        settings = bm25_settings(len(lengths), digest, stem, K1, B)
        write_manifest(folder, settings | {"corpus_files": files_seen(corpus, fields)})
    return reading


def _counted(
    documents: Iterator[Document], vocabulary: Vocabulary, lengths: array[int], scratch: Path, chunk: int
) -> Iterator[Document]:
    """Passes the passages on. Their counts go into one file per chunk, their lengths to the end of `lengths`."""
    while part := list(islice(documents, chunk)):
        texts = [vocabulary.learn(document.contents) for document in part]
        counts = io.BytesIO()  # of a file `np.save` would not say why it failed
        np.save(counts, count_words(texts, len(lengths)))
        _file(scratch, len(lengths)).write_bytes(counts.getbuffer())
        lengths.extend(map(len, texts))
        yield from part


def write_words(
    folder: Path, vocabulary: dict[str, int], starts: NDArray[np.int64], largest: NDArray[np.float32]
) -> None:
    """Write what an index has for each word."""
    (folder / VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    write_array(folder / STARTS, starts)
    write_array(folder / LARGEST, largest)


def bm25_settings(count: int, digest: str, stem: bool, k1: float, b: float) -> dict[str, Any]:
    """The manifest of an index of `count` passages."""
    return {"kind": "bm25", "documents": count, "corpus_sha256": digest, "stem": stem, "k1": k1, "b": b}


def _idf(frequencies: NDArray[np.int64], count: int) -> NDArray[np.float32]:
    """`math.log`, because numpy's may differ in the last bit between machines."""
    values, which = np.unique(frequencies, return_inverse=True)
    logs = [math.log(1 + (count - n + 0.5) / (n + 0.5)) for n in values.tolist()]
    return np.array(logs, np.float32)[which]


def _file(scratch: Path, first_row: int) -> Path:
    return scratch / f"{first_row}.npy"
