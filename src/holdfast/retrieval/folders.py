"""A folder of documents as passages: Markdown, reStructuredText, plain text, HTML and PDF.

A reader makes blocks of a file, in order: headings with their level, and paragraphs. `cut` makes passages of blocks.
Their title is the path of headings above them. The work is linear in the size of a file.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from html import unescape
from pathlib import Path

from holdfast.base.answers import shown, whole_characters
from holdfast.base.errors import DataError
from holdfast.base.files import size_text
from holdfast.base.jsonl import Judge, Skipped
from holdfast.base.scoring import UNSPACED
from holdfast.retrieval.pdf import OCR, UnreadablePdf, read_pdf
from holdfast.retrieval.types import Document

WORDS = 100
"""The most words of a passage cut from a file, as in Search-R1's corpus: three fit into 500 tokens. Two characters of a
text without blanks between words count as one."""
MAX_BYTES = 2**28
"""The largest file that is read."""
_MAX_WORD = 1000
"""Characters. What is longer, such as a picture in base64, is cut like words."""
_MAX_HEADING = 200
"""Characters. Each passage below repeats them."""


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph, or a heading."""

    text: str
    level: int = 0
    """Of a heading, from 1; 0 for a paragraph; `_NAME` for the document's own name."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A page that cannot be read."""

    page: int
    why: str


_NAME = -1
Blocks = Iterator[Block]


class _Unreadable(Exception):
    """Why a file is not read."""


Reader = Callable[[bytes, str], Iterator[Block | Lost]]


def folder_passages(folder: Path, *, on_skip: Callable[[Skipped], None], replace: bool = False) -> Iterator[Document]:
    """Passages of at most `WORDS` words. The id is `path#n`. The title is the path of headings, from one of level 1 or
    the file's name down.

    Names that begin with a dot or `~$` are left out. What cannot be read is reported as skipped, with the reason: a
    file of another type, a link out of the folder, a file without a paragraph, a copy of another, a page without text,
    whatever its reader raises. So is one that is not UTF-8, which `replace` reads with U+FFFD where they are few.
    Raises `DataError` for a folder without files of these types, or when more than half of them cannot be read.
    """

    def skipped(path: Path, reason: str) -> Skipped:
        return Skipped(path=whole_characters(str(path)), line=None, field="file", reason=reason)

    root, files = folder.resolve(), []
    for path in sorted(folder.rglob("*")):
        if any(part.startswith((".", "~$")) for part in path.relative_to(folder).parts):
            continue
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            on_skip(skipped(path, "is a link out of the folder"))
        elif path.is_file():
            files.append(path)
    if not any(path.suffix.lower() in READERS for path in files):
        others = sorted({path.suffix.lower() for path in files} & _WAYS.keys())
        ways = "".join(f". {_not_read(ending)}" for ending in others)
        raise DataError(
            f"{folder} contains no {', '.join(READERS)} file (links out of it are not followed); name a folder that "
            f"does, or a file of passages, such as JSON lines{ways}"
        )
    judge = Judge(str(folder), "file", on_skip, "files of text")
    seen: dict[bytes, str] = {}  # of files with passages: what a copy of another lacks, it says itself
    for path in files:
        name, part, reader = path.relative_to(folder).as_posix(), 0, READERS.get(path.suffix.lower())
        if reader is None:
            on_skip(skipped(path, _not_read(path.suffix.lower())))
            continue
        try:
            if name != whole_characters(name):
                raise _Unreadable("has a name that is not UTF-8; rename it")
            data = _bytes(path)
            if (digest := sha256(data).digest()) in seen:
                on_skip(skipped(path, f"is a copy of {seen[digest]!r}"))
                continue
            blocks = _blocks(data, reader, replace)
        except _Unreadable as error:
            judge.report(skipped(path, str(error)))
            continue
        for lost in blocks:
            if isinstance(lost, Lost):
                on_skip(Skipped(path=f"{path}, page {lost.page}", line=None, field="page", reason=lost.why))
        read = (block for block in blocks if isinstance(block, Block))
        for part, (title, passage) in enumerate(cut(read, path.stem), start=1):
            yield Document(f"{name}#{part}", f"{title}\n{passage}")
        if part:
            judge.good += 1
            seen[digest] = name
        else:
            on_skip(skipped(path, "has no paragraph"))
    judge.verdict()


def _not_read(ending: str) -> str:
    """Why a file of another type is left out, and what to do."""
    way = _WAYS.get(ending)
    return f"{ending or 'a name without an ending'} is not read{(way and f'; {way}') or ''}"


def _bytes(path: Path) -> bytes:
    """What a file holds. Raises `_Unreadable`."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise _Unreadable(f"has {size_text(size)}; a file may have {size_text(MAX_BYTES)}: split it")
        return path.read_bytes()
    except OSError as error:
        raise _Unreadable(f"cannot be read: {error.strerror}") from None


def _blocks(data: bytes, reader: Reader, replace: bool) -> list[Block | Lost]:
    """The blocks of a file. Raises `_Unreadable` for whatever the reader raises."""
    try:
        return list(reader(data, "replace" if replace else "strict"))
    except UnicodeDecodeError as error:
        raise _Unreadable(
            f"is not {error.encoding.upper()} at byte {error.start + 1}; convert it, for example with `iconv -f "
            "CP1252 -t UTF-8`, or build the index with --replace-invalid"
        ) from None
    except _Unreadable:
        raise
    except Exception as error:  # one file must not end the reading of a folder
        raise _Unreadable(f"cannot be read ({type(error).__name__}: {shown(str(error))})") from error


# ---- passages of blocks


def cut(blocks: Blocks, name: str) -> Iterator[tuple[str, str]]:
    """(title, passage) pairs: whole paragraphs as far as they fit, long paragraphs in pieces that end with a sentence.
    A paragraph that only repeats the heading above it is no passage.

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
                path[-1] = (path[-1][0], text[:_MAX_HEADING])
            elif text:
                level = 0 if block.level in (_NAME, 1) else min(block.level, 6)
                path = [*((at, above) for at, above in path if at < level), (level, text[:_MAX_HEADING])]
            continue
        pieces, sizes = _pieces(text)
        if words and size + sum(sizes) > 2 * WORDS >= sum(sizes):
            yield passage()
            words, size = [], 0
        for piece, piece_size in zip(pieces, sizes, strict=True):
            if size + piece_size > 2 * WORDS and words:
                words, rest = _whole_sentences(words)
                yield passage()
                words, size = rest, sum(map(_size, rest))
            words.append(piece)
            size += piece_size
        words[-1] += "" if words[-1].endswith(" ") else " "
    if words:
        yield passage()


_ENDS, _CLOSERS = frozenset(".!?…。！？"), " \"'”’»)]」』"
"""What ends a sentence, and what may follow it."""


def _whole_sentences(words: list[str]) -> tuple[list[str], list[str]]:
    """The words up to the last end of a sentence in their second half, and the others; all, without one there."""
    for at in range(len(words), len(words) // 2, -1):
        if words[at - 1].rstrip(_CLOSERS)[-1:] in _ENDS:
            return words[:at], words[at:]
    return words, []


_UNSPACED = re.compile(f"[{UNSPACED}]")
_PIECE = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]{{1,{_MAX_WORD}}}\s*")


def _pieces(text: str) -> tuple[list[str], list[int]]:
    """A paragraph in words with what follows them, and their sizes in half words."""
    words = text.split(" ")
    if max(map(len, words)) <= _MAX_WORD and (text.isascii() or not _UNSPACED.search(text)):
        return [f"{word} " for word in words], [2] * len(words)
    pieces = _PIECE.findall(text)
    return pieces, list(map(_size, pieces))


def _size(piece: str) -> int:
    """In half words."""
    return 1 if _UNSPACED.match(piece) else 2


def _letters(title: str) -> str:
    return re.sub(r"[\W_]+", "", title.lower())


# ---- readers: bytes of a file to blocks. Each looks at a character a bounded number of times, whatever the file holds.

_FRONT = re.compile(r"---\n(.*?\n)---\n", re.S)
_RULE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*$")
"""A line of one repeated sign, which underlines a heading of reStructuredText."""


def marked(text: str) -> Blocks:
    """Blocks of Markdown, and of plain text: headings with `#`, or underlined with `=` and `-`. `# a comment` in a
    fenced block of code is none."""
    text = text.replace("\r\n", "\n")
    if front := _FRONT.match(text):
        text = text[front.end() :]
        titles = (line.removeprefix("title:").strip() for line in front[1].split("\n") if line.startswith("title:"))
        if title := next(filter(None, titles), ""):
            yield Block(title[1:-1] if len(title) > 2 and title[0] == title[-1] in "'\"" else title, _NAME)
    paragraph: list[str] = []
    fence = ""
    for line in [*text.split("\n"), ""]:
        bare = line.strip()
        if fence:
            fence = "" if bare.startswith(fence) else fence
            paragraph.append(line)
            continue
        if bare.startswith(("```", "~~~")):
            fence = bare[:3]
        if len(paragraph) == 1 and line[:1] in ("=", "-") and len(bare) > (line[0] == "-") and not bare.strip(line[0]):
            yield Block(paragraph[0].strip(), 1 if line[0] == "=" else 2)
            paragraph = []
            continue
        level = len(line) - len(line.lstrip("#"))
        is_heading = 0 < level < 7 and line[level : level + 1].isspace()
        if paragraph and (is_heading or not bare):
            yield Block("\n".join(paragraph))
            paragraph = []
        if is_heading:
            yield Block(re.sub(r"(?:^|\s)#+$", "", line[level:].strip()), level)
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


_MARKUP = re.compile(
    r"<(?:(/?)([a-z][^\s/>]*)(?:[^>=]+|=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'>][^\s>]*)?){0,1000}>?"
    r"|!--(?:-?>|[\s\S]*?(?:--!?>|\Z))|[!?/][^>]*>?)",
    re.I,
)
"""A tag with its attributes, a comment or a declaration. What does not end is cut instead of read again from the next
`<`, and every part takes the first way that fits: so the work is linear."""
_SCRIPTS = {tag: re.compile(rf"</{tag}(?=[\s/>])[^>]*>?", re.I) for tag in ("script", "style")}
"""Their ends: between is no markup."""
_BARS = frozenset({"nav", "footer"})
_UNSEEN = frozenset({"noscript", "template", "svg", "button", "select", *_BARS})
_INLINE = frozenset([
    *("a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins", "kbd"),
    *("mark", "q", "s", "samp", "small", "span", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr"),
    *(_UNSEEN - _BARS),
])  # fmt: skip
_LEVELS = {"title": _NAME, **{f"h{level}": level for level in range(1, 7)}}


def page(text: str) -> Blocks:
    """Blocks of HTML. Every tag that is not inline ends a paragraph.

    >>> list(page("<h1>Orsa &amp; lake</h1><nav>Menu</nav>A <b>cold</b> lake.<p>Deep."))
    [Block(text='Orsa & lake', level=1), Block(text='A cold lake.', level=0), Block(text='Deep.', level=0)]
    """
    words: list[str] = []
    level = place = depth = 0
    unseen = ""  # the outermost element that is not shown, open `depth` times
    while place < len(text):
        mark = _MARKUP.search(text, place)
        if not depth:
            words.append(unescape(text[place : mark.start() if mark else len(text)]))
        if mark is None:
            break
        place, tag, closes = mark.end(), (mark[2] or "").lower(), bool(mark[1])
        opens = not closes and not mark[0].endswith("/>")
        if tag in _SCRIPTS:
            if opens:
                end = _SCRIPTS[tag].search(text, place)
                place = end.end() if end else len(text)
        elif depth:
            depth += (tag == unseen) * (opens - closes)
        else:
            if tag and tag not in _INLINE:
                yield from _block(words, level)
                words, level = [], 0 if closes else _LEVELS.get(tag, 0)
            if opens and tag in _UNSEEN:
                unseen, depth = tag, 1
    yield from _block(words, level)


def _block(parts: list[str], level: int) -> Blocks:
    if text := " ".join("".join(parts).split()):
        yield Block(text, level)


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""First bytes of a text -> its encoding. UTF-16's begin UTF-32's."""
_MAX_BAD = 0.1
"""Of a file: zero bytes, or characters that would be replaced."""
_CHARSET = re.compile(rb"<meta[^>]+charset=[\"']?([\w-]+)", re.I)
_CHARSETS = re.compile(
    r"ascii|utf-8|iso8859-\d+|cp\d+|gb\w+|big5\w*|(euc|shift|iso2022)_\w+|koi8-\w|mac-\w+|tis-620|hz"
)
"""What a page may name: encodings of text, as Python calls them. Others escape, compress or are slow."""


def _decoded(data: bytes, errors: str, encoding: str = "utf-8-sig") -> str:
    """The text of a file. Raises `UnicodeDecodeError`, and `_Unreadable` for bytes that are no text."""
    mark = next((mark for mark in _MARKS if data.startswith(mark)), None)
    if mark is None and data.count(0) > _MAX_BAD * len(data):
        raise _Unreadable("is not text, or is UTF-16 without a byte order mark; save it as UTF-8")
    encoding = encoding if mark is None else _MARKS[mark]
    text = data.decode(encoding, errors)
    if errors == "replace" and (replaced := text.count("\ufffd")) > _MAX_BAD * len(text):
        raise _Unreadable(
            f"is not {encoding.removesuffix('-sig').upper()}: of its {len(text)} characters {replaced} would be "
            "replaced; convert it, for example with `iconv -f GB18030 -t UTF-8`"
        )
    return text


def _markdown(data: bytes, errors: str) -> Blocks:
    return marked(_decoded(data, errors))


def _rst(data: bytes, errors: str) -> Blocks:
    return restructured(_decoded(data, errors))


def _html(data: bytes, errors: str) -> Blocks:
    if not (named := _CHARSET.search(data, 0, 4096)):
        return page(_decoded(data, errors))
    charset = named[1].decode()
    try:
        encoding = codecs.lookup(charset).name
    except LookupError:
        raise _Unreadable(f"names the encoding {charset}, which does not exist") from None
    if encoding.startswith("utf-16"):  # whoever could read the name read bytes
        encoding = "utf-8"
    if not _CHARSETS.fullmatch(encoding):
        raise _Unreadable(f"names the encoding {charset}, which is not an encoding for web pages")
    return page(_decoded(data, errors, "utf-8-sig" if encoding == "utf-8" else encoding))


def _pdf(data: bytes, errors: str) -> Iterator[Block | Lost]:
    """The document's own title, and a heading for each page."""
    try:
        pdf = read_pdf(data)
    except ModuleNotFoundError:
        raise _Unreadable("a PDF needs pypdfium2: pip install 'holdfast-rl[documents]'") from None
    except UnreadablePdf as error:
        raise _Unreadable(str(error)) from None
    if pdf.title:
        yield Block(pdf.title, _NAME)
    for number in pdf.pictures:
        yield Lost(number, f"shows something, but has no text: {OCR}")
    for number, paragraphs in enumerate(pdf.pages, start=1):
        yield Block(f"page {number}", 3)
        for text, is_heading in paragraphs:
            if is_heading:
                yield Block(text, 2)
                yield Block(f"page {number}", 3)
            else:
                yield Block(text)


READERS: dict[str, Reader] = {
    **dict.fromkeys((".md", ".markdown", ".txt"), _markdown),
    ".rst": _rst,
    **dict.fromkeys((".html", ".htm"), _html),
    ".pdf": _pdf,
}
"""Reader by the ending of a name."""
_WAYS = {
    **dict.fromkeys((".docx", ".odt", ".rtf", ".epub"), "save it as PDF, or convert it with `pandoc FILE -o FILE.md`"),
    **dict.fromkeys((".doc", ".pptx", ".ppt", ".odp", ".xlsx", ".xls", ".ods"), "save it as PDF"),
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl", ".parquet"), "give it alone as the corpus, if it has passages"),
}
"""What to do about a file of another type."""
