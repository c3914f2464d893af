"""A folder of documents as passages: Markdown, reStructuredText, plain text, HTML and PDF.

A reader makes blocks of a file, in order: headings with their level, and paragraphs. `cut` makes passages of blocks.
Their title is the path of headings above them. The work is linear in the size of a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.jsonl import Judge, Skipped
from holdfast.base.scoring import UNSPACED
from holdfast.retrieval.types import Document

WORDS = 100
"""The most words of a passage cut from a file, as in Search-R1's corpus: three fit into 500 tokens. Two characters of a
text without blanks between words count as one."""


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, or a heading."""

    text: str
    level: int = 0
    """Of a heading, from 1; 0 for a paragraph. The level of a document's own name is `_NAME`."""


_NAME = -1
Blocks = Iterator[Block]


class _Unreadable(Exception):
    """Why a file is not read."""


def folder_passages(folder: Path, *, on_skip: Callable[[Skipped], None], replace: bool = False) -> Iterator[Document]:
    """Passages of at most `WORDS` words. The id is `path#n`. The title is the path of headings, from one of level 1 or
    the file's name down.

    Names that begin with a dot are left out. A file of another type, and one without a paragraph, is reported as
    skipped. So is one that is not UTF-8, which `replace` reads with U+FFFD. Raises `DataError` for a folder without
    files of these types, or when more than half of them cannot be read.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not _is_hidden(path.relative_to(folder)))
    if not any(path.suffix.lower() in READERS for path in files):
        raise DataError(
            f"{folder} contains no {', '.join(READERS)} file; name a folder that does, or a file of passages, such as "
            "JSON lines"
        )
    judge = Judge(str(folder), "file", on_skip, "files of text")
    for path in files:
        name = path.relative_to(folder).as_posix()
        skipped = partial(Skipped, path=str(path), line=None, field="file")
        reader = READERS.get(path.suffix.lower())
        if reader is None:
            on_skip(skipped(reason=f"{path.suffix.lower() or 'a name without an ending'} is not read"))
            continue
        try:
            blocks = list(reader(path.read_bytes(), "replace" if replace else "strict"))
        except UnicodeDecodeError as error:
            judge.report(skipped(reason=f"is not UTF-8 at byte {error.start + 1}"))
            continue
        except (OSError, _Unreadable) as error:
            why = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
            judge.report(skipped(reason=why))
            continue
        part = 0
        for part, (title, passage) in enumerate(cut(iter(blocks), path.stem), start=1):
            yield Document(f"{name}#{part}", f"{title}\n{passage}")
        judge.good += part > 0
        if not part:
            on_skip(skipped(reason="has no paragraph"))
    judge.verdict()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


# ---- passages of blocks


def cut(blocks: Blocks, name: str) -> Iterator[tuple[str, str]]:
    """(title, passage) pairs: whole paragraphs as far as they fit, long paragraphs in pieces. A paragraph that only
    repeats the heading above it is no passage.

    >>> list(cut(marked("# Orsa\\n\\nA town.\\n\\nBy the lake.\\n## Port\\nBoats."), "towns"))
    [('Orsa', 'A town. By the lake.'), ('Orsa > Port', 'Boats.')]
    """
    path: list[tuple[int, str]] = [(0, name)]
    words: list[str] = []
    size = 0

    def passage() -> tuple[str, str]:
        return " > ".join(text for _, text in path), "".join(words).rstrip()

    for block in blocks:
        text = " ".join(block.text.split())
        if block.level or (not words and _letters(text) == _letters(path[-1][1])):
            if words:
                yield passage()
            words, size = [], 0
            if not block.level:  # of `orsa-lake` and `Orsa Lake` the one that was written to be read
                path[-1] = (path[-1][0], text)
            elif text:
                level = 0 if block.level in (_NAME, 1) else block.level
                path = [*((at, above) for at, above in path if at < level), (level, text)]
            continue
        pieces, sizes = _pieces(text)
        if words and size + sum(sizes) > 2 * WORDS:
            yield passage()
            words, size = [], 0
        for piece, piece_size in zip(pieces, sizes, strict=True):
            if size + piece_size > 2 * WORDS and words:
                yield passage()
                words, size = [], 0
            words.append(piece)
            size += piece_size
        words[-1] += "" if words[-1].endswith(" ") else " "
    if words:
        yield passage()


_PIECE = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*")


def _pieces(text: str) -> tuple[list[str], list[int]]:
    """A paragraph in words with what follows them, and their sizes in half words."""
    if not re.search(f"[{UNSPACED}]", text):
        words = [f"{word} " for word in text.split(" ")]
        return words, [2] * len(words)
    pieces = _PIECE.findall(text)
    return pieces, [1 if re.match(f"[{UNSPACED}]", piece) else 2 for piece in pieces]


def _letters(title: str) -> str:
    return re.sub(r"[\W_]+", "", title.lower())


# ---- readers: bytes of a file to blocks

_FRONT = re.compile(r"\A---\n(.*?\n)---\n", re.S)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(['\"]?)(.+?)\1[ \t]*$", re.M)
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_RULE = re.compile(r"^([!-/:-@\[-`{-~])\1{2,}\s*$")
"""A line of one repeated sign, which underlines a heading of reStructuredText."""


def marked(text: str) -> Blocks:
    """Blocks of Markdown, and of plain text: headings with `#`, or underlined with `=` and `-`. `# a comment` in a
    fenced block of code is none."""
    text = text.replace("\r\n", "\n")
    if front := _FRONT.match(text):
        text = text[front.end() :]
        if title := _FRONT_TITLE.search(front[1]):
            yield Block(title[2], _NAME)
    paragraph: list[str] = []
    fence = ""
    for line in [*text.split("\n"), ""]:
        bare = line.lstrip()
        if fence:
            fence = "" if bare.startswith(fence) else fence
            paragraph.append(line)
            continue
        if bare.startswith(("```", "~~~")):
            fence = bare[:3]
        heading = None if fence else _HEADING.match(line)
        underlined = len(paragraph) == 1 and re.fullmatch(r"(=+|-{2,})\s*", line)
        if underlined:
            yield Block(paragraph[0].strip(), 1 if line[0] == "=" else 2)
            paragraph = []
            continue
        if paragraph and (heading or not bare):
            yield Block("\n".join(paragraph))
            paragraph = []
        if heading:
            yield Block(heading[2].strip(), len(heading[1]))
        elif bare:
            paragraph.append(line)
    if paragraph:  # of a fence that is not closed
        yield Block("\n".join(paragraph))


def restructured(text: str) -> Blocks:
    """Blocks of reStructuredText. The levels are the kinds of underlining, in the order in which they occur."""
    styles: list[str] = []
    paragraph: list[str] = []
    above = ""
    for line in [*text.replace("\r\n", "\n").split("\n"), ""]:
        rule = _RULE.match(line)
        if rule and len(paragraph) == 1 and len(line.rstrip()) >= len(paragraph[0].strip()) and paragraph[0].strip():
            style = above + rule[1]
            if style not in styles:
                styles.append(style)
            yield Block(paragraph[0].strip(), styles.index(style) + 1)
            paragraph, above = [], ""
        elif rule and not paragraph:
            above = rule[1]  # the line over a heading, or one between two paragraphs
        elif line.strip():
            paragraph.append(line)
        else:
            if paragraph:
                yield Block("\n".join(paragraph))
            paragraph, above = [], ""


_CHARSET = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.I)
_INLINE = frozenset([
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins", "kbd"),
    *("mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"),
])  # fmt: skip
_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "nav", "footer", "button", "select"})
_HEADINGS = {f"h{level}": level for level in range(1, 7)}


class _Page(HTMLParser):
    """Blocks of a page. Every tag that is not inline ends a paragraph."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._text: list[str] = []
        self._level = 0
        self._unseen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in _UNSEEN:
            self._unseen.append(tag)
        elif tag not in _INLINE:
            self.end_block()
            self._level = _NAME if tag == "title" else _HEADINGS.get(tag, 0)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._unseen:
            while self._unseen.pop() != tag:
                pass
        elif tag not in _INLINE:
            self.end_block()

    def handle_data(self, data: str) -> None:
        if not self._unseen:
            self._text.append(data)

    def end_block(self) -> None:
        """What was read since the last block is one."""
        text = " ".join("".join(self._text).split())
        if text:
            self.blocks.append(Block(text, self._level))
        self._text, self._level = [], 0


def _markdown(data: bytes, errors: str) -> Blocks:
    return marked(data.decode("utf-8-sig", errors))


def _rst(data: bytes, errors: str) -> Blocks:
    return restructured(data.decode("utf-8-sig", errors))


def _html(data: bytes, errors: str) -> Blocks:
    charset = _CHARSET.search(data, 0, 4096)
    try:
        text = data.decode(charset[1].decode() if charset else "utf-8-sig", errors)
    except LookupError:
        raise _Unreadable(f"names the encoding {charset[1].decode() if charset else ''}, which there is not") from None
    page = _Page()
    page.feed(text)
    page.close()
    page.end_block()
    return iter(page.blocks)


def _pdf(data: bytes, errors: str) -> Blocks:
    """A heading for each page, and its text as one paragraph."""
    import io

    try:
        from pypdf import PdfReader
    except ModuleNotFoundError:
        raise _Unreadable("a PDF needs pypdf: pip install 'holdfast-rl[documents]'") from None
    blocks: list[Block] = []
    try:
        for number, page in enumerate(PdfReader(io.BytesIO(data)).pages, start=1):
            if text := page.extract_text().strip():
                blocks += [Block(f"page {number}", 2), Block(text.encode("utf-8", "replace").decode())]
    except Exception as error:  # pypdf raises many kinds for damaged and for locked files
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise _Unreadable(f"cannot be read as a PDF: {why}") from error
    if not blocks:
        raise _Unreadable("has no text: a PDF of scanned pages needs OCR first")
    return iter(blocks)


READERS: dict[str, Callable[[bytes, str], Blocks]] = {
    **dict.fromkeys((".md", ".markdown", ".txt"), _markdown),
    ".rst": _rst,
    **dict.fromkeys((".html", ".htm"), _html),
    ".pdf": _pdf,
}
"""Reader by the ending of a name."""
