"""What an index of a corpus takes, before anything is begun: disk, memory, time.

Sizes are arithmetic. Times are measured on this machine with a little work of the same kind, and scaled.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np

from holdfast.errors import ConfigError
from holdfast.retrieval.corpus import count_rows, passages
from holdfast.retrieval.types import Document

WIKI_18 = 21_015_324
"""Passages of DPR's Wikipedia of December 2018."""
QUERIES = 64
_SAMPLE = 2_000
_ID = 70  # bytes that an id seen takes in memory
_WORD = 160  # bytes that a word of the vocabulary takes in memory
_MERGE = 1 << 30  # bytes that merging words takes at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A corpus in numbers."""

    passages: int
    text: float
    """Bytes of a passage as JSON."""
    pairs: float
    """Different words of a passage."""

    @property
    def vocabulary(self) -> float:
        """Different words of all passages, as Heaps' law has it for English: 44 √n of n words."""
        return 44 * (1.6 * self.pairs * self.passages) ** 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one kind of index takes, in bytes and seconds."""

    kind: str
    disk: float
    building_disk: float
    """While it is built, the index included."""
    building_memory: float
    memory: float
    """To search without touching the disk: the index as the system caches it, and what the process holds itself."""
    build_seconds: float | None
    """None: not measured, because no encoder was named."""
    batch_seconds: float | None
    """Of a search of `QUERIES` queries at once. None: not measured."""


def size_of(sample: Sequence[Document], count: int) -> Size:
    """Scale a few passages to `count`. Raises `ConfigError` for no passages."""
    if not sample or count < 1:
        raise ConfigError("the corpus holds no passage: there is nothing to plan for")
    lines = [json.dumps({"id": d.id, "contents": d.contents}, ensure_ascii=False).encode() for d in sample]
    different = [len(set(d.contents.lower().split())) for d in sample]
    return Size(passages=count, text=float(np.mean([len(line) + 1 for line in lines])), pairs=float(np.mean(different)))


def sample_of(corpus: Path | None, count: int | None) -> tuple[list[Document], int]:
    """The first passages of a corpus and how many it holds; without one, made-up passages of a hundred words, as
    many as wiki-18 has unless `count` says otherwise."""
    if corpus is not None:
        found = passages(corpus, on_skip=lambda _: None)
        sample = list(islice(found, _SAMPLE))
        if count is None:  # a file of a folder is many passages
            count = len(sample) + sum(1 for _ in found) if corpus.is_dir() else count_rows(corpus)
        return sample, count
    rng = np.random.default_rng(0)
    ranks = rng.zipf(1.26, (_SAMPLE, 100)) % 30_000  # about 57 different words, as wiki-18 has
    texts = [" ".join(f"w{rank:04d}" for rank in row) for row in ranks.tolist()]
    return [Document(str(10_000_000 + i), f'"A title"\n{text}') for i, text in enumerate(texts)], count or WIKI_18


def bm25_needs(size: Size, per_second: float) -> Needs:
    documents, pairs = (size.text + 8) * size.passages, size.pairs * size.passages
    own = _WORD * size.vocabulary
    index = documents + 8 * pairs + 12 * size.vocabulary
    return Needs(
        kind="BM25",
        disk=index,
        building_disk=index + 12 * pairs + 8 * size.passages,
        building_memory=own + max(_ID * size.passages, 24 * size.passages + min(_MERGE, 32 * pairs)),
        memory=index + own + 4 * size.passages,
        build_seconds=size.passages / per_second,
        batch_seconds=None,
    )


def dense_needs(
    size: Size, dimensions: int, per_second: float | None, row_seconds: float, *, sq8: bool, chunk_rows: int = 65_536
) -> Needs:
    """`per_second`: passages encoded; `row_seconds`: to compare `QUERIES` queries with one row."""
    documents, bytes_ = (size.text + 8) * size.passages, 1.0 * dimensions * size.passages
    disk = documents + (3 if sq8 else 2) * bytes_
    chunk = 4.0 * dimensions * min(chunk_rows, size.passages)
    return Needs(
        kind=f"dense {dimensions}, {'sq8' if sq8 else 'fp16'}",
        disk=disk,
        building_disk=disk,
        building_memory=_ID * size.passages + chunk,
        memory=documents + (bytes_ if sq8 else 2 * bytes_ + chunk),
        build_seconds=None if per_second is None else size.passages / per_second,
        batch_seconds=None if sq8 else row_seconds * size.passages,
    )


def bm25_rate(sample: Sequence[Document]) -> float:
    """Passages a second that are indexed here, from indexing a few."""
    from holdfast.retrieval.bm25_building import build_bm25

    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "sample.jsonl"
        corpus.write_text("".join(json.dumps({"id": d.id, "contents": d.contents}) + "\n" for d in sample))
        began = perf_counter()
        build_bm25(corpus, Path(folder) / "index")
        return len(sample) / (perf_counter() - began)


def encoding_rate(model: str, sample: Sequence[Document], device: str) -> tuple[float, int]:
    """Passages a second that an encoder takes here, and its dimensions."""
    from holdfast.retrieval.encoder import Encoder, spec_of

    encoder = Encoder(spec_of(model, query_prefix=""), device)
    texts = [document.contents for document in sample]
    encoder.passages(texts[:8])  # the first call is slow
    began, done = perf_counter(), 0
    while done < len(texts) and (done == 0 or perf_counter() - began < 3):
        done += len(encoder.passages(texts[done : done + 64]))
    return done / (perf_counter() - began), encoder.dimensions


def row_seconds(dimensions: int, device: str) -> float:
    """Seconds to compare `QUERIES` queries with one row of half precision, as exact search does."""
    from holdfast.retrieval.encoder import device_of
    from holdfast.retrieval.exact import ExactSearch

    rng = np.random.default_rng(0)
    rows = rng.standard_normal((65_536, dimensions), np.float32).astype(np.float16)
    queries = rng.standard_normal((QUERIES, dimensions), np.float32)
    search = ExactSearch(rows, device_of(device))
    search.best(queries, 3)
    began = perf_counter()
    search.best(queries, 3)
    return (perf_counter() - began) / len(rows)
