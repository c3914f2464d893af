"""Tables and parquet that somebody else wrote: one wrong quote costs one row, and a small file little memory."""

from __future__ import annotations

import csv
import random
import string
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base import parquet, rows
from holdfast.base.errors import DataError
from holdfast.base.jsonl import Judge, Skipped
from holdfast.base.parquet import parquet_rows
from holdfast.base.rows import read_rows


def read(path: Path) -> tuple[list[dict[str, Any]], list[Skipped]]:
    skipped: list[Skipped] = []
    return read_rows(path, lambda row, line: row | {"line": line}, what="question", on_skip=skipped.append), skipped


def table(tmp_path: Path, *texts: str) -> Path:
    path = tmp_path / "questions.csv"
    path.write_text("question,golden_answers\n" + "".join(f"{text}\n" for text in texts))
    return path


WHO = [f"Who wrote book {k}?,author {k}" for k in range(50)]


@pytest.mark.parametrize(
    "later",
    [[], ['"Who, and when?",Tolvan'], ['Who?,""', 'When?,"1901"'], ['"He said ""yes""",x', '"two\n\nlines",y']],
    ids=["nothing quoted later", "a quoted cell later", "an empty cell later", "quotes in quotes later"],
)
def test_one_stray_quote_costs_one_row_and_its_line_is_named(tmp_path: Path, later: list[str]) -> None:
    whole, _ = read(table(tmp_path, *WHO, *later))
    found, skipped = read(table(tmp_path, *WHO[:7], '"Who wrote it?,nobody', *WHO[7:], *later))
    assert [(skip.line, skip.field) for skip in skipped] == [(9, "row")]
    assert skipped[0].reason.startswith("opens a quote that is never closed at the end of a cell; delete it")
    assert [row | {"line": 0} for row in found] == [row | {"line": 0} for row in whole]


def test_quotes_that_are_right_are_read_as_spreadsheets_write_them(tmp_path: Path) -> None:
    found, skipped = read(table(tmp_path, '"two\n\n""lines""",a', '5" disk,b', '"c"d,e', ",", '"f","g"'))
    assert not skipped
    assert [(row["line"], row["question"], row["golden_answers"]) for row in found] == [
        *((2, 'two\n\n"lines"', "a"), (5, '5" disk', "b")),
        *((6, "cd", "e"), (8, "f", "g")),
    ]


ROWS = [("Who, if anyone?", "Ä"), ('What is "Star"?', "3,5; a|b"), ("When?", "1896")]
SAVED = {
    "commas": ("", ",", "\n"),
    "semicolons with a mark of UTF-8": ("\ufeff", ";", "\r\n"),
    "tabs": ("", "\t", "\n"),
    "bars": ("", "|", "\n"),
    "a line that names the mark": ("sep=;\r\n", ";", "\r\n"),
    "a line that names an odd mark": ("\ufeffsep=#\n", "#", "\n"),
    "a line that names no mark": ("sep=\r\n", ";", "\r\n"),
    "a quoted line that names no mark": ('"sep="\n', "\t", "\n"),
    "lines that end as on old Macs": ("", ",", "\r"),
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_a_table_is_the_same_however_a_spreadsheet_saves_it(tmp_path: Path, name: str, quoting: Any) -> None:
    before, mark, end = SAVED[name]
    path = tmp_path / "questions.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(before)
        csv.writer(file, delimiter=mark, lineterminator=end, quoting=quoting).writerows([("Question", "Answer"), *ROWS])
    found, skipped = read(path)
    assert not skipped and [(row["question"], row["answer"]) for row in found] == ROWS


def test_quotes_that_a_database_has_escaped_are_quotes(tmp_path: Path) -> None:
    found, skipped = read(table(tmp_path, r'"Who is \"Star\", say?",Dorit', r"C:\dir,x"))
    assert not skipped
    assert [(row["question"], row["golden_answers"]) for row in found] == [
        ('Who is "Star", say?', "Dorit"),
        ("C:\\dir", "x"),
    ]


@pytest.mark.parametrize(
    ("row", "way"),
    [
        (b"Who, if anyone?,Dorit", "has 3 cells, but the header has 2; put a text with the mark between cells"),
        ("Wer ist schön?,Ä".encode("cp1252"), "is not UTF-8 at byte 12 of the line; save the table as CSV in UTF-8"),
    ],
)
def test_a_row_that_cannot_be_read_says_what_to_do(tmp_path: Path, row: bytes, way: str) -> None:
    path = table(tmp_path, *WHO[:3])
    path.write_bytes(path.read_bytes() + row + b"\n")
    found, (skip,) = read(path)
    assert len(found) == 3 and skip.line == 5 and skip.reason.startswith(way)


def test_a_spreadsheet_with_another_name_is_refused_as_one(tmp_path: Path) -> None:
    path = tmp_path / "questions.csv"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(DataError, match="is a spreadsheet; save it as CSV"):
        read(path)


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("questions.txt", "Who? Dorit\n", "one JSON object per line"),
        ("questions.json", '["Who?", "When?"]', "one JSON object per question, in an array"),
        ("questions.csv", "question,answer\nWho?\n", "a header line and one question a line"),
    ],
)
def test_a_file_without_a_usable_row_says_what_it_needs(tmp_path: Path, name: str, text: str, form: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(DataError, match=f"A file of questions has {form}. The first that cannot:"):
        read(path)


_CHAINS = {
    "one quote": lambda n: ['"x,y', *["x,y"] * n],
    "every line": lambda n: ['"x,y'] * n,
    "a cell over every line's end": lambda n: ['"x', *['x","y'] * n],
    "empty cells": lambda n: ['"x,y', *['x,""'] * n],
    "a quote now and then": lambda n: ['"x,y', *["x,y"] * 9] * (n // 10),
    "right ones of two lines": lambda n: ['"x\ny",z'] * n,
    "random": lambda n: ["".join(random.Random(k).choices('"",x', k=9)) for k in range(n)],
}


@pytest.mark.parametrize("name", _CHAINS)
def test_twice_the_lines_take_less_than_three_times_the_work(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.setattr(rows, "_MAX_ROW", 1 << 14)
    take, work = rows._Text.__next__, 0

    def counted(text: rows._Text) -> str:
        nonlocal work
        line = take(text)
        work += len(line)
        return line

    monkeypatch.setattr(rows._Text, "__next__", counted)
    of = []
    for n in (4000, 8000):
        path, work = table(tmp_path, *_CHAINS[name](n)), 0
        list(rows._table(path, Judge(str(path), "question", lambda skip: None), "strict"))
        of.append(work)
    assert of[0] >= 4000 * 3
    assert of[1] < 3 * of[0]
    assert of[1] < 4 * path.stat().st_size


# ---- parquet


def parquet_of(tmp_path: Path, columns: dict[str, Any], **how: Any) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", **how)
    return path


LONG = "a" * 900_000


@pytest.mark.parametrize(
    ("columns", "dictionary"),
    [
        ({"question": [LONG] * 100}, True),
        ({"question": [LONG] * 100}, False),
        ({"question": ["q"] * 50, "golden_answers": [[LONG] * 3] * 50}, True),
        ({"golden_answers": pa.array([[None] * 5_000_000], pa.list_(pa.string()))}, True),
        ({"question": pa.nulls(9_000_000, pa.string())}, True),
    ],
    ids=["a dictionary", "pages", "a dictionary of lists", "nothing, many times in a row", "rows of nothing"],
)
def test_a_small_parquet_that_stands_for_much_is_refused_before_it_is_read(
    tmp_path: Path, columns: dict[str, Any], dictionary: bool
) -> None:
    path = parquet_of(tmp_path, columns, use_dictionary=dictionary)
    assert path.stat().st_size < 50_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"KiB and unpacks to .* or more: over 200 times its size"):
        list(parquet_rows(path))
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_a_dictionary_of_one_large_value_among_many_small_ones_is_read_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 4_000_000)
    small = ["".join(random.Random(k).choices(string.ascii_letters, k=6)) for k in range(9000)]
    path = parquet_of(tmp_path, {"question": small + [LONG] * 900})
    sizes: list[int] = []
    monkeypatch.setattr(parquet.Unpacked, "add", lambda self, count: sizes.append(count))
    monkeypatch.setattr(parquet.Unpacked, "check", lambda self, count: None)
    number = next(number for number, row in parquet_rows(path) if number == 9100)
    assert number == 9100 and max(sizes) <= 4_000_000


@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_ordinary_parquet_is_read_whole(tmp_path: Path, dictionary: bool, version: str) -> None:
    columns = {
        "question": [f"Who is {k}?" for k in range(3000)],
        "golden_answers": [[str(k), "x"] for k in range(3000)],
        "extra": [{"split": "train", "index": k} for k in range(3000)],
        "none": pa.nulls(3000, pa.string()),
        "flag": [True] * 3000,
    }
    how = {"use_dictionary": dictionary, "data_page_version": version, "row_group_size": 700}
    path = parquet_of(tmp_path, columns, write_page_checksum=True, **how)
    assert [row for _, row in parquet_rows(path)] == pa.table(columns).to_pylist()
    empty = parquet_of(tmp_path, {"question": pa.array([], pa.string())}, **how)
    assert not list(parquet_rows(empty))
    with pytest.raises(DataError, match=r"is empty; it needs one row per question, at least one question$"):
        read(empty)
