"""The picture of a terminal shows what the command prints today."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from holdfast_research.pages.terminal import PICTURE, drawn, printed, text_of


def test_the_picture_is_what_the_command_prints() -> None:
    output = re.sub(r"\x1b\[[0-9;]*m", "", printed())
    shown = text_of(PICTURE.read_text(encoding="utf-8"))
    assert shown.splitlines() == [line for line in output.splitlines() if line]
    assert "LLD002  step 270" in shown and shown.endswith("diagnose --explain LLD002")


def test_it_is_small_and_loads_nothing() -> None:
    svg = PICTURE.read_text(encoding="utf-8")
    assert len(svg) < 60_000
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(r"href|url\(|@import|<script", svg)


def test_colours_and_marks_are_kept() -> None:
    svg = drawn("\x1b[1;31mA<B\x1b[0m & c\n\n\x1b[2mlog\x1b[0m")
    assert '<tspan font-weight="bold" fill="#ff8b81">A&lt;B</tspan> &amp; c</text>' in svg
    assert text_of(svg) == "A<B & c\nlog"
