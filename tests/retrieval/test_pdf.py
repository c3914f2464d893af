"""A PDF is read as a person reads it, and none hangs the build or ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.base.jsonl import Skips
from holdfast.retrieval import pdf as reader
from holdfast.retrieval.folders import folder_passages
from holdfast.retrieval.pdf import (
    Fragment,
    Paragraph,
    Pdf,
    UnreadablePdf,
    in_reading_order,
    joined_across,
    merged,
    paragraphs,
    read_pdf,
    with_text_below,
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


BODY = (10.0, False)


def line(text: str, left: float, bottom: float, height: float = 10.0, *, bold: bool = False) -> Fragment:
    """Letters are 5 points wide."""
    return Fragment(text, left, left + 5 * len(text), bottom, bottom + height, height, bold)


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
    assert kept(["Works"] * 2) == []  # on both pages of a letter
    assert kept(["Works", "Works", "Three", "Four"]) == ["Works", "Works", "Three", "Four"]  # twice may be chance


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
    found = paragraphs(merged(parts), {"well-known"}, BODY)
    assert with_text_below([found]) == [[Paragraph(text)]]


def test_a_paragraph_begins_after_a_gap_but_not_in_the_next_column() -> None:
    parts = [*(line(text, 50, 680 - 12 * row) for row, text in enumerate("abcd"))]
    parts += [line("Two", 50, 620), line("e", 50, 608), line("f", 300, 700)]
    assert paragraphs(merged(parts), set(), BODY) == [Paragraph("a b c d"), Paragraph("Two e f")]


def test_a_heading_is_larger_or_bold_and_stands_alone() -> None:
    large, bold = line("Works", 50, 700, 12), line("Bridges", 50, 664, bold=True)
    parts = [large, line("One two", 50, 680), bold, line("three", 50, 652), line("stressed", 50, 640, bold=True)]
    parts.append(line("four", 50, 628))
    found = [("Works", True), ("One two", False), ("Bridges", True), ("three stressed four", False)]
    assert paragraphs(merged(parts), set(), BODY) == found
    everything_is_bold = [part for part, is_heading in paragraphs(merged(parts), set(), (10.0, True)) if is_heading]
    assert everything_is_bold == ["Works"]


def test_a_heading_has_text_below() -> None:
    """Otherwise `cut` would leave out its words."""
    pages = [
        [("One", True), ("A.", False), ("Two", True)],
        [("Three", True), ("Four", True), ("B.", False)],
        [("E", True)],
    ]
    parts = [[Paragraph(*part) for part in page] for page in pages]
    assert with_text_below(parts) == [
        [("One", True), ("A.", False), ("Two", False)],
        [("Three Four", True), ("B.", False)],
        [("E", False)],
    ]


def test_each_row_of_a_table_is_a_paragraph_and_its_head_is_above_all() -> None:
    columns = ["Bridge", "Glebe", "Mill"], ["Opened", "2005", "1918"], ["Engineer", "Oda Quist", "Zofia Zamora"]
    head, *others = [rows(*columns)[at : at + 3] for at in (0, 3, 6)]
    wrapped = line("Junior", 350, 664)
    table = [*(part._replace(is_bold=True) for part in head), *others[0], *others[1], wrapped]
    assert paragraphs(merged(table), set(), BODY) == [
        ("Bridge | Opened | Engineer", True),
        ("| Glebe | 2005 | Oda Quist", False),
        ("| Mill | 1918 | Zofia Zamora Junior", False),
    ]
    justified = [line("wide", 50, 700), line("gaps in", 120, 700), line("a line of", 50, 688), line("prose", 151, 688)]
    assert paragraphs(merged(justified), set(), BODY) == [("wide gaps in a line of prose", False)]


@pytest.mark.parametrize(
    ("first", "second", "joined", "rest"),
    [
        ("by the com-", "mission in May. It", "by the commission in May.", ["It"]),
        ("paid by the", "council.", "paid by the council.", []),
        ("湖水很", "冷。山", "湖水很冷。", ["山"]),
        ("It ended.", "after", "It ended.", ["after"]),
        ("seen by", "Eskby", "seen by", ["Eskby"]),  # perhaps another paragraph
    ],
)
def test_a_sentence_over_two_pages_is_whole(first: str, second: str, joined: str, rest: list[str]) -> None:
    pages = joined_across([[Paragraph(first)], [Paragraph(second)]], set())
    assert pages == [[(joined, False)], [(text, False) for text in rest]]
    heading = [[Paragraph(first)], [Paragraph(second, True)]]
    assert joined_across(heading, set()) == heading


def columns(top: float) -> list[Place]:
    """Of 9 points, with a gap of one letter between them."""
    return [
        (left, top - 12 * row, 9, words[row]) for row in range(len(LEFT)) for left, words in ((50, LEFT), (170, RIGHT))
    ]


def words(found: Pdf) -> list[list[str]]:
    return [[part.text for part in page] for page in found.pages]


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
    assert words(found) == [[text, "One."], [text, "Two."], [text, "Three."]]


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
    assert words(read_pdf(pdf(pages))) == [["It was finished by the commission in May."], []]
    assert reader._plain("ﬁnishes \ud83c\udf0a 湖　水\x00") == "finishes 🌊 湖 水"


def test_headings_of_a_file_are_in_the_titles_of_its_passages(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    pages: list[list[Place]] = [
        [(50, 760, 20, "Works"), (50, 700, 12, "Lake"), (50, 680, 9, "It is deep."), (50, 668, 9, "It is cold.")],
        [(50, 700, 9, "Ships cross it."), (50, 650, 12, "River"), (50, 630, 9, "It floods."), (50, 618, 9, "Often.")],
    ]
    (tmp_path / "a.pdf").write_bytes(pdf(pages))
    found = {document.title: document.text for document in folder_passages(tmp_path, on_skip=print)}
    assert found == {
        "Works > Lake > page 1": "It is deep. It is cold.",
        "Works > Lake > page 2": "Ships cross it.",
        "Works > River > page 2": "It floods. Often.",
    }


def test_what_cannot_be_read_is_refused_in_our_words() -> None:
    pytest.importorskip("pypdfium2")
    for data, reason in (
        (b"%PDF-1.4 nothing", "is damaged, or not a PDF"),
        (pdf([[]]), "has no text: a PDF of scanned pages needs OCR"),
    ):
        with pytest.raises(UnreadablePdf, match=f"^{reason}"):
            read_pdf(data)


def test_a_page_that_shows_something_without_text_is_named_and_an_empty_one_is_not(tmp_path: Path) -> None:
    pytest.importorskip("pypdfium2")
    scanned, text = b"50 50 200 200 re f", [(50, 700, 12, "The lake is deep.")]
    assert read_pdf(pdf([text, scanned, [], text, scanned])).pictures == [2, 5]
    (tmp_path / "a.pdf").write_bytes(pdf([text, scanned, []]))
    skips = Skips()
    assert len(list(folder_passages(tmp_path, on_skip=skips))) == 1
    (sentence,) = skips.sentences()
    assert sentence.startswith(f"skipped 1 page ({tmp_path}/a.pdf, page 2): shows something, but has no text: ")
    assert "needs OCR" in sentence


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
