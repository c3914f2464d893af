"""The cache that outlives its server."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.retrieval.postings import Ranked
from holdfast.retrieval.server.kept import KeptQueries


def found(*rows: int) -> Ranked:
    return Ranked(np.array(rows, np.int64), np.array([1 / (row + 3) for row in rows], np.float32))


def same(one: Ranked | None, other: Ranked) -> bool:
    return (
        one is not None and one.rows.tolist() == other.rows.tolist() and one.scores.tobytes() == other.scores.tobytes()
    )


def fill(path: Path, size: int = 10, index: str = "x") -> KeptQueries:
    kept = KeptQueries(size, path, index)
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
    again = KeptQueries(10, path, "x")
    assert same(again.get(("a", 3)), found(1, 2))
    assert same(again.get(("line\nbreak\ud800", 3)), found())
    assert again.get(("a", 2)) is None
    again.close()


def test_another_index_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    fill(path).close()
    assert len(KeptQueries(10, path, "y")) == 0
    path.write_text("not json")
    assert len(KeptQueries(10, path, "y")) == 0


def test_the_least_recently_used_goes_and_the_file_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    kept = KeptQueries(3, path, "x")
    for i in range(100):
        kept.put((str(i), 1), found(i))
        kept.get(("0", 1))
        kept.flush()
        assert len(path.read_text().splitlines()) <= 1 + 2 * 3 + 1
    kept.close()
    again = KeptQueries(2, path, "x")  # a smaller cache keeps the newest
    assert again.get(("0", 1)) is not None and again.get(("99", 1)) is not None and len(again) == 2
    again.close()


def test_a_second_server_keeps_its_own_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "queries.jsonl"
    first = fill(path)
    text = path.read_text()
    second = KeptQueries(10, path, "x")
    assert "belongs to another server" in caplog.text
    second.put(("b", 1), found(1))
    second.flush()
    second.close()
    assert path.read_text() == text
    first.close()


def test_without_a_place_to_write_it_still_remembers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptQueries(10, tmp_path / "absent" / "queries.jsonl", "x")
    kept.put(("a", 1), found(1))
    assert kept.get(("a", 1)) is not None
    kept = KeptQueries(10, tmp_path / "queries.jsonl", "x")

    class Full:
        def write(self, text: str) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.write("")

    kept._file = Full()  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        kept.put(("a", 1), found(1))
    assert "No space left on device): queries are kept in memory only" in caplog.text
    kept.flush()
    kept.close()
    assert kept.get(("a", 1)) is not None


def test_size_zero_keeps_nothing(tmp_path: Path) -> None:
    kept = KeptQueries(0, tmp_path / "queries.jsonl", "x")
    kept.put(("a", 1), found(1))
    assert kept.get(("a", 1)) is None
    assert list(tmp_path.iterdir()) == []
