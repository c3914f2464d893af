"""Every file of rows or logs comes through one door, and costs what it weighs."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from holdfast.base import opening
from holdfast.base.errors import DataError
from holdfast.base.opening import beginning, blocks, lines, opened, piped, spooled


def refuse(line: int) -> None:
    raise AssertionError(f"line {line} is not long")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "is a device or a socket, not a regular file, .*: save it as a file first"),
        ("pipe", "is a pipe, not a regular file, .*: save it as a file first"),
        ("", "is a folder; name a file in it"),
        ("nowhere", "does not exist"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("a\0b", "cannot be read: embedded null byte"),
    ],
)
def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path, path: str, said: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(DataError, match=said):
        list(blocks(tmp_path / path))
    with pytest.raises(DataError, match=said), opened(tmp_path / path):
        pass


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_text_is_the_same_however_it_is_stored(tmp_path, pack, encoding) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack("Größe\n\nZürich".encode(encoding)))
    found = [(1, "Größe\n".encode()), (2, b"\n"), (3, "Zürich".encode())]
    assert list(lines(path, refuse)) == found
    assert b"".join(blocks(path)) == beginning(path, 100) == b"".join(line for _, line in found)


@pytest.mark.parametrize("block", [3, 7, 1000])
def test_a_line_without_an_end_is_passed_over_and_takes_no_memory(tmp_path, monkeypatch, block) -> None:
    monkeypatch.setattr(opening, "MAX_LINE", 50)
    monkeypatch.setattr(opening, "BLOCK", block)
    path, long = tmp_path / "text", list[int]()
    path.write_bytes(b"a\n" + b"b" * 51 + b"\n" + b"c" * 49 + b"\n\n" + b"d" * 500)
    assert list(lines(path, long.append)) == [(1, b"a\n"), (2, b""), (3, b"c" * 49 + b"\n"), (4, b"\n")]
    assert long == [2, 5]


def test_an_archive_of_more_than_a_text_would_be_is_refused_before_it_is_unpacked(tmp_path, monkeypatch) -> None:
    path, read = tmp_path / "rows.jsonl.gz", 0
    path.write_bytes(gzip.compress(b"{}\n" * 20_000_000))
    with pytest.raises(DataError, match=r"has 57\.0 KiB and unpacks to 16\.\d MiB or more: over 200 times its size"):
        for block in blocks(path):
            read += len(block)
    assert read <= opening._FREE
    # A log of many equal lines is a text: some hundred times its size, but not much.
    monkeypatch.setattr(opening, "_FREE", 1000)
    path.write_bytes(gzip.compress(b"".join(b"step %d: a warning that comes at every step\n" % k for k in range(9999))))
    assert sum(map(len, blocks(path))) > 15 * path.stat().st_size


def test_what_comes_before_the_damage_of_an_archive_is_read_if_the_reader_says_so(tmp_path) -> None:
    path, notes = tmp_path / "rows.jsonl.gz", list[str]()
    whole = os.urandom(500_000).hex().encode()
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"cannot be read: .*Check its permissions, or copy it again"):
        list(blocks(path))
    part = b"".join(blocks(path, lambda: notes.append("damaged")))
    assert whole.startswith(part) and len(part) > 300_000 and notes == ["damaged"]
    path.write_bytes(packed[:12])
    with pytest.raises(DataError, match="cannot be read"):  # nothing comes before it
        list(blocks(path, lambda: None))


def test_a_pipe_is_read_once_a_program_writes_and_refused_when_none_does(tmp_path, monkeypatch) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb") as file:
            file.write(b"a" * 300_000)

    writer = threading.Thread(target=write)
    writer.start()
    with spooled(piped(path), "log") as copied:
        assert copied.read_bytes() == b"a" * 300_000
    writer.join()
    monkeypatch.setattr(opening, "_NO_WRITER", 0.0)
    with pytest.raises(DataError, match="pipe to which no program writes; start"), spooled(piped(path), "log"):
        pass


def test_a_stream_without_an_end_does_not_fill_the_disk(monkeypatch) -> None:
    monkeypatch.setattr(opening, "_MAX_PIPED", 1000)
    endless = iter(lambda: b"\0" * 100, b"")
    with (
        pytest.raises(DataError, match=r"standard input has more than 1\.0 KiB, .*; save it as a file"),
        spooled(endless, "stdin", "standard input"),
    ):
        pass
