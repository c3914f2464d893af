"""An index built on disk: bits of the one built in memory and of bm25s, and no half index."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import pytest

from holdfast.base.errors import DataError
from holdfast.retrieval import bm25_building
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.bm25_building import Vocabulary, build_bm25
from holdfast.retrieval.corpus import passages

Write = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("chunk", "pairs", "stem"), [(1000, 1 << 20, True), (100, 50, True), (333, 10_000, True), (333, 10_000, False)]
)
def test_on_disk_as_in_memory(write_corpus: Write, tmp_path: Path, chunk: int, pairs: int, stem: bool) -> None:
    corpus = write_corpus(1000)
    build_bm25(corpus, tmp_path / "disk", chunk=chunk, pairs_at_once=pairs, stem=stem)
    BM25Retriever.build(tuple(passages(corpus, on_skip=pytest.fail)), stem=stem).save(tmp_path / "memory")
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "disk", "memory"]


def test_the_scores_are_those_of_bm25s(write_corpus: Write, tmp_path: Path) -> None:
    corpus = write_corpus(300)
    build_bm25(corpus, tmp_path / "index")
    vocabulary = Vocabulary(stem=True)
    words = [vocabulary.learn(document.contents) for document in passages(corpus, on_skip=pytest.fail)]
    theirs = bm25s.BM25(k1=0.9, b=0.4, method="lucene", backend="numpy", csc_backend="numpy")
    theirs.index((words, vocabulary.numbers), create_empty_token=False, show_progress=False)
    for name, key in (("scores.f4", "data"), ("rows.i4", "indices"), ("starts.i8", "indptr")):
        assert (tmp_path / "index" / name).read_bytes() == theirs.scores[key].tobytes()


def test_a_stopped_build_leaves_nothing(
    write_corpus: Write, tmp_path: Path, killing: Any, interrupted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(2500)
    for at in (1, 3, 5):
        with pytest.raises(interrupted):
            build_bm25(corpus, tmp_path / "index", progress=killing(at))
    with pytest.raises(DataError, match="none of 1 rows can be used as a passage"):
        build_bm25(write_corpus([{"x": 1}], "bad.jsonl"), tmp_path / "index")
    with pytest.raises(DataError, match="none of the 1 passages contains a word"):
        build_bm25(write_corpus([{"id": "a", "contents": "?!"}], "bad.jsonl"), tmp_path / "index")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bm25_building, "write_words", full)
    with pytest.raises(DataError, match="index cannot be written: the disk is full"):
        build_bm25(corpus, tmp_path / "index")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "corpus.jsonl"]


def test_skipped_rows_are_counted(write_corpus: Write, tmp_path: Path, killing: Any) -> None:
    corpus = write_corpus([{"id": "a", "contents": "x"}, {"id": "a", "contents": "y"}, {"id": "b", "contents": "z"}])
    build_bm25(corpus, tmp_path / "index", progress=(listener := killing(-1)))
    assert listener.notes == [
        f"skipped 1 row(s) that cannot be used; the first: {corpus}:2: id: 'a' occurred on an earlier line"
    ]
