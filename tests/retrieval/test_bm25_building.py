"""An index built on disk: bits of the one built in memory, and what a kill, a full disk or another corpus do to it."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest

from holdfast.base.errors import DataError
from holdfast.retrieval import building
from holdfast.retrieval.bm25 import BM25Retriever
from holdfast.retrieval.bm25_building import build_bm25
from holdfast.retrieval.corpus import passages
from holdfast.retrieval.storage import DocumentWriter, NpyWriter
from holdfast.train.listener import Listener

Write = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("chunk", "pairs"), [(1000, 1 << 20), (100, 50), (333, 10_000)])
@pytest.mark.parametrize("stem", [True, False])
def test_on_disk_as_in_memory(write_corpus: Write, tmp_path: Path, chunk: int, pairs: int, stem: bool) -> None:
    corpus = write_corpus(1000)
    build_bm25(corpus, tmp_path / "disk", chunk=chunk, pairs_at_once=pairs, stem=stem)
    BM25Retriever.build(tuple(passages(corpus, on_skip=pytest.fail)), stem=stem).save(tmp_path / "memory")
    assert contents(tmp_path / "disk") == contents(tmp_path / "memory")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "disk", "memory"]


def test_bm25s_opens_it(write_corpus: Write, tmp_path: Path) -> None:
    build_bm25(write_corpus(300), tmp_path / "index")
    opened = bm25s.BM25.load(tmp_path / "index" / "bm25s", mmap=True)
    ours = BM25Retriever.load(tmp_path / "index")
    (found,) = ours.rank(["w50 w90"], 300)
    scores = opened.get_scores_from_ids([opened.vocab_dict["w50"], opened.vocab_dict["w90"]])
    assert (np.sort(scores[scores > 0])[::-1] == found.scores).all()


def test_killed_anywhere_it_goes_on(write_corpus: Write, tmp_path: Path, killing: Any, interrupted: Any) -> None:
    corpus = write_corpus(2500)
    build_bm25(corpus, tmp_path / "whole", chunk=400, pairs_at_once=5000)
    expected = contents(tmp_path / "whole")
    kills = 0
    for at in range(1, 30):
        out = tmp_path / f"index-{at}"
        try:
            build_bm25(corpus, out, chunk=400, pairs_at_once=5000, progress=killing(at))
        except interrupted:
            kills += 1
            with pytest.raises(DataError, match="its build was interrupted"):
                BM25Retriever.load(out)
            build_bm25(corpus, out, chunk=400, pairs_at_once=5000, progress=(again := killing(-1)))
            assert any("continuing" in note for note in again.notes)
        assert contents(out) == expected
    assert kills > 10


def test_a_killed_process_loses_nothing_that_was_committed(write_corpus: Write, tmp_path: Path) -> None:
    """SIGKILL: no clean-up runs, no buffer is written."""
    corpus, out = write_corpus(6000), tmp_path / "index"
    build_bm25(corpus, tmp_path / "whole", chunk=500)
    code = "import sys; from pathlib import Path; from holdfast.retrieval.bm25_building import build_bm25\n"
    code += "build_bm25(Path(sys.argv[1]), Path(sys.argv[2]), chunk=500)"
    for chunks in (2, 7):
        process = subprocess.Popen([sys.executable, "-c", code, str(corpus), str(out)])
        while process.poll() is None and len(building.commits(tmp_path / "index.building")) < chunks:
            time.sleep(0.001)
        process.kill()
        process.wait()
    assert building.commits(tmp_path / "index.building") or out.is_dir()  # a fast machine may be done
    if not out.is_dir():
        build_bm25(corpus, out, chunk=500)
    assert contents(out) == contents(tmp_path / "whole")


def test_killed_twice_in_the_middle_of_a_chunk(
    write_corpus: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: Any
) -> None:
    """Passages of an unfinished chunk are in the file already; they are cut off."""
    corpus, out = write_corpus(1000), tmp_path / "index"
    build_bm25(corpus, tmp_path / "whole", chunk=100)
    flush = DocumentWriter.flush
    for finished in (2, 4):  # chunks, before the one that is killed
        left = finished

        def killing_flush(writer: DocumentWriter) -> None:
            nonlocal left
            flush(writer)
            left -= 1
            if left < 0:
                raise interrupted

        with monkeypatch.context() as patched, pytest.raises(interrupted):
            patched.setattr(DocumentWriter, "flush", killing_flush)
            build_bm25(corpus, out, chunk=100)
    assert len(building.commits(tmp_path / "index.building")) == 6
    build_bm25(corpus, out, chunk=100)
    assert contents(out) == contents(tmp_path / "whole")


def interrupt(corpus: Path, out: Path, killing: Any, interrupted: Any, **settings: Any) -> None:
    with pytest.raises(interrupted):
        build_bm25(corpus, out, chunk=100, progress=killing(3), **settings)


def test_other_settings_and_other_corpora_do_not_go_on(
    write_corpus: Write, tmp_path: Path, killing: Any, interrupted: Any
) -> None:
    corpus, out = write_corpus(3000), tmp_path / "index"
    interrupt(corpus, out, killing, interrupted)
    with pytest.raises(DataError, match="unfinished index with stem = True, and this command has other"):
        build_bm25(corpus, out, chunk=100, stem=False)
    rows = [json.loads(line) for line in corpus.read_text().splitlines()]
    for changed in ([{"id": "x", "contents": "new"}, *rows[1:]], rows[:50]):
        write_corpus(changed)
        with pytest.raises(DataError, match=r"has changed since the build in .* began"):
            build_bm25(corpus, out, chunk=100)
    write_corpus(rows)
    build_bm25(corpus, out, chunk=100)


def test_a_full_disk_is_a_sentence_and_no_loss(
    write_corpus: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = write_corpus(1000), tmp_path / "index"
    write = NpyWriter.write

    def full(self: NpyWriter, part: Any) -> None:
        if self.dtype == np.float32:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, part)

    monkeypatch.setattr(NpyWriter, "write", full)
    with pytest.raises(DataError, match=r"the disk is full .* run the same command again: it continues"):
        build_bm25(corpus, out, chunk=100)
    assert not out.exists()
    monkeypatch.setattr(NpyWriter, "write", write)
    build_bm25(corpus, out, chunk=100)
    assert len(BM25Retriever.load(out).documents) == 1000


def test_an_index_is_not_replaced_and_a_folder_not_filled(write_corpus: Write, tmp_path: Path) -> None:
    corpus, out = write_corpus(10), tmp_path / "index"
    out.mkdir()  # empty: will do
    build_bm25(corpus, out)
    with pytest.raises(DataError, match="is an index already"):
        build_bm25(corpus, out)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years")
    with pytest.raises(DataError, match="is not an index; name a new folder"):
        build_bm25(corpus, tmp_path / "thesis")


def test_two_at_once(write_corpus: Write, tmp_path: Path) -> None:
    corpus, out = write_corpus(10), tmp_path / "index"

    class Second(Listener):
        def stage(self, name: str, total: int | None = None) -> None:
            if name == "checksums":
                with pytest.raises(DataError, match="another process is building in"):
                    build_bm25(corpus, out)

    build_bm25(corpus, out, progress=Second())
    assert out.is_dir()


def test_a_corpus_that_is_none_leaves_nothing_behind(write_corpus: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 1 rows can be used as a passage"):
        build_bm25(write_corpus([{"x": 1}]), tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_corpus_without_words(write_corpus: Write, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of the 1 passages contains a word"):
        build_bm25(write_corpus([{"id": "a", "contents": "?!"}]), tmp_path / "index")


def test_skipped_rows_are_counted(write_corpus: Write, tmp_path: Path, killing: Any) -> None:
    corpus = write_corpus([{"id": "a", "contents": "x"}, {"id": "a", "contents": "y"}, {"id": "b", "contents": "z"}])
    build_bm25(corpus, tmp_path / "index", progress=(listener := killing(-1)))
    assert listener.notes == [
        f"skipped 1 row(s) that cannot be used; the first: {corpus}:2: id: 'a' occurred on an earlier line"
    ]
