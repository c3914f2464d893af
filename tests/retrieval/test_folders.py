"""Files that somebody else wrote: each is read in linear time, or left out with a reason; none ends the build."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import DataError
from holdfast.retrieval import folders
from holdfast.retrieval.bm25_building import words_of
from holdfast.retrieval.folders import Block, cut, folder_passages, marked, page, restructured
from holdfast.retrieval.types import Document

HOSTILE: dict[str, Callable[[int], str]] = {
    "blanks in a heading": lambda n: "# " + " " * n + "x" + " " * n + "#" * n + " y",
    "hashes in a heading": lambda n: "# " + "# " * n + "x",
    "blanks in a title": lambda n: "---\ntitle: " + " " * n + "x" + " " * n + "y\n---\n",
    "quotes in a title": lambda n: "---\ntitle: '" + "'" * n + "x\n---\ny",
    "front matter without an end": lambda n: "---\n" + "title:\n" * n,
    "an underline that is none": lambda n: "x\n" + "=" * n + " " * n + "y",
    "a long heading over many passages": lambda n: "# " + "h" * n + "\n" + "word " * n,
    "headings": lambda n: "###### x\n" * n,
    "kinds of underlining": lambda n: "".join(f"x\n{sign}\nw\n\n" for sign in islice(cycle("=-~^+*#"), n)),
    "one word": lambda n: "w" * 10 * n,
    "one word of Chinese": lambda n: "湖" * n,
    "quotes that do not end": lambda n: '<a b="' * n,
    "single quotes that do not end": lambda n: "<a b='\"" * n,
    "equal signs": lambda n: "<a " + "=" * n,
    "blanks after equal signs": lambda n: "<a " + ("=" + " " * 100) * (n // 10),
    "attributes": lambda n: "<a " + "b='c' d=e " * n,
    "tags that do not end": lambda n: "<a " * n,
    "end tags that do not end": lambda n: "</a" * n,
    "comments that do not end": lambda n: "<!-- -" * n,
    "declarations that do not end": lambda n: "<!x" * n + "<![CDATA[" * n,
    "scripts that do not end": lambda n: "<script></script" * n,
    "elements that are not shown": lambda n: "<svg>" * n + "</nav>" * n,
    "nested elements": lambda n: "<div>" * n,
    "character references": lambda n: "&#1" * n + "&aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * n,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_eight_times_the_text_takes_less_than_three_times_three_times_three_times_the_work(name: str) -> None:
    """CPU time of this process, and the best of three: quadratic work is 64 times as much."""

    def seconds(size: int) -> float:
        text, times = HOSTILE[name](size), []
        for _ in range(3):
            began = time.process_time()
            for read in (marked, restructured, page):
                for title, passage in cut(read(text), "name"):
                    words_of(f"{title}\n{passage}")
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(16_000) < 27 * max(seconds(2000), 5e-4)


@pytest.mark.parametrize("name", HOSTILE)
def test_passages_of_hostile_text_are_hardly_longer_than_the_text(name: str) -> None:
    text = HOSTILE[name](5000)
    for read in (marked, restructured, page):
        passages = list(cut(read(text), "name"))
        assert sum(len(title) + len(passage) for title, passage in passages) < 4 * len(text)
        assert all(len(title) < 1500 and len(passage) < 101 * 1001 for title, passage in passages)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("# Orsa #\n", [Block("Orsa", 1)]),
        ("###### C# ##\n#no\n####### none", [Block("C#", 6), Block("#no\n####### none")]),
        ("## \nx", [Block("", 2), Block("x")]),
        ("Orsa\n==  \nMora\n-\n", [Block("Orsa", 1), Block("Mora\n-")]),
        ('---\na: b\ntitle: "It\'s"\n---\nx', [Block("It's", -1), Block("x")]),
        ("---\ntitle: it's\n---\nx", [Block("it's", -1), Block("x")]),
        ("---\ntitle:\n---\nx", [Block("x")]),
    ],
)
def test_markdown(text: str, blocks: list[Block]) -> None:
    assert list(marked(text)) == blocks


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("<a href=\"x>y\" b='>' c = d>A</a> <b\n>c</b >", ["A c"]),
        ("<p title=it's>One<p title='Don't'>Two", ["One", "Two"]),  # a browser, too, ends a value at its quote
        ("a < b <3 &lt;b> &amp;amp; <>", ["a < b <3 <b> &amp; <>"]),
        ("One<!-- <p> --> two<!--> three<!---> four<!-- five", ["One two three four"]),
        ("<!doctype html><?xml a?>One</ x>", ["One"]),
        ("<script>if (a</b) '<p>'</SCRIPT >One<style/>Two<script src=x />Three", ["OneTwoThree"]),
        ("<script>One", []),
        ("One<nav>a<svg><nav>b</nav></svg></nav>Two<svg><path/></svg>Three</nav>Four", ["One", "TwoThree", "Four"]),
        ("One<BR>Two<Button>x</bUTTON>Three", ["One", "TwoThree"]),
        ("One <a href", ["One"]),
    ],
)
def test_html(text: str, blocks: list[str]) -> None:
    assert [block.text for block in page(text)] == blocks


def read(folder: Path, **settings: Any) -> tuple[list[Document], dict[str, str]]:
    """Its passages, and the reason for each file that was left out."""
    skipped: dict[str, str] = {}
    documents = list(
        folder_passages(folder, on_skip=lambda skip: skipped.update({Path(skip.path).name: skip.reason}), **settings)
    )
    return documents, skipped


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(9):
        (folder / f"{i}.md").write_text(f"A town by lake {i}.")
    return folder


def test_a_copy_is_left_out_and_named(docs: Path) -> None:
    """Its passages would fill an observation twice."""
    (docs / "deep" / "er").mkdir(parents=True)
    (docs / "deep" / "er" / "Größe (1).md").write_bytes((docs / "3.md").read_bytes())
    documents, skipped = read(docs)
    assert len(documents) == 9 and skipped == {"Größe (1).md": "is a copy of '3.md'"}


def test_a_file_without_a_paragraph_is_no_copy_of_another(docs: Path) -> None:
    for name in ("a", "b"):
        (docs / f"{name}.md").write_text("")
        (docs / f"{name}.html").write_text("<nav>Menu</nav>")
    documents, skipped = read(docs)
    names = ("a.html", "a.md", "b.html", "b.md")
    assert len(documents) == 9 and skipped == dict.fromkeys(names, "has no paragraph")


@pytest.mark.parametrize(
    "charset", ["undefined", "punycode", "utf-7", "unicode_escape", "idna", "rot13", "zip", "x-none", "-"]
)
def test_a_page_in_what_no_page_is_written_in_is_left_out(docs: Path, charset: str) -> None:
    (docs / "a.html").write_text(f'<meta charset="{charset}"><p>Mora')
    documents, skipped = read(docs, replace=True)
    assert len(documents) == 9 and list(skipped) == ["a.html"]
    assert skipped["a.html"].startswith(f"names the encoding {charset}, ")


@pytest.mark.parametrize(
    ("charset", "encoding"),
    [
        *((name, name) for name in ("iso-8859-1", "windows-1251", "Shift_JIS", "gb2312", "big5", "euc-kr", "koi8-r")),
        ("utf-16", "utf-8"),  # who can read this name reads bytes
        ("us-ascii", "ascii"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_names(docs: Path, charset: str, encoding: str) -> None:
    texts = {"iso-8859-1": "Zürich", "windows-1251": "Озеро", "koi8-r": "Озеро", "euc-kr": "호수", "ascii": "Lake"}
    text = texts.get(encoding, "湖水")
    (docs / "a.html").write_bytes(f'<meta charset="{charset}"><p>{text}'.encode(encoding))
    documents, skipped = read(docs)
    assert documents[-1].text == text and not skipped


def test_whatever_a_reader_raises_leaves_out_its_file_alone(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes, errors: str) -> Iterator[Block]:
        yield Block("One.")
        raise RecursionError("too deep\x1b[2J")

    (docs / "a.x").write_text("x")
    (docs / "b.html").write_text(f"<p>&#{'1' * 5000};")  # a number that Python does not read
    monkeypatch.setitem(folders.READERS, ".x", broken)
    documents, skipped = read(docs)
    assert len(documents) == 9
    assert skipped["a.x"] == "cannot be read (RecursionError: too deep?[2J)"
    assert skipped["b.html"].startswith("cannot be read (ValueError: ")


def test_a_file_that_is_too_large_is_left_out_unread(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (docs / "a.md").write_text("word " * 1000)
    monkeypatch.setattr(folders, "MAX_BYTES", 4096)
    assert read(docs)[1] == {"a.md": "has 4.9 KiB; a file may have 4.0 KiB: split it"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.html"])
def test_the_mark_of_an_encoding_is_read_and_leaves_no_trace(docs: Path, encoding: str, name: str) -> None:
    (docs / name).write_bytes("Das Café in Zürich 湖.\r\n".encode(encoding))
    documents, skipped = read(docs)
    assert documents[-1].contents == "a\nDas Café in Zürich 湖." and not skipped


@pytest.mark.parametrize(
    ("data", "strict", "replaced"),
    [
        (
            "湖水很冷，山很高。".encode("gbk"),
            "is not UTF-8 at byte 1; convert it",
            "is not UTF-8: of its 12 characters 7 would be replaced",
        ),
        ("Das Café in Zürich ist sehr alt.".encode("cp1252"), "is not UTF-8 at byte 8; convert it", None),
        (
            "A town.".encode("utf-16-le"),
            "is not text, or is UTF-16 without a byte",
            "is not text, or is UTF-16 without a byte",
        ),
        ("A town by the lake.".encode("utf-16") + b"x", "is not UTF-16-LE at byte 41", None),
        (b"\x89PNG\0\0\0\r", "is not text", "is not text"),
    ],
)
def test_what_is_not_utf8_is_never_read_as_garbage(docs: Path, data: bytes, strict: str, replaced: str | None) -> None:
    (docs / "a.txt").write_bytes(data)
    assert read(docs)[1]["a.txt"].startswith(strict)
    documents, skipped = read(docs, replace=True)
    if replaced is None:
        assert not skipped and "\ufffd" in documents[-1].text
    else:
        assert skipped["a.txt"].startswith(replaced) and len(documents) == 9


def test_a_link_out_of_the_folder_is_left_out_and_named(docs: Path) -> None:
    private = docs.parent / "private"
    private.mkdir()
    (private / "key.md").write_text("A secret.")
    (docs / "file.md").symlink_to(private / "key.md")
    (docs / "folder").symlink_to(private)
    (docs / "gone.md").symlink_to(docs.parent / "gone.md")
    (docs / "same.md").symlink_to(docs / "1.md")  # in it, and a copy
    (docs / "loop.md").symlink_to(docs / "loop.md")
    documents, skipped = read(docs)
    assert [document.id for document in documents] == [f"{i}.md#1" for i in range(9)]
    assert skipped.pop("same.md") == "is a copy of '1.md'"
    assert skipped == dict.fromkeys(("file.md", "folder", "gone.md"), "is a link out of the folder")
    for path in docs.glob("?.md"):
        path.unlink()
    with pytest.raises(DataError, match="links out of it are not followed"):
        read(docs)


def test_a_folder_that_is_a_link_is_read(docs: Path) -> None:
    (docs.parent / "link").symlink_to(docs)
    assert len(read(docs.parent / "link")[0]) == 9


@pytest.mark.skipif(sys.platform == "darwin", reason="file names are UTF-8 there")
def test_a_name_that_is_not_utf8_leaves_out_its_file_alone(docs: Path) -> None:
    (docs / os.fsdecode(b"caf\xe9.md")).write_text("A town.")
    documents, skipped = read(docs)
    assert len(documents) == 9 and skipped == {"caf?.md": "has a name that is not UTF-8; rename it"}
