from __future__ import annotations

import io
import itertools
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.agent.protocol import CLEAN, SEARCH_R1, format_hits
from holdfast.cli.transcript import TagReader, Writer, show_turn
from holdfast.retrieval.types import Document, Hit

TEXT = "well <think> a < b </think>\n<search> who <is> it </search>\n\n"
PARTS = [("says", "well "), ("thinks", " a < b "), ("says", "\n"), ("searches", " who <is> it "), ("says", "\n\n")]


def joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one kind as one piece."""
    return [(kind, "".join(text for _, text in group)) for kind, group in itertools.groupby(pieces, lambda p: p[0])]


def writer(width: int | None = None) -> tuple[Writer, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=width is not None, width=width, color_system=None, highlight=False)
    return Writer(console), file


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_a_stream_reads_as_the_whole(size: int) -> None:
    reader = TagReader()
    pieces = [p for i in range(0, len(TEXT), size) for p in reader.feed(TEXT[i : i + size])]
    assert joined([*pieces, *reader.end()]) == PARTS


def test_what_may_become_a_tag_is_held_back_and_no_more() -> None:
    reader = TagReader()
    assert list(reader.feed("find <sear")) == [("says", "find ")]
    assert list(reader.feed("ch")) == []
    assert list(reader.feed("ing")) == [("says", "<searching")]
    assert list(reader.end()) == []


def test_a_tag_that_never_came_is_shown_at_the_end() -> None:
    reader = TagReader()
    assert [*reader.feed("a </answer"), *reader.end()] == [("says", "a "), ("says", "</answer")]


def test_other_tags() -> None:
    protocol = replace(CLEAN, search_open="[q]", search_close="[/q]")
    assert list(TagReader(protocol).feed("[q]x[/q]<search>")) == [("searches", "x"), ("says", "<search>")]


def test_a_turn_is_labelled_and_its_white_space_is_one_space() -> None:
    output, file = writer()
    show_turn(output, "<think>\n first\n\n thought </think> <search> Orsa </search>\n\n")
    assert file.getvalue() == "thinks    first thought\nsearches  Orsa\n"


def test_lines_wrap_behind_their_label() -> None:
    output, file = writer(width=30)
    show_turn(output, "<think> one two three four five six seven </think>")
    #                                          30 columns end here: |
    assert file.getvalue() == "thinks    one two three four\n          five six seven\n"


def test_streamed_words_are_whole_and_wrapped_alike() -> None:
    text = "<think> one two three four five six seven </think><answer> eight </answer>"
    whole, whole_file = writer(width=30)
    show_turn(whole, text)
    streamed, streamed_file = writer(width=30)
    reader = TagReader()
    for character in text:
        for kind, chunk in reader.feed(character):
            streamed.write(kind, chunk)
    streamed.close()
    assert streamed_file.getvalue() == whole_file.getvalue()


def test_a_word_longer_than_the_line_does_not_hang() -> None:
    output, file = writer(width=20)
    output.line("says", "x" * 50 + " y")
    assert file.getvalue() == "says      " + "x" * 50 + "\n          y\n"


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1], ids=lambda p: p.name)
def test_passages_as_the_environment_writes_them(protocol: object) -> None:
    documents = [
        Document("1", '"Orsa"\nOrsa is a town.\nIt is old.'),
        Document("2", "Doc (1) [x]\nLong. " + "word " * 80),
    ]
    body = "".join(format_hits([Hit(d, 1.0) for d in documents], title_quotes=protocol is SEARCH_R1)).strip()
    output, file = writer()
    output.passages(f"\n\n<information>{body}</information>\n\n")
    first, second = file.getvalue().splitlines()
    quote = '"' if protocol is SEARCH_R1 else ""
    assert first == f"finds     1 {quote}Orsa{quote} · Orsa is a town. It is old."
    assert second.startswith("          2 Doc (1) [x] · Long. word word")
    assert second.endswith("word …")
    assert len(second) < 300


def test_observations_that_are_no_passages() -> None:
    output, file = writer()
    output.passages(f"\n\n<information>{CLEAN.nothing_found}</information>\n\n")
    output.passages("\n\n<information></information>\n\n")
    output.passages(f"\n\n{SEARCH_R1.invalid_note}\n\n")
    first, second, third = file.getvalue().splitlines()
    assert first == second == "finds     Nothing was found."
    assert third == f"feedback  {SEARCH_R1.invalid_note}"
