"""A PDF is read as a person reads it, and none hangs the build or ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.retrieval import pdf as reader
from holdfast.retrieval.folders import folder_passages
from holdfast.retrieval.pdf import (
    Fragment,
    UnreadablePdf,
    in_reading_order,
    paragraphs,
    read_pdf,
    without_running_heads,
)

from .pdfs import Place, pdf

LEFT = """The bridge of Eskby was
built by Amina Corvi in a
single year, and it was
paid by the council from
its own budget of works.""".splitlines()
RIGHT = """Tivon has a large harbour
for ships of any length,
and its cranes were made
by the yard of Girler in
the north of the county.""".splitlines()


def line(text: str, left: float, bottom: float, height: float = 10.0) -> Fragment:
    """Letters are 5 points wide."""
    return Fragment(text, left, left + 5 * len(text), bottom, bottom + height, height)


def rows(*columns: Sequence[str], width: float = 150) -> list[Fragment]:
    """Columns as a program draws them that goes down the page row by row."""
    return [
        line(cells[column], 50 + column * width, 700 - 12 * row)
        for row, cells in enumerate(zip(*columns, strict=True))
        for column in range(len(columns))
    ]


def texts(parts: Sequence[Fragment]) -> list[str]:
    return [part.text for part in parts]


def test_columns_that_were_drawn_row_by_row_are_read_one_after_the_other() -> None:
    assert texts(in_reading_order(rows(LEFT, RIGHT))) == [*LEFT, *RIGHT]
    third = [text.upper() for text in LEFT]
    assert texts(in_reading_order(rows(LEFT, RIGHT, third))) == [*LEFT, *RIGHT, *third]


def test_what_goes_across_the_columns_ends_them() -> None:
    across = line("A heading over both of the columns, from the left to the right", 50, 640)
    drawn = [
        *rows(LEFT, RIGHT),
        across,
        *(part._replace(bottom=part.bottom - 100, top=part.top - 100) for part in rows(RIGHT, LEFT)),
    ]
    assert texts(in_reading_order(drawn)) == [*LEFT, *RIGHT, across.text, *RIGHT, *LEFT]


def test_a_table_is_read_by_rows() -> None:
    towns, budgets = ["Eskby", "Tivon", "Mora", "Orsa", "Girler"], ["3.9", "12", "4", "77.1", "2"]
    drawn = rows(towns, budgets)
    assert in_reading_order(drawn) == drawn


def test_columns_that_were_drawn_one_after_the_other_stay_so() -> None:
    drawn = sorted(rows(LEFT, RIGHT), key=lambda part: part.left)
    assert in_reading_order(drawn) == drawn


def test_heads_and_page_numbers_that_pages_repeat_are_left_out() -> None:
    def pages(heads: Sequence[str]) -> list[list[Fragment]]:
        bodies = [[line(f"{letter}{row}", 50, 700 - 12 * row) for row in range(6)] for letter in "abcdefgh"]
        return [
            [line(head, 50, 800), *body, line(f"Page {at}", 50, 30)]
            for at, (head, body) in enumerate(zip(heads, bodies, strict=False))
        ]

    def kept(heads: Sequence[str]) -> list[str]:
        return [part.text for page in without_running_heads(pages(heads)) for part in page if len(part.text) > 2]

    assert kept(["Works"] * 4) == []
    assert kept(["Left", "Right"] * 4) == []  # of an open book
    assert kept(["One", "Two", "Three", "Four"]) == ["One", "Two", "Three", "Four"]
    assert kept(["Works"] * 2) == ["Works", "Page 0", "Works", "Page 1"]  # twice may be chance


def test_rows_of_numbers_at_the_edge_stay() -> None:
    pages = [
        [
            *(line(f"{year + row} {row * year}.5", 50, 700 - 12 * row) for row in range(6)),
            line(f"{at} of 5", 50, 30),
        ]
        for at, year in enumerate((1950, 1973, 1960, 2001, 1988), start=1)
    ]
    assert [len(page) for page in without_running_heads(pages)] == [6] * 5


def test_pages_of_nothing_but_what_they_repeat_stay() -> None:
    pages = [[line("Thank you", 50, 700)]] * 5
    assert without_running_heads(pages) == pages


def test_a_head_row_that_the_text_repeats_further_down_stays() -> None:
    pages = [
        [line(f"{'abcde'[at]}{row}" if row != 4 else "Town Head Budget", 50, 700 - 12 * row) for row in range(9)]
        for at in range(5)
    ]
    assert [len(page) for page in without_running_heads(pages)] == [9] * 5


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (["a com-", "mission was"], "a commission was"),
        (["a com\u00ad", "mission was"], "a commission was"),
        (["a well-", "known lake"], "a well-known lake"),  # the document has it elsewhere
        (["in Baden-", "Baden"], "in Baden-Baden"),
        (["from 2024-", "2026"], "from 2024-2026"),
        (["cold -", "and deep"], "cold - and deep"),
        (["湖水很", "冷。"], "湖水很冷。"),
        (["un\u00adbroken"], "unbroken"),
    ],
)
def test_a_word_over_two_lines_is_whole(lines: Sequence[str], text: str) -> None:
    parts = [line(words, 50, 700 - 12 * row) for row, words in enumerate(lines)]
    assert paragraphs(parts, {"well-known"}) == [text]


def test_a_paragraph_begins_after_a_gap_and_after_a_heading_but_not_in_the_next_column() -> None:
    parts = [line("One", 50, 700, 14), *(line(text, 50, 680 - 12 * row) for row, text in enumerate("abcd"))]
    parts += [line("Two", 50, 620), line("e", 50, 608), line("f", 300, 700)]
    assert paragraphs(parts, set()) == ["One", "a b c d", "Two e f"]


def columns(top: float) -> list[Place]:
    """Of 9 points, with a gap of one letter between them."""
    return [
        (left, top - 12 * row, 9, words[row]) for row in range(len(LEFT)) for left, words in ((50, LEFT), (170, RIGHT))
    ]


def test_a_file_of_two_columns() -> None:
    pytest.importorskip("pypdfium2")
    pages = [
        [(50, 810, 8, "County of Eskby"), *columns(700), (170, 600, 9, end), (50, 30, 8, f"Page {number}")]
        for number, end in enumerate(("One.", "Two.", "Three."), start=1)
    ]
    pages[0].insert(1, (50, 760, 20, "Works in Eskby"))
    found = read_pdf(pdf(pages, title="scan0001.tif"))
    text = " ".join([*LEFT, *RIGHT])
    assert found.title == "Works in Eskby"
    assert found.pages == [["Works in Eskby", text, "One."], [text, "Two."], [text, "Three."]]


@pytest.mark.parametrize(
    ("named", "size", "title"),
    [
        ("Works in Eskby", 9, "Works in Eskby"),
        ("PowerPoint Presentation", 9, None),
        ("Annual report", 20, "works in Eskby"),
        ("", 9, None),
    ],
)
def test_the_title_is_the_one_that_a_person_sees(named: str, size: float, title: str | None) -> None:
    pytest.importorskip("pypdfium2")
    assert read_pdf(pdf([[(50, 760, size, "works in Eskby"), *columns(700)]], title=named)).title == title


def test_a_ligature_is_its_letters_and_a_word_over_two_pages_is_whole() -> None:
    pytest.importorskip("pypdfium2")
    pages = [[(50, 700, 9, "It was finished by the com-")], [(50, 700, 9, "mission in May.")]]
    assert read_pdf(pdf(pages)).pages == [["It was finished by the commission"], ["in May."]]
    assert reader._plain("ﬁnishes \ud83c\udf0a 湖　水\x00") == "finishes 🌊 湖 水"


def test_what_cannot_be_read_is_refused_in_our_words() -> None:
    pytest.importorskip("pypdfium2")
    for data, reason in (
        (b"%PDF-1.4 nothing", "is damaged, or no PDF"),
        (pdf([[]]), "has no text: a PDF of scanned pages needs OCR"),
    ):
        with pytest.raises(UnreadablePdf, match=f"^{reason}"):
            read_pdf(data)


def test_a_file_that_needs_too_long_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pypdfium2")
    monkeypatch.setattr(reader, "CPU_SECONDS", 1)
    monkeypatch.setattr(reader, "MORE_BYTES", 2**28)
    hostile = b"BT /F 9 Tf 50 700 Td " + b"(word word word word) Tj " * 300_000
    (tmp_path / "a.md").write_text("Text.")
    (tmp_path / "b.pdf").write_bytes(pdf([[]] * 30, content=hostile))
    skipped: list[str] = []
    documents = list(folder_passages(tmp_path, on_skip=lambda skip: skipped.append(skip.reason)))
    assert [document.id for document in documents] == ["a.md#1"]
    assert skipped[0].startswith("needs more than ")
