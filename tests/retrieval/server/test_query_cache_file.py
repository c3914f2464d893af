"""The cache that outlives its server."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.retrieval.server import query_cache as module
from holdfast.retrieval.server.query_cache import QueryCache
from holdfast.retrieval.types import Ranked


def found(*rows: int) -> Ranked:
    return Ranked(np.array(rows, np.int64), np.array([1 / (row + 3) for row in rows], np.float32))


def same(one: Ranked | None, other: Ranked) -> bool:
    return (
        one is not None and one.rows.tolist() == other.rows.tolist() and one.scores.tobytes() == other.scores.tobytes()
    )


def fill(path: Path, size: int = 10, index: str = "x") -> QueryCache:
    kept = QueryCache(size, path, index, 1000)
    kept.put(("a", 3), found(1, 2))
    kept.put(("line\nbreak\ud800", 3), found())
    kept.flush()
    return kept


@pytest.mark.parametrize("killed", [True, False])
def test_it_is_there_after_a_restart(tmp_path: Path, killed: bool) -> None:
    path = tmp_path / "queries.jsonl"
    first = fill(path)
    if killed:
        first._lock.close()  # as the system does
        with open(path, "a") as file:
            file.write('{"query": "cut o')
    else:
        first.close()
    again = QueryCache(10, path, "x", 1000)
    assert same(again.get(("a", 3)), found(1, 2))
    assert same(again.get(("line\nbreak\ud800", 3)), found())
    assert again.get(("a", 2)) is None
    again.close()


def test_another_index_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    assert len(QueryCache(10, path, "y", 1000)) == 0
    path.write_text('{"index": "z"}\n[[[')
    assert len(QueryCache(10, path, "y", 1000)) == 0
    assert [file.name for file in tmp_path.iterdir() if "damaged" in file.name] == []


GOOD = {"query": "b", "k": 3, "rows": [0, 999], "scores": [2.0, 1.5]}


@pytest.mark.parametrize(
    "line",
    [
        *(
            {**GOOD, "rows": rows}
            for rows in ([0, 1000], [-5, 0], [[0], [1]], [0, 2**80], [True, 1], [0.0, 1.0], "ab", 5)
        ),
        *({**GOOD, "scores": scores} for scores in ([1.0], [1.0] * 3, ["1", "2"], [None, 1.0], 5, [[1.0], [2.0]])),
        *({**GOOD, "scores": [2.0, score]} for score in (float("nan"), float("inf"), -float("inf"), 1e39)),
        json.dumps(GOOD).replace("1.5", "1e999"),
        *({**GOOD, "k": k} for k in (1, "3", None, True)),
        *({**GOOD, "query": query} for query in (5, None, ["b"])),
        *({}, [], "[" * 100_000, '{"query": "cut o', "\xff", ""),
    ],
)
def test_a_damaged_file_is_put_aside_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture, line: Any) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    damaged = path.read_bytes()
    damaged += line.encode("latin-1") if isinstance(line, str) else json.dumps(line).encode()
    path.write_bytes(damaged + b"\n" + json.dumps(GOOD).encode() + b"\n")
    kept = QueryCache(10, path, "x", 1000)
    assert len(kept) == 0
    assert "queries.jsonl is damaged (line 4 is not " in caplog.text
    assert (tmp_path / "queries.damaged.jsonl").read_bytes().startswith(damaged)
    kept.put(("a", 3), found(5))
    kept.close()
    assert same(QueryCache(10, path, "x", 1000).get(("a", 3)), found(5))


def test_what_is_whole_is_believed(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    with open(path, "a") as file:
        file.write(json.dumps(GOOD) + "\n")
    kept = QueryCache(10, path, "x", 1000)
    assert len(kept) == 3
    assert kept.get(("b", 3)).rows.tolist() == [0, 999]  # type: ignore[union-attr]
    kept.close()
    assert len(QueryCache(10, path, "x", 999)) == 0  # for an index without a passage 999 it is damaged


def test_bytes_are_limited_in_memory_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 100_000)
    path = tmp_path / "queries.jsonl"
    kept = QueryCache(10**6, path, "x", 1000)
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
    again = QueryCache(10**6, path, "x", 1000)
    assert len(again) == count
    monkeypatch.setattr(module, "MOST_BYTES", 50_000)
    again.put(("small", 1), found(1))
    assert again.get(("small", 1)) is not None and again._bytes <= 50_000
    again.close()


def test_the_least_recently_used_goes_and_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    kept = QueryCache(3, path, "x", 1000)
    for i in range(100):
        kept.put((str(i), 1), found(i))
        kept.get(("0", 1))
        kept.flush()
        assert len(path.read_text().splitlines()) <= 1 + 2 * 3 + 1
    kept.close()
    again = QueryCache(2, path, "x", 1000)  # a smaller cache keeps the newest
    assert again.get(("0", 1)) is not None and again.get(("99", 1)) is not None and len(again) == 2
    again.close()


def test_a_second_server_keeps_its_own_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "queries.jsonl"
    first = fill(path)
    text = path.read_text()
    second = QueryCache(10, path, "x", 1000)
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
    kept = QueryCache(10, tmp_path / "queries.jsonl", "x", 1000)

    class Full:
        def write(self, text: str) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.write("")

    kept._file = Full()  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        kept.put(("a", 1), found(1))
    assert "No space left on device): the cache is in memory only" in caplog.text
    kept.flush()
    kept.close()
    assert kept.get(("a", 1)) is not None


def test_size_zero_keeps_nothing(tmp_path: Path) -> None:
    kept = QueryCache(0, tmp_path / "queries.jsonl", "x")
    kept.put(("a", 1), found(1))
    assert kept.get(("a", 1)) is None
    assert list(tmp_path.iterdir()) == []
