from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from holdfast.agent.env import format_hits
from holdfast.agent.protocol import CLEAN, SEARCH_R1
from holdfast.cli.transcript import parts_of, show_line, show_observation, show_turn
from holdfast.retrieval.types import Document, Hit


def console(width: int | None = None) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    terminal = width is not None
    return Console(file=file, force_terminal=terminal, width=width, color_system=None, highlight=False), file


def test_a_turn_is_split_at_its_tags() -> None:
    text = "well <think> a < b </think>\n<search> who <is> it </search>\n\n"
    assert parts_of(text) == [("says", "well"), ("thinks", "a < b"), ("searches", "who <is> it")]
    protocol = replace(CLEAN, search_open="[q]", search_close="[/q]")
    assert parts_of("[q]x[/q]<search>", protocol) == [("searches", "x"), ("says", "<search>")]


def test_a_turn_is_labelled_and_its_white_space_is_one_space() -> None:
    output, file = console()
    show_turn(output, "<think>\n first\n\n thought </think> <search> Orsa </search>\n\n")
    assert file.getvalue() == "thinks    first thought\nsearches  Orsa\n"


def test_lines_wrap_behind_their_label() -> None:
    output, file = console(width=30)
    show_turn(output, "<think> one two three four five six seven </think>")
    #                                          30 columns end here: |
    assert file.getvalue() == "thinks    one two three four\n          five six seven\n"
    output, file = console(width=20)
    show_line(output, "says", "x" * 50 + " y")
    assert file.getvalue() == "says      " + "x" * 50 + "\n          y\n"


@pytest.mark.parametrize("protocol", [CLEAN, SEARCH_R1], ids=lambda p: p.name)
def test_passages_as_the_environment_writes_them(protocol: object) -> None:
    documents = [
        Document("1", '"Orsa"\nOrsa is a town.\nIt is old.'),
        Document("2", "Doc (1) [x]\nLong. " + "word " * 80),
    ]
    body = "".join(format_hits([Hit(d, 1.0) for d in documents], title_quotes=protocol is SEARCH_R1)).strip()
    output, file = console()
    show_observation(output, f"\n\n<information>{body}</information>\n\n")
    first, second = file.getvalue().splitlines()
    quote = '"' if protocol is SEARCH_R1 else ""
    assert first == f"finds     1 {quote}Orsa{quote} · Orsa is a town. It is old."
    assert second.startswith("          2 Doc (1) [x] · Long. word word")
    assert second.endswith("word …")
    assert len(second) < 300


def test_observations_that_are_no_passages() -> None:
    output, file = console()
    show_observation(output, f"\n\n<information>{CLEAN.nothing_found}</information>\n\n")
    show_observation(output, "\n\n<information></information>\n\n")
    show_observation(output, f"\n\n{SEARCH_R1.invalid_note}\n\n")
    first, second, third = file.getvalue().splitlines()
    assert first == second == "finds     Nothing was found."
    assert third == f"feedback  {SEARCH_R1.invalid_note}"
