"""Estimate what an index of a corpus takes, before it is built: disk, memory, time.

Sizes are arithmetic. Times are measured on this machine with a small sample of the same work, and scaled.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np

from holdfast.base.errors import ConfigError
from holdfast.base.rows import count_rows
from holdfast.retrieval.corpus import passages
from holdfast.retrieval.types import Document

WIKI_18 = 21_015_324
"""Passages of DPR's Wikipedia of December 2018."""
QUERIES = 64
_SAMPLE = 2_000
_ID = 70  # bytes that an id seen takes in memory
_WORD = 160  # bytes that a word of the vocabulary takes in memory
_OFFSET = 8  # bytes that the place or the length of a passage takes in memory
_PAIR = 4 + 4  # bytes of a word in a passage: its score and its row
_ENTRY = 8 + 4  # bytes of a word beside: where its rows start, and its largest score
_COUNT = 3 * 4  # bytes of a word in a passage while an index is built
_CHUNK_ROWS = 65_536  # vectors that a dense search compares at once: `dense.EXACT_CHUNK_ROWS`, which loads torch
_SORT = 1 << 30  # bytes that sorting by word takes at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A corpus in numbers."""

    passages: int
    text: float
    """Bytes of a passage as JSON, on average."""
    pairs: float
    """Distinct words of a passage, on average."""

    @property
    def vocabulary(self) -> float:
        """Distinct words of all passages, by Heaps' law for English: 44 √n of n words."""
        return float(44 * (1.6 * self.pairs * self.passages) ** 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one kind of index takes. Sizes in bytes."""

    kind: str
    disk: float
    building_disk: float
    """The most during the build, the index included."""
    building_memory: float
    memory: float
    """To search without touching the disk: the index as the system caches it, and what the process holds itself."""
    build_seconds: float | None
    """None: not measured, because no encoder was named."""
    batch_seconds: float | None
    """To search `QUERIES` queries at once. None: not measured."""


def size_of(sample: Sequence[Document], count: int) -> Size:
    """The size of a corpus of `count` passages, estimated from a few. Raises `ConfigError` for no passages."""
    if not sample or count < 1:
        raise ConfigError("the corpus is empty: there is nothing to plan")
    lines = [json.dumps({"id": d.id, "contents": d.contents}, ensure_ascii=False).encode() for d in sample]
    distinct = [len(set(d.contents.lower().split())) for d in sample]
    return Size(passages=count, text=float(np.mean([len(line) + 1 for line in lines])), pairs=float(np.mean(distinct)))


def sample_of(
    corpus: Path | None, count: int | None, fields: Mapping[str, str] | None = None
) -> tuple[list[Document], int]:
    """The first passages of a corpus and its number of passages. Without a corpus: generated passages of a hundred
    words, and `count` or the number of wiki-18."""
    if corpus is not None:
        corpus_passages = passages(corpus, on_skip=lambda _: None, fields=fields)
        sample = list(islice(corpus_passages, _SAMPLE))
        if count is None:  # a file of a folder is many passages
            count = len(sample) + sum(1 for _ in corpus_passages) if corpus.is_dir() else count_rows(corpus)
        return sample, count
    rng = np.random.default_rng(0)
    ranks = rng.zipf(1.26, (_SAMPLE, 100)) % 30_000  # about 57 distinct words, as in wiki-18
    texts = [" ".join(f"w{rank:04d}" for rank in row) for row in ranks.tolist()]
    return [Document(str(10_000_000 + i), f'"A title"\n{text}') for i, text in enumerate(texts)], count or WIKI_18


def bm25_needs(size: Size, per_second: float) -> Needs:
    """`per_second`: passages indexed per second."""
    documents, pairs = (size.text + 8) * size.passages, size.pairs * size.passages
    vocabulary = _WORD * size.vocabulary
    index = documents + _PAIR * pairs + _ENTRY * size.vocabulary
    return Needs(
        kind="BM25",
        disk=index,
        building_disk=index + _COUNT * pairs,
        building_memory=vocabulary + max((_ID + 2 * _OFFSET) * size.passages, min(_SORT, 60 * pairs)),
        memory=index + vocabulary + 4 * size.passages,
        build_seconds=size.passages / per_second,
        batch_seconds=None,
    )


def dense_needs(size: Size, dimensions: int, per_second: float | None, row_seconds: float, *, sq8: bool) -> Needs:
    """`per_second`: passages encoded per second. `row_seconds`: time to compare `QUERIES` queries with one row."""
    documents, codes = (size.text + 8) * size.passages, 1.0 * dimensions * size.passages
    disk = documents + (3 if sq8 else 2) * codes
    chunk = 4.0 * dimensions * min(_CHUNK_ROWS, size.passages)
    return Needs(
        kind=f"dense {dimensions}, {'sq8' if sq8 else 'fp16'}",
        disk=disk,
        building_disk=disk,
        building_memory=max((_ID + _OFFSET) * size.passages, codes if sq8 else 0) + chunk,
        memory=documents + (codes if sq8 else 2 * codes + chunk),
        build_seconds=None if per_second is None else size.passages / per_second,
        batch_seconds=None if sq8 else row_seconds * size.passages,
    )


def bm25_rate(sample: Sequence[Document]) -> float:
    """Passages that this machine indexes per second, measured with a few."""
    from holdfast.retrieval.bm25_building import build_bm25

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "sample.jsonl"
        corpus.write_text("".join(json.dumps({"id": d.id, "contents": d.contents}) + "\n" for d in sample))
        began = perf_counter()
        build_bm25(corpus, Path(folder) / "index")
        return len(sample) / (perf_counter() - began)


def encoding_rate(model: str, sample: Sequence[Document], device: str) -> tuple[float, int]:
    """Passages that this machine encodes per second, and the encoder's dimensions."""
    from holdfast.retrieval.encoder import Encoder, spec_of

    encoder = Encoder(spec_of(model, query_prefix=""), device)
    texts = [document.contents for document in sample]
    encoder.passages(texts[:8])  # the first call is slow
    began, done = perf_counter(), 0
    while done < len(texts) and (done == 0 or perf_counter() - began < 3):
        done += len(encoder.passages(texts[done : done + 64]))
    return done / (perf_counter() - began), encoder.dimensions


def row_seconds(dimensions: int, device: str) -> float:
    """Seconds to compare `QUERIES` queries with one row of half precision, as in exact search."""
    from holdfast.retrieval.dense import EXACT_CHUNK_ROWS, ExactSearch
    from holdfast.retrieval.encoder import device_of

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((EXACT_CHUNK_ROWS, dimensions), np.float32).astype(np.float16)
    queries = rng.standard_normal((QUERIES, dimensions), np.float32)
    search = ExactSearch(rows, device_of(device))
    search.best(queries, 3)
    began = perf_counter()
    search.best(queries, 3)
    return (perf_counter() - began) / len(rows)
