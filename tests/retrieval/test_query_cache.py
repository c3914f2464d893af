"""Two caches of queries: that of a run, in memory, and that of a server, which outlives it."""

from __future__ import annotations

import errno
import logging
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import RetrievalError
from holdfast.retrieval.cache import CachedRetriever
from holdfast.retrieval.server import query_cache as module
from holdfast.retrieval.server.query_cache import QueryCache
from holdfast.retrieval.types import Document, Hit, Ranked


class Recording:
    """Answers every query with itself, k times, and remembers what it was asked."""

    in_process = False

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[str, ...], int]] = []
        self.fail = False

    def search(self, queries, k):
        self.calls.append((tuple(queries), k))
        if self.fail:
            raise RetrievalError("down")
        return [[Hit(Document(f"{query}-{i}", query), 1.0) for i in range(k)] for query in queries]


def ids(results):
    return [[hit.document.id for hit in hits] for hits in results]


def test_each_query_is_asked_once_and_answered_in_order():
    inner = Recording()
    cached = CachedRetriever(inner)
    assert ids(cached.search(["b", "a", "b"], 1)) == [["b-0"], ["a-0"], ["b-0"]]
    assert ids(cached.search(["a", "c", "b"], 1)) == [["a-0"], ["c-0"], ["b-0"]]
    assert inner.calls == [(("b", "a"), 1), (("c",), 1)]


def test_another_k_is_another_search():
    inner = Recording()
    cached = CachedRetriever(inner)
    assert ids(cached.search(["a"], 1) + cached.search(["a"], 2)) == [["a-0"], ["a-0", "a-1"]]
    assert len(inner.calls) == 2


def test_the_least_recently_used_is_forgotten():
    inner = Recording()
    cached = CachedRetriever(inner, size=2)
    for query in ["a", "b", "a", "c"]:  # using a again leaves b as the oldest
        cached.search([query], 1)
    inner.calls.clear()
    cached.search(["a"], 1)
    cached.search(["c"], 1)
    assert inner.calls == []
    cached.search(["b"], 1)
    assert inner.calls == [(("b",), 1)]


def test_empty_results_are_remembered_and_failures_are_not():
    inner = Recording()
    cached = CachedRetriever(inner)
    inner.fail = True
    with pytest.raises(RetrievalError, match="down"):
        cached.search(["a"], 1)
    inner.fail = False
    assert ids(cached.search(["a"], 1)) == [["a-0"]]
    inner.search = lambda queries, k: [[] for _ in queries]
    assert cached.search(["none"], 1) == [[]]
    inner.search = None
    assert cached.search(["none"], 1) == [[]]


def test_results_are_the_callers_own():
    cached = CachedRetriever(Recording())
    cached.search(["a"], 1)[0].clear()
    first, second = cached.search(["a", "a"], 1)
    first.clear()
    assert ids([second, *cached.search(["a"], 1)]) == [["a-0"], ["a-0"]]


def test_a_slow_search_does_not_hold_up_a_cached_one():
    inner = Recording()
    cached = CachedRetriever(inner)
    cached.search(["known"], 1)
    started, release = threading.Event(), threading.Event()
    answer = inner.search

    def slow(queries, k):
        started.set()
        assert release.wait(10)
        return answer(queries, k)

    inner.search = slow
    thread = threading.Thread(target=cached.search, args=(["new"], 1))
    thread.start()
    assert started.wait(10)
    assert ids(cached.search(["known"], 1)) == [["known-0"]]
    release.set()
    thread.join(10)
    assert not thread.is_alive()


# ---- the cache that outlives its server


def found(*rows: int) -> Ranked:
    return Ranked(np.array(rows, np.int64), np.array([1 / (row + 3) for row in rows], np.float32))


def same(one: Ranked | None, other: Ranked) -> bool:
    return (
        one is not None and one.rows.tolist() == other.rows.tolist() and one.scores.tobytes() == other.scores.tobytes()
    )


def fill(path: Path, size: int = 10, index: str = "x") -> QueryCache:
    kept = QueryCache(size, path, index)
    kept.put(("a", 3), found(1, 2))
    kept.put(("line\nbreak\ud800", 3), found())
    kept.flush()
    return kept


@pytest.mark.parametrize("killed", [True, False])
def test_it_is_there_after_a_restart(tmp_path: Path, killed: bool) -> None:
    path = tmp_path / "queries.jsonl"
    first = fill(path)
    if killed:
        assert first._file is not None
        first._lock.close()  # as the system does
        first._file.close()
        with open(path, "a") as file:
            file.write('{"query": "cut o')
    else:
        first.close()
    again = QueryCache(10, path, "x")
    assert same(again.get(("a", 3)), found(1, 2))
    assert same(again.get(("line\nbreak\ud800", 3)), found())
    assert again.get(("a", 2)) is None
    again.close()


def test_another_index_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    with closing(QueryCache(10, path, "y")) as kept:
        assert len(kept) == 0
    path.write_text('{"index": "z"}\n[[[')
    with closing(QueryCache(10, path, "y")) as kept:
        assert len(kept) == 0


@pytest.mark.parametrize(
    "damage", [(b"[1, 2]", b"[1, 7]"), (b"0.25", b"0.35"), (b'"k": 3', b'"k": 2'), (b"\n", b"\xff")]
)
def test_a_damaged_line_is_never_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: tuple[bytes, bytes]
) -> None:
    path = tmp_path / "queries.jsonl"
    kept = fill(path)
    kept.put(("b", 1), found(4))
    kept.close()
    head, line, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(head + b"\n" + (line + b"\n").replace(*damage) + rest)
    again = QueryCache(10, path, "x")
    assert again.get(("a", 3)) is None and again.get(("a", 2)) is None
    assert same(again.get(("b", 1)), found(4)) and "1 line(s) are damaged" in caplog.text
    again.close()
    caplog.clear()
    with closing(QueryCache(10, path, "x")) as kept:
        assert len(kept) >= 1 and not caplog.text, "it is written again without the line"


def test_a_file_whose_first_line_is_damaged_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    for content in (path.read_bytes().replace(b"index", b"imdex"), b"[" * 200_000, b'{"index": "x"}\n', b""):
        path.write_bytes(content)
        with closing(QueryCache(10, path, "x")) as kept:
            assert len(kept) == 0


def test_bytes_are_limited_in_memory_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    path = tmp_path / "queries.jsonl"
    kept = QueryCache(10**6, path, "x")
    for i in range(100):  # about 30 KB each
        kept.put((f"{i} " + "x" * 2000, 1000), found(*range(1000)))
        kept.flush()
        assert path.stat().st_size < 2 * 100_000 + 40_000
    assert 1 <= len(kept) <= 4
    newest = kept.get(("99 " + "x" * 2000, 1000))
    assert newest is not None
    for _ in range(10):  # the same again takes no more room
        kept.put(("99 " + "x" * 2000, 1000), newest)
    assert 1 <= len(kept) <= 4
    count = len(kept)
    kept.close()
    again = QueryCache(10**6, path, "x")
    assert len(again) == count
    monkeypatch.setattr(module, "MOST_BYTES", 50_000)
    again.put(("small", 1), found(1))
    assert again.get(("small", 1)) is not None and again._bytes <= 50_000
    again.close()


def test_the_least_recently_used_goes_and_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    kept = QueryCache(3, path, "x")
    for i in range(100):
        kept.put((str(i), 1), found(i))
        kept.get(("0", 1))
        kept.flush()
        assert len(path.read_text().splitlines()) <= 1 + 2 * 3 + 1
    kept.close()
    again = QueryCache(2, path, "x")  # a smaller cache keeps the newest
    assert again.get(("0", 1)) is not None and again.get(("99", 1)) is not None and len(again) == 2
    again.close()


def test_a_second_server_keeps_its_own_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "queries.jsonl"
    first = fill(path)
    text = path.read_text()
    second = QueryCache(10, path, "x")
    assert "belongs to another server" in caplog.text
    second.put(("b", 1), found(1))
    second.flush()
    second.close()
    assert path.read_text() == text
    first.close()


def test_without_a_place_to_write_it_still_remembers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = QueryCache(10, tmp_path / "absent" / "queries.jsonl", "x")
    kept.put(("a", 1), found(1))
    assert kept.get(("a", 1)) is not None
    kept = QueryCache(10, tmp_path / "queries.jsonl", "x")

    class Full:
        def write(self, text: str) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.write("")

    assert kept._file is not None
    kept._file.close()
    kept._file = Full()  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        kept.put(("a", 1), found(1))
    assert "No space left on device): the cache is in memory only" in caplog.text
    kept.flush()
    kept.close()
    assert kept.get(("a", 1)) is not None
