"""Bad files and bad rows: each named, counted, and never silent."""

import gzip
import json
import logging
import os
import stat

import pytest

from holdfast.base.errors import DataError
from holdfast.base.jsonl import text_field, write_jsonl
from holdfast.base.rows import read_rows


def read(path, **kwargs):
    return read_rows(path, lambda row, line: (line, text_field(row, "x")), what="row", **kwargs)


def put(tmp_path, *lines: bytes, name="f.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"".join(lines))
    return path


GOOD = b'{"x": "fine"}\n'


@pytest.mark.parametrize(
    ("line", "field", "reason"),
    [
        (b'{"x": "a"\n', "row", "is not JSON"),
        (b"null\n", "row", "must be a JSON object, is null"),
        (b"\xff\xfe\n", "row", "is not UTF-8 at byte 1 of the line"),
        (b'{"x": "caf\xe9"}\n', "row", "is not UTF-8 at byte 11 of the line"),
        (b"[" * 200_000 + b"\n", "row", "is nested too deeply"),
        (b'{"y": "a"}\n', "x", "missing; the row has 'y'"),
        (b'{"x": true}\n', "x", "must be a string, is true or false"),
        (b'{"x": null}\n', "x", "must be a string, is null"),
        (b'{"x": "  "}\n', "x", "is empty"),
        (b'{"x": "\\ud800"}\n', "x", "half of a surrogate pair"),
        (b'{"x": "cut of', "row", "the file was cut off here"),
    ],
)
def test_a_bad_row_is_skipped_with_file_line_field_and_reason(tmp_path, line, field, reason):
    path = put(tmp_path, GOOD, b"\n", GOOD, line)
    skipped = []
    rows = read(path, on_skip=skipped.append)
    assert [row for row, _ in rows] == [1, 3]  # blank lines count as lines, not as rows
    assert (skipped[0].line, skipped[0].field) == (4, field)
    assert reason in skipped[0].reason
    assert str(skipped[0]) == f"{path}:4: {field}: {skipped[0].reason}"


def test_without_a_listener_skipped_rows_are_logged_once(tmp_path, caplog):
    path = put(tmp_path, GOOD, GOOD, GOOD, b"{}\n", b"[]\n")
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        read(path)
    (record,) = caplog.records
    assert "skipped 2 of 5 rows" in record.getMessage()
    assert f"{path}:4: x: missing" in record.getMessage()


def test_half_bad_is_read_and_more_than_half_is_an_error_that_names_three(tmp_path):
    assert len(read(put(tmp_path, GOOD, GOOD, b"{}\n", b"{}\n"), on_skip=print)) == 2
    with pytest.raises(DataError) as error:
        read(put(tmp_path, GOOD, *[b"{}\n"] * 4), on_skip=print)
    text = str(error.value)
    assert "only 1 of 5 rows can be used" in text
    assert [f":{n}: x:" in text for n in (2, 3, 4, 5)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("f.jsonl", b"{}\n", "none of 1 rows"),
        ("f.jsonl", b"\xef\xbb\xbf\n \n", "is empty"),
        (
            "cut.jsonl.gz",
            gzip.compress(GOOD, mtime=0)[:-9],
            r"cannot be read: .*\. Check its permissions",
        ),
        ("f.jsonl", None, "does not exist"),
        ("", None, "is a folder; name a file in it"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, on_skip=print)


def test_what_other_systems_write_around_rows(tmp_path, caplog):
    rows = put(tmp_path, b'\xef\xbb\xbf{"x": "a"}\r\n{"x": "b"}')  # a mark, and a last line without an end
    assert read(rows) == [(1, "a"), (2, "b")]
    assert read(put(tmp_path, "{'x': 'é'}\n".replace("'", '"').encode("utf-16"))) == [(1, "é")]
    assert read(put(tmp_path, GOOD, name="unpacked.jsonl.gz")) == [(1, "fine")]
    assert not caplog.records


def test_gzip_and_a_gzip_cut_in_half(tmp_path):
    whole = gzip.compress(b"".join(b'{"x": "%d"}\n' % i for i in range(5000)))
    assert len(read(put(tmp_path, whole, name="f.jsonl.gz"))) == 5000
    with pytest.raises(DataError, match="cannot be read"):
        read(put(tmp_path, whole[: len(whole) // 2], name="f.jsonl.gz"))


def test_write_reads_back_and_is_readable_by_others(tmp_path):
    rows = [{"x": "漢字 é\n"}, {"x": "\ud800 lone"}, {"n": [1, 2.5, None]}]
    path = tmp_path / "new" / "f.jsonl"
    assert write_jsonl(path, rows) == 3
    text = path.read_text(encoding="utf-8")
    assert "漢字" in text
    assert [json.loads(line) for line in text.splitlines()] == rows
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("bad", [float("nan"), object()])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, bad):
    path = tmp_path / "f.jsonl"
    write_jsonl(path, [{"x": 1}])
    with pytest.raises((ValueError, TypeError)):
        write_jsonl(path, [{"x": 2}, {"x": bad}])
    assert path.read_text() == '{"x": 1}\n'
    assert os.listdir(tmp_path) == ["f.jsonl"]
